"""Random functions of loops, `try` and `with` blocks give what they give eagerly: results, exceptions with their contexts
and tracebacks, side effects and their order, and the state they leave; under the default settings and under the others.

75 programs run with the suite. `python tests/fuzz/test_blocks.py 20000 [first]` runs as many others as one likes, by
number; what differs is told with its number and kept going past."""

from __future__ import annotations

import importlib.util
import linecache
import pathlib
import random
import sys
import time
import traceback
import warnings

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fxjit

_HERE = pathlib.Path(__file__).parent


def _load(name: str, path: pathlib.Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


blocks = _load("fuzz_blocks", _HERE / "blocks.py")

SETTINGS = [
    {}, {"resume_in_try": True}, {"resume_in_try": True, "nested_graph_breaks": False}, {"resume_in_loops": True},
    {"resume_in_loops": True, "resume_in_try": True}, {"resume_in_try": True, "resume_in_loops": True, "reorder": True},
    {"compile_around_blocks": True}, {"compile_around_blocks": True, "resume_in_try": True},
]  # fmt: skip


def module_of(source: str, label: str) -> dict[str, object]:
    file = f"<{label}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    namespace: dict[str, object] = {"__name__": label}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, file, "exec"), namespace)
    return namespace


def plain(value):
    """Something that compares by `==`."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, value.requires_grad, repr(value.tolist())  # a NaN is like itself
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(item) for item in value]
    if isinstance(value, dict):
        return [(plain(key), plain(item)) for key, item in value.items()]
    return value


def outcome(fn, namespace, n: int):
    """All that a call does."""
    log, notes = namespace["log"], namespace["notes"]
    log.clear()
    notes.clear()
    namespace["shared"] = None
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    y = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    items = [1, n]
    try:
        result = plain(fn(x, y, items, n))
    except Exception as error:  # noqa: BLE001 - an exception is an outcome
        result, each = [], error
        while each is not None and len(result) < 6:
            frames = [(frame.filename, frame.name, frame.lineno) for frame in traceback.extract_tb(each.__traceback__)]
            mine = [frame for frame in frames if frame[0].startswith("<")]
            if isinstance(each, NameError):  # warm, CPython 3.11 joins loads to the store before, and raises on its line
                mine = [name for _, name, _ in mine]
            result.append((type(each), plain(each.args), mine, each.__suppress_context__, type(each.__cause__)))
            each = each.__context__
    left = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_rng_state().sum().item()
    torch.set_grad_enabled(True)
    handled = sys.exc_info()[1]
    return {"result": result, "x": plain(x), "y": plain(y), "items": items, "log": plain(log), "notes": plain(notes),
            "shared": plain(namespace["shared"]), "state": left, "handled": handled}  # fmt: skip


def difference(source: str, chosen: dict[str, bool], ways: list[int], label: str = "blocks") -> str | None:
    """Where compiled and eager calls part, in words; None where they do not."""
    namespace = module_of(source, label)
    options = {name: value for name, value in chosen.items() if name != "reorder"}
    if chosen.get("reorder"):
        options["reorderable_functions"] = {namespace["note"]}
    program = namespace["program"]
    fxjit.reset()
    with fxjit.config.patch(options):
        compiled = fxjit.compile(program, backend="eager")
        for n in ways:
            expected = outcome(program, namespace, n)
            try:
                got = outcome(compiled, namespace, n)
            except BaseException as error:  # noqa: BLE001 - told with its program
                return f"n={n}: {type(error).__name__}: {error}"
            for what, theirs in expected.items():
                if got[what] != theirs:
                    return f"n={n}, {what}:\n  eager    {theirs}\n  compiled {got[what]}"
    return None


def told(found: str, source: str, chosen: dict[str, bool], ways: list[int]) -> str:
    body = source[len(blocks.PREAMBLE):]
    return f"{found}\nsettings {chosen}, ways {ways}\n{body}"


@settings(max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.sampled_from(SETTINGS), st.lists(st.integers(0, 7), min_size=1, max_size=3))
def test_random_blocks(choices, chosen, ways):
    source = blocks.write(choices)
    found = difference(source, chosen, ways)
    assert found is None, told(found, source, chosen, ways)


def numbered(number: int):
    """The program of a number, with its settings and ways."""
    choices = random.Random(number)
    source = blocks.write(choices)
    return source, SETTINGS[number % len(SETTINGS)], [choices.randint(0, 7) for _ in range(3)]


def main(count: int, first: int) -> None:
    began, differences = time.time(), []
    for number in range(first, first + count):
        source, chosen, ways = numbered(number)
        found = difference(source, chosen, ways, f"blocks {number}")
        if found is not None:
            differences.append(number)
            print(f"program {number}: {told(found, source, chosen, ways)}", flush=True)
    print(f"{count} programs from {first} in {time.time() - began:.0f} s: {len(differences)} differ {differences}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
