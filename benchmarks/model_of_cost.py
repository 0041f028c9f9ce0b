"""`python -m benchmarks.model_of_cost`: holds the cost model (backends/native/choose) against measurements of this machine.

Three tables: what a kernel takes over sizes and threads, predicted and measured; what calls, launches and autograd nodes take;
and decisions, each made both ways: a kernel or ATen, fused or separate kernels, compiled or as captured, one thread or all. A
decision is wrong where the other way was faster by more than `MARGIN`. Predictions are made from the numbers that the probe
measured (`--reference`: from those of `REFERENCE`), as they are, not in steps of a factor of two. Both ways take turns in one
process; of the turns the least counts. One thread's time is its own processor time, that of several threads wall time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from benchmarks.timing import markdown, measured_beside
from fxjit.backends.native import pipeline
from fxjit.backends.native.choose import aten as choose_aten
from fxjit.backends.native.choose import fusion as choose_fusion
from fxjit.backends.native.choose import model, predictions, probe, profitability
from fxjit.backends.native.choose.machine import REFERENCE, here, used
from fxjit.backends.native.codegen import kernel as kernel_code
from fxjit.backends.native.schedule.fuse import Group, group_work
from fxjit.counters import counters

aten = torch.ops.aten
#: How much faster the way that was not chosen has to be for the decision to be called wrong.
MARGIN = 1.1
SIZES = (256, 1024, 4096, 16384, 65536, 262144, 1 << 20, 1 << 22)
#: Of operators that are alone, and of training steps.
ELEMENTS = (256, 4096, 16384, 65536, 1 << 20)
KERNELS = ("kernel", "numbers", "threads", "predicted, us", "measured, us", "measured / predicted")
COSTS = ("cost", "calls", "predicted, us", "measured, us", "calls measured")
DECISIONS = ("decision", "of", "chosen", "its time, us", "the other's, us", "the other / chosen", "verdict")
Call = Callable[[], object]


@dataclass(frozen=True)
class Trial:
    """A decision, and both ways by name."""

    decision: str
    of: str
    chosen: str
    ways: Mapping[str, Call]
    threads: int = 1


def least(ways: Mapping[str, Call], seconds: float, threads: int) -> dict[str, float]:
    """Microseconds of each, that took turns: the least."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    found = dict.fromkeys(ways, float("inf"))
    loops: dict[str, int] = {}
    for name, call in ways.items():
        call()
        start = time.perf_counter()
        call()
        loops[name] = max(1, int(seconds / 20 / max(time.perf_counter() - start, 1e-7)))
    for _ in range(15):
        for name, call in ways.items():
            start = clock()
            for _ in range(loops[name]):
                call()
            found[name] = min(found[name], (clock() - start) / loops[name] * 1e6)
    return found


def program(function: Callable[..., Any], *inputs: torch.Tensor, lone: bool = True) -> Call:
    """The compiled program of a function of ATen's operators, with a kernel for each operator that has one if `lone`."""
    compiled = pipeline.compile_graph(make_fx(function)(*inputs), inputs, "inference", lone_kernels=lone)
    return lambda: compiled([*inputs])


# Kernels


def chain(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A multiplication and an addition, several times."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = x * 1.01 + 0.5
        return x

    return run


#: Kernels by name, and whether they write as many numbers as they read.
POINTWISE: dict[str, tuple[Callable[[torch.Tensor], Any], bool]] = {
    "x * a + b": (chain(1), True),
    "the same 8 times": (chain(8), True),
    "sigmoid": (torch.sigmoid, True),
    "sum": (lambda x: x.sum(), False),
    "sum of rows of 64": (lambda x: x.view(-1, 64).sum(1), False),
    "softmax of rows of 64": (lambda x: aten._softmax.default(x.view(-1, 64), 1, False), True),
}


def with_work(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Call, int]:
    """The program of a function, and the work of its kernels (`ops.work`, over all elements)."""
    found = []

    def noted(steps: Sequence[Any], low: Any, hints: Any) -> float:
        found.extend(group_work(each, hints) for each in steps if isinstance(each, Group))
        return 0.0

    with mock.patch.object(pipeline, "overhead", noted):
        return program(function, *inputs), sum(found)


def kernel(elements: int, work: int, threads: int, writes: bool) -> float:
    """Microseconds that the model predicts of a kernel: its numbers are fetched while others are calculated with."""
    machine, team = here(), 0.0
    moved = model.pass_over(elements if writes else elements // 2)
    computed = work * model.unit() / 1e3
    if threads > 1 and work > model.grain():
        team, computed = machine.team, computed / threads
        is_far = elements * 8 > machine.second_bytes * threads
        moved = moved * machine.shared / machine.far if is_far else moved / threads
    return model.microseconds(predictions.LAUNCH) + team + max(moved, computed)


def kernel_rows(seconds: float, threads: int) -> Iterator[tuple[object, ...]]:
    for name, (function, writes) in POINTWISE.items():
        for elements in SIZES:
            made, work = with_work(function, torch.ones(elements))
            taken = least({"": made}, seconds, threads)[""]
            foreseen = kernel(elements, work, threads, writes)
            yield name, elements, threads, f"{foreseen:.2f}", f"{taken:.2f}", f"{taken / foreseen:.2f}"


# Calls


def step(function: Callable[[torch.Tensor], torch.Tensor], elements: int, dtype: torch.dtype = torch.float32) -> Call:
    """Forward and backward."""
    x, ones = (torch.ones(elements // 4, 4, dtype=dtype) for _ in range(2))
    x.requires_grad_()

    def run() -> None:
        function(x).backward(ones)
        x.grad = None

    return run


def repeated(operator: Callable[[torch.Tensor], torch.Tensor], count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = operator(x)
        return x

    return run


def slope(few: Call, many: Call, more: int, seconds: float) -> tuple[float, float]:
    """Microseconds of one of what `many` has so many more of, and of a call of ATen meanwhile."""
    taken = least({"few": few, "many": many, "call": call_of_aten}, seconds, 1)
    return (taken["many"] - taken["few"]) / more, taken["call"]


def call_of_aten(x: torch.Tensor = torch.ones(16)) -> None:
    """What `Machine.call` is of."""
    aten.sigmoid.default(x)


_ONES = torch.ones(4, 4)
#: What autograd records, by the row of predictions.py that it belongs to.
RECORDED: dict[str, tuple[float, Callable[[torch.Tensor], torch.Tensor], torch.dtype]] = {
    "RECORDED: an operator that autograd records (sigmoid)": (predictions.RECORDED, torch.sigmoid, torch.float32),
    "RECORDED: the same (x * y)": (predictions.RECORDED, lambda x: x * _ONES, torch.float32),
    "FUNCTIONAL: a function of torch.nn.functional (layer_norm)": (
        predictions.FUNCTIONAL, lambda x: torch.nn.functional.layer_norm(x, (4,)), torch.float32),
    "FUNCTIONAL: the same (softplus)": (predictions.FUNCTIONAL, torch.nn.functional.softplus, torch.float32),
    "PRODUCT: a matrix product": (predictions.PRODUCT, lambda x: x @ _ONES, torch.float32),
    "COMPLEX: an operator of complex numbers (x * x)": (predictions.COMPLEX, lambda x: x * x, torch.complex64),
}  # fmt: skip


def costs(seconds: float) -> Iterator[tuple[str, float, tuple[float, float]]]:
    """Each with the calls of ATen that it is said to take, its microseconds, and those of a call meanwhile."""
    found = {name: slope(*(step(repeated(each, n), 16, dtype) for n in (1, 9)), 8, seconds)
             for name, (_, each, dtype) in RECORDED.items()}
    for name, taken in found.items():
        yield name, RECORDED[name][0], taken
    x = torch.ones(16)
    with torch.no_grad():
        plain = lambda n: lambda: repeated(torch.sigmoid, n)(x)  # noqa: E731  # two of them, a line below
        yield "UNRECORDED: one that is not recorded", predictions.UNRECORDED, slope(plain(1), plain(9), 8, seconds)
        calls = [program(repeated(lambda y: torch.nextafter(y, y), n), x) for n in (1, 9)]
        called = predictions.CALL + 2 * predictions.ARGUMENT
        yield "CALL and two of ARGUMENT: a call of ATen in a program", called, slope(*calls, 8, seconds)
        inputs = [torch.ones(2, 3 + n) for n in range(9)]
        kernels = [program(lambda *xs: [aten.cumsum(each, 1) for each in xs], *inputs[:n]) for n in (1, 9)]
        launch = slope(*kernels, 8, seconds)
        yield "LAUNCH: a kernel in a program", predictions.LAUNCH, launch
    taken = least(trained(1, 16).ways | {"call": call_of_aten}, seconds, 1)
    eager = sum(found[name][0] for name in list(RECORDED)[:2])
    node = taken["compiled"] - taken["captured"] + eager - 2 * launch[0]
    yield "NODE: an autograd node of ours", predictions.NODE, (node, taken["call"])


def cost_rows(seconds: float, threads: int) -> Iterator[tuple[object, ...]]:
    for name, count, (taken, call) in costs(seconds) if threads == 1 else ():
        yield name, f"{count:g}", f"{model.microseconds(count):.2f}", f"{taken:.2f}", f"{taken / call:.2f}"


# Decisions

ALONE: dict[str, Callable[[torch.Tensor], Any]] = {
    "x + x": lambda x: x + x, "relu": torch.relu, "sigmoid": torch.sigmoid, "exp": torch.exp, "tanh": torch.tanh,
    "log1p": torch.log1p, "gelu": aten.gelu.default,
    "softmax of rows of 64": POINTWISE["softmax of rows of 64"][0],
    "sum of rows of 64": lambda x: x.view(-1, 64).sum(1), "sum of 64 columns": lambda x: x.view(-1, 64).sum(0),
    "transposing copy": lambda x: x.view(64, -1).t().clone(memory_format=torch.contiguous_format),
}  # fmt: skip


def alone(name: str, elements: int) -> Trial:
    """One operator: a kernel, or ATen's call."""
    x, function = torch.rand(elements), ALONE[name]
    ours = program(function, x)
    with mock.patch.multiple(choose_aten, kernel_wins=lambda *_: False, small_work=lambda name: 0):
        atens = program(function, x, lone=False)
    before = counters["native"]["left to ATen"]
    program(function, x, lone=False)
    chosen = "ATen" if counters["native"]["left to ATen"] > before else "kernel"
    return Trial("a kernel or ATen", f"{name}, {elements}", chosen, {"kernel": ours, "ATen": atens})


def fused(count: int, elements: int) -> Trial:
    """A chain as one kernel, or a kernel for each two operators."""
    x = torch.ones(elements)
    one, part = program(chain(count), x), program(chain(1), x)

    def separate() -> None:
        for _ in range(count):
            part()

    return Trial("fused or separate", f"x * a + b {count} times, {elements}", "fused", {"fused": one, "separate": separate})


def joined(elements: int) -> Trial:
    """Four statements that share nothing: one kernel, or four."""
    xs = [torch.ones(elements) for _ in range(4)]

    def run(*each: torch.Tensor) -> list[torch.Tensor]:
        return [x * 2.0 for x in each]

    ways = {}
    for name, most in {"joined": 1 << 40, "separate": 0}.items():
        with mock.patch.object(choose_fusion, "small_elements", lambda most=most: most):
            ways[name] = program(run, *xs)
    chosen = "joined" if elements <= model.small_elements() else "separate"
    return Trial("kernels that share nothing", f"4 x {elements}", chosen, ways)


def trained(count: int, elements: int) -> Trial:
    """A training step of some operators: compiled, or as captured."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = torch.sigmoid(x) * 2.0
        return x

    ways = {}
    for name, on in {"compiled": False, "captured": True}.items():
        with mock.patch.object(profitability, "is_unprofitable", lambda *_, on=on: on):
            ways[name] = step(fxjit.compile(run, fullgraph=True, options={"bucket_collectives_mb": float(on)}), elements)
            ways[name]()
    before = counters["run_as_captured"]["unprofitable"]
    step(fxjit.compile(run, fullgraph=True), elements)()
    chosen = "captured" if counters["run_as_captured"]["unprofitable"] > before else "compiled"
    return Trial("compiled or as captured", f"{2 * count} operators, {elements}", chosen, ways)


def threaded(elements: int, threads: int) -> Trial:
    """A chain on one thread or on all."""
    x = torch.ones(elements)
    _, work = with_work(chain(8), x)
    with mock.patch.object(kernel_code, "grain", lambda: 1 << 40):
        one = program(chain(8), x)
    with mock.patch.object(kernel_code, "grain", lambda: 0):
        all_of_them = program(chain(8), x)
    chosen = "all threads" if work > model.grain() else "one thread"
    return Trial("one thread or all", f"x * a + b 8 times, {elements}", chosen, {"one thread": one, "all threads": all_of_them},
                 threads)


def trials(threads: int) -> Iterator[Trial]:
    if threads > 1:
        yield from (threaded(1 << power, threads) for power in range(9, 18))
        return
    yield from (alone(name, elements) for name in ALONE for elements in ELEMENTS)
    yield from (fused(8, elements) for elements in SIZES[::2])
    yield from (joined(1 << power) for power in range(8, 18))
    yield from (trained(count, elements) for count in (1, 2, 4, 8) for elements in (16, *ELEMENTS[1:-1]))


def decision_rows(seconds: float, threads: int) -> Iterator[tuple[object, ...]]:
    for trial in trials(threads):
        taken = least(trial.ways, seconds, threads)
        chosen = taken.pop(trial.chosen)
        (other,) = taken.values()
        verdict = "wrong" if chosen > other * MARGIN else "right"
        yield trial.decision, trial.of, trial.chosen, f"{chosen:.2f}", f"{other:.2f}", f"{other / chosen:.2f}", verdict


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.2, help="measuring time of each way")
    parser.add_argument("--reference", action="store_true", help="predict from the numbers of REFERENCE")
    parser.add_argument("--only", choices=("kernels", "costs", "decisions"), default="", help="one of the tables")
    options = parser.parse_args(arguments)
    before, machine = torch.get_num_threads(), REFERENCE if options.reference else probe.known() or probe.measure()
    if machine is None:
        raise SystemExit("There is no C++ compiler: there are no kernels either.")
    print(f"The machine: {probe.described(machine)}.\n")
    tables = {"kernels": (KERNELS, kernel_rows), "costs": (COSTS, cost_rows),
              "decisions": (DECISIONS, decision_rows)}
    with used(machine), fxjit.config.patch(store_entries=False, cache_graphs=False):
        with (mock.patch.object(pipeline, "present", lambda: machine),
              mock.patch.object(profitability, "present", lambda: machine)):
            for name, (header, rows) in tables.items():
                if options.only in ("", name):
                    made = []
                    for threads in sorted({1, before}):
                        torch.set_num_threads(threads)
                        made += [tuple(map(str, row)) for row in rows(options.seconds, threads)]
                    print(markdown(header, made) + "\n")
                    if name == "decisions":
                        print(f"{sum(row[-1] == 'wrong' for row in made)} of {len(made)} decisions were wrong.\n")
    torch.set_num_threads(before)
    print(measured_beside())


if __name__ == "__main__":
    main()
