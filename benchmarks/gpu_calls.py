"""The calls that `python -m benchmarks.gpu` times: made, run until they are warm, and timed in turns, those that fail told."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any

Call = Callable[[], Any]


def compiler(way: str, **options: Any) -> Callable[[Any], Any]:
    """`way` as a function of what is to be compiled."""
    import torch

    if way in ("eager", "exact"):
        return lambda fn: fn
    if way == "fxjit":
        import fxjit

        return lambda fn: fxjit.compile(fn, **options)
    return lambda fn: torch.compile(fn, **options)


def what_failed(error: BaseException) -> str:
    """The error and the last of where it came from: what failed is mended elsewhere, on a machine without the GPU."""
    return f"{type(error).__name__}: {error}"[:1500] + "\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])


def measured(
    row: dict[str, Any], calls: dict[str, Call], device: str, warm_up: int, measure: Callable[[dict[str, Call]], dict[str, Any]]
) -> dict[str, Any]:
    """The row with what is measured of the calls; one that fails is left out, and told."""
    working = warm_calls(row, {way: lambda call=call: call for way, call in calls.items()}, device, warm_up)
    return {**row, **measure(working)}


def warm_calls(row: dict[str, Any], makers: dict[str, Callable[[], Call]], device: str, warm_up: int) -> dict[str, Call]:
    """The calls that can be made and run so many times; the row says of the others how they fail."""
    working: dict[str, Call] = {}
    for way, make in makers.items():
        try:
            call = make()
            for _ in range(warm_up):
                call()
            synchronize(device)
            working[way] = call
        except Exception as error:
            row[f"{way} fails"] = what_failed(error)
    return working


def take_turns(calls: dict[str, Call], device: str, rounds: int = 15, in_a_row: int = 1) -> dict[str, float]:
    times: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(rounds):
        for way, call in calls.items():
            times[way].append(once(call, device, in_a_row))
    return {way: statistics.median(each) for way, each in times.items()}


def once(call: Call, device: str, in_a_row: int = 1) -> float:
    """Milliseconds of a call, by events of the GPU; of several in a row the processor's part is not seen."""
    import torch

    if device == "cpu":
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(in_a_row):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / in_a_row


def synchronize(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize()
