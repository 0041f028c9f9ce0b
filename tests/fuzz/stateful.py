"""Random programs over state give, compiled, what they give in plain Python: results, the state of all objects, which of
them are one or share memory, gradients, exceptions, events and modes, after each step.

    python -m tests.fuzz.stateful --programs 20000 --seed 0 [--backends eager,aot_eager,native] [--seconds 600]

A program that differs is made smaller and printed with its seed; the exit status is 1 if any does.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import itertools
import linecache
import pathlib
import random
import re
import sys
import time
import types
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from tests.fuzz import stateful_programs

import fxjit

WORLD = compile((pathlib.Path(__file__).with_name("world.py")).read_text(encoding="utf-8"), "<world>", "exec")
BACKENDS = ("eager", "aot_eager", "eager", "native", "eager", "aot_eager")
SETTINGS: tuple[dict[str, Any], ...] = (
    {}, {"resume_in_try": True, "resume_in_loops": True}, {"compile_tensorless_frames": True, "allow_empty_graphs": True},
    {"assume_static_by_default": False}, {"nested_graph_breaks": False}, {"compile_around_blocks": True},
)  # fmt: skip
#: How far numbers of other kernels may be from eager's, by the number of bits that the type keeps.
CLOSE = {torch.float64: (1e-5, 1e-6), torch.float32: (2e-3, 2e-4), torch.bfloat16: (6e-2, 6e-2), torch.float16: (2e-2, 1e-2)}
_numbers = itertools.count()


def tolerance(value: torch.Tensor) -> tuple[float, float]:
    """Relative and absolute. Doubles that have no more digits than float32 were of that type (`module.double()`)."""
    was_single = value.dtype is torch.float64 and torch.equal(value.nan_to_num(), value.float().double().nan_to_num())
    return CLOSE.get(torch.float32 if was_single else value.dtype, (0.0, 0.0))


# -- what can be seen of a state -------------------------------------------------------------------------------------


class Snapshot:
    """All that is reached from some roots, as data: objects and storages are named by the order in which they are met."""

    def __init__(self) -> None:
        self.objects: dict[int, tuple[int, Any]] = {}
        self.storages: dict[int, tuple[int, Any]] = {}

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, str, bytes, torch.dtype, torch.device, torch.layout)):
            return type(value).__name__, value
        if isinstance(value, (float, complex)):
            return Number(value)
        known = self.objects.get(id(value))
        if known is not None:
            return "seen", known[0]
        self.objects[id(value)] = len(self.objects), value  # held, so that its address stays its own
        return self.contents(value)

    def contents(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, np.ndarray):
            return (
                "array",
                value.shape,
                value.strides,
                Number(torch.tensor(value.copy())),
                self.storage(value.__array_interface__["data"][0] - 0, value),
            )
        if isinstance(value, np.generic):
            return "scalar", Number(value.item())
        name = type(value).__qualname__
        if isinstance(value, (list, tuple)) or name == "deque":
            return name, [self.of(each) for each in value], self.attributes(value)
        if isinstance(value, dict):
            return name, [(self.of(key), self.of(each)) for key, each in value.items()], self.attributes(value)
        if isinstance(value, (set, frozenset)):
            return name, sorted(map(repr, value))
        if isinstance(value, types.FunctionType):
            return (
                "function",
                value.__qualname__,
                self.of(value.__defaults__),
                [self.of(each.cell_contents) for each in value.__closure__ or ()],
            )
        if isinstance(value, types.MethodType):
            return "method", value.__func__.__qualname__, self.of(value.__self__)
        if isinstance(value, functools.partial):
            return "partial", self.of(value.func), self.of(value.args), self.of(value.keywords)
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return "named", getattr(value, "__qualname__", value.__name__)
        return name, self.attributes(value)

    def attributes(self, value: Any) -> Any:
        if type(value).__module__.startswith(("torch", "weakref", "builtins", "collections")) and not isinstance(
            value, (torch.nn.Module, torch.optim.Optimizer)
        ):
            return None
        found = dict(getattr(value, "__dict__", {}))
        found |= {name: getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)}
        if isinstance(value, torch.optim.Optimizer):
            found = {name: found[name] for name in ("param_groups", "state", "defaults")}
        hooks = {name: list(each.values()) for name, each in found.items() if name.endswith("hooks") and isinstance(each, dict)}
        return [(name, self.of(hooks.get(name, each))) for name, each in found.items() if not name.startswith("__")]

    def storage(self, address: int, held: Any) -> int:
        return self.storages.setdefault(address, (len(self.storages), held))[0]

    def tensor(self, value: torch.Tensor) -> Any:
        try:
            leaf = value.is_leaf
        except RuntimeError as error:  # a view of inference mode whose base was written to outside: nothing can be asked of it
            return "tensor", str(error), value.requires_grad
        facts = type(value).__name__, value.dtype, tuple(value.shape), value.requires_grad, leaf, value.is_inference()
        storage = value.untyped_storage()
        shared = value.stride(), self.storage(storage.data_ptr() or id(value), storage)
        where = value.storage_offset(), value._base is None
        gradient = self.of(value.grad) if leaf else None
        return "tensor", facts, shared, Number(value), gradient, Placement(where)


class Number:
    """Floating-point numbers: compared by value, as closely as was asked for."""

    def __init__(self, value: Any) -> None:
        with torch.no_grad():
            self.value = value.detach().clone() if isinstance(value, torch.Tensor) else torch.tensor(value)

    def same(self, other: Number, exact: bool) -> bool:
        if self.value.dtype != other.value.dtype or self.value.shape != other.value.shape:
            return False
        rtol, atol = (0.0, 0.0) if exact else tolerance(self.value)
        return bool(torch.allclose(self.value, other.value, rtol, atol, equal_nan=True))

    def __repr__(self) -> str:
        return f"{self.value.dtype} {self.value.tolist()}"


class Placement(tuple):  # type: ignore[type-arg]
    """Where in its memory a tensor lies, and whether it is a view: results that are parts of what a graph computes may lie
    elsewhere where AOTAutograd made them."""


class Difference(str):
    """Where two snapshots part, in words."""

    #: Of numbers: the indices that lead to them in a snapshot, and what became of them.
    number_at: tuple[int, ...] | None = None
    actual: Number


def same(expected: Any, actual: Any, exact: bool) -> bool:
    """Whether two snapshots nowhere part: nearly always so, and found without writing down every place that is looked at."""
    kind = type(expected)
    if kind is not type(actual):
        return False
    if kind is list or kind is tuple:
        return len(expected) == len(actual) and all(map(same, expected, actual, itertools.repeat(exact)))
    if kind is Number:
        return expected.same(actual, exact)
    return bool(expected == actual) or (kind is Placement and not exact)


def difference(expected: Any, actual: Any, exact: bool, path: str = "", at: tuple[int, ...] = ()) -> str | None:
    """The first place where two snapshots part."""
    if not at and same(expected, actual, exact):
        return None
    if isinstance(expected, Number) and isinstance(actual, Number):
        if expected.same(actual, exact):
            return None
        found_numbers = Difference(f"{path}: {expected!r} became {actual!r}")
        found_numbers.number_at, found_numbers.actual = at, actual
        return found_numbers
    if isinstance(expected, Placement) and not exact:
        return None
    if type(expected) is not type(actual):
        return f"{path}: {expected!r} became {actual!r}"
    if isinstance(expected, (list, tuple)):
        if len(expected) != len(actual):
            return f"{path}: {expected!r} became {actual!r}"
        label = expected[0] if expected and isinstance(expected[0], str) else None
        for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
            found = difference(left, right, exact, f"{path}.{label}" if label and index else f"{path}.{index}", (*at, index))
            if found is not None:
                return found
        return None
    return None if expected == actual else f"{path}: {expected!r} became {actual!r}"


# -- one program -----------------------------------------------------------------------------------------------------


class Run:
    """A program in a namespace of its own; compiled functions are called by its steps where `backend` is given."""

    def __init__(
        self, program: stateful_programs.Program, backend: str | None, dynamic: bool | None, precise: bool = False
    ) -> None:
        self.module = types.ModuleType(f"stateful_{next(_numbers)}")
        sys.modules[self.module.__name__] = self.module
        self.namespace = vars(self.module)
        #: In double precision: the network, what it is given, and what is made without saying of what type.
        self.default = torch.float64 if precise else torch.float32
        source = program.source()
        exec(WORLD, self.namespace)
        file = f"<{self.module.__name__}>"
        linecache.cache[file] = (0, None, source.splitlines(True), file)
        exec(compile(source, file, "exec"), self.namespace)
        torch.manual_seed(program.seed)
        self.locals: dict[str, Any] = {"w": self.namespace["World"](program.seed), "r": None}
        if precise:
            self.locals["w"].net.double()
            self.namespace["numbers"] = functools.partial(self.namespace["numbers"], dtype=torch.float64)
        for each in program.functions:
            fn = self.namespace[each.name]
            self.locals[each.name] = fn if backend is None else fxjit.compile(fn, backend=backend, dynamic=dynamic)
        self.state = torch.get_rng_state(), random.Random(program.seed).getstate()

    def step(self, text: str) -> Any:
        """What one step does to everything, with the process's state as this run left it."""
        torch.set_rng_state(self.state[0])
        random.setstate(self.state[1])
        grad, default = self.locals.pop("modes", (True, self.default))
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(default)
        problem = None
        try:
            exec(compile(text, "<step>", "exec"), self.namespace, self.locals)
        except fxjit.errors.FxjitError:
            raise
        except Exception as error:  # noqa: BLE001 - an exception is an outcome
            problem = type(error).__name__, re.sub(r"0x[0-9a-f]+|stateful_\d+", "...", str(error))
        modes = (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_default_dtype(),
        )
        self.state = torch.get_rng_state(), random.getstate()
        self.locals["modes"] = modes[0], modes[3]
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        names = ("GLOBAL", "RATE", "SWITCH", "SETTINGS", "BIAS", "EVENTS")
        kinds = [(name, self.namespace[name].kind, list(self.namespace[name].shared)) for name in ("Node", "Leaf")]
        named = [self.namespace[name] for name in names]
        roots = [self.locals["w"], self.locals["r"], named, kinds, zlib.crc32(self.state[0].numpy().tobytes())]
        return [problem, modes, Snapshot().of(roots)]

    def close(self) -> None:
        sys.modules.pop(self.module.__name__, None)
        linecache.cache.pop(f"<{self.module.__name__}>", None)
        self.namespace.clear()
        self.locals.clear()


@contextlib.contextmanager
def process_restored() -> Iterator[None]:
    dtype = torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(dtype)


def is_rounding(program: stateful_programs.Program, steps: int, expected: Any, found: str) -> bool:
    """Whether the numbers that differ are none of eager's either: after as many steps in double precision they are others, by
    more than is asked of a kernel. Optimizers make so much of so little: Rprop and Adam step by the sign of a gradient whose
    digits have all cancelled (seed 700401, where eager has the wrong sign). Programs that draw random numbers draw others then.
    """
    if not isinstance(found, Difference) or found.number_at is None:
        return False
    precise = Run(program, None, None, precise=True)
    try:
        initial = precise.state[0]
        snapshot = [precise.step(text) for text in program.steps[:steps]][-1]
        drawn = not torch.equal(precise.state[0], initial)
    finally:
        precise.close()
    if drawn or snapshot[0] != expected[0]:
        return False
    for index in found.number_at:
        if not isinstance(snapshot, (list, tuple)) or index >= len(snapshot):
            return False
        snapshot, expected = snapshot[index], expected[index]
    if not isinstance(snapshot, Number) or snapshot.value.shape != expected.value.shape:
        return False
    rtol, atol = tolerance(expected.value)
    differs, lost = (
        ~torch.isclose(other.value.double(), expected.value.double(), rtol, atol, equal_nan=True)
        for other in (found.actual, snapshot)
    )
    return bool((lost | ~differs).all())


def check(
    program: stateful_programs.Program, backend: str, settings: dict[str, Any], rounded: list[int] | None = None
) -> str | None:
    """Where the compiled program and the plain one part, in words; None where they do not. A program that parts by rounding
    goes no further; its seed is added to `rounded`."""
    fxjit.reset()
    dynamic = True if program.seed % 7 == 3 else None
    with fxjit.config.patch(settings), process_restored():
        plain, compiled = Run(program, None, None), Run(program, backend, dynamic)
        try:
            for number, text in enumerate(program.steps):
                expected = plain.step(text)
                try:
                    actual = compiled.step(text)
                except Exception as error:  # noqa: BLE001 - told with its program
                    return f"step {number}, {text}: {type(error).__name__}: {error}"
                found = difference(expected, actual, exact=backend == "eager" and not program.optimizes)
                if found is None:
                    continue
                if (backend != "eager" or program.optimizes) and is_rounding(program, number + 1, expected, found):
                    if rounded is not None:
                        rounded.append(program.seed)
                    return None
                return f"step {number}, {text}: {found}"
        finally:
            plain.close()
            compiled.close()
    return None


def ways(seed: int, backends: Sequence[str] = BACKENDS) -> tuple[str, dict[str, Any]]:
    return backends[seed % len(backends)], SETTINGS[seed // 2 % len(SETTINGS)]


def reduced(
    program: stateful_programs.Program, fails: Callable[[stateful_programs.Program], bool], seconds: float = 120
) -> stateful_programs.Program:
    """The smallest program found that fails as well."""
    end, again = time.monotonic() + seconds, True
    while again and time.monotonic() < end:
        again = False
        for candidate in stateful_programs.smaller(program):
            if time.monotonic() > end:
                break
            try:
                compile(candidate.source(), "<candidate>", "exec")
            except SyntaxError:
                continue
            if fails(candidate):
                program, again = candidate, True
                break
    return program


def kind_of(found: str | None) -> str:
    """What kind of difference: an exception, one's absence, or a place in the state."""
    if found is None:
        return ""
    told = found.partition(": ")[2]
    return told.split(":")[0] if "Error" in told.split(":")[0] else "state"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.stateful", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first program's number")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this many")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="in rotation")
    parser.add_argument("--whole", action="store_true", help="do not make failing programs smaller")
    given = parser.parse_args(arguments)
    backends, began, differ, rounded = given.backends.split(","), time.monotonic(), [], []
    done = 0
    for seed in range(given.seed, given.seed + given.programs):
        if time.monotonic() - began > given.seconds:
            break
        faulthandler.dump_traceback_later(300, exit=True)  # a program that hangs is a difference too
        program, (backend, settings) = stateful_programs.program(seed), ways(seed, backends)
        found = check(program, backend, settings, rounded)
        done += 1
        if found is not None:
            differ.append(seed)
            print(f"program {seed} differs ({backend}, {settings}): {found}", flush=True)
            if not given.whole:
                faulthandler.cancel_dump_traceback_later()
                small = reduced(program, lambda each: kind_of(check(each, backend, settings)) == kind_of(found))
                print(f"{check(small, backend, settings)}\n{small.text()}\n", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(f"{done} programs from {given.seed} in {time.monotonic() - began:.0f} s: {len(differ)} differ {differ}", flush=True)
    print(f"{len(rounded)} ended where eager's own digits are rounding {rounded}", flush=True)
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
