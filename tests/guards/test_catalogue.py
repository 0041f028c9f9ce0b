"""The catalogue of guards, kind by kind, from the user's side: a change of the thing is seen as a recompile, with eager's
result, and a change of what does not matter is not. A kind without such a pair fails the last test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import fxjit
from fxjit import _C
from fxjit.counters import counters
from fxjit.guards import kinds
from fxjit.guards.ambient import AmbientState
from fxjit.process_state import QUERYABLE


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


class Thing:
    """Something with attributes for programs to look at."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Other(Thing):
    pass


X = torch.arange(6.0).reshape(2, 3)


def by_two(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def by_three(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def made(times: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * times


def made_before_its_factor() -> Callable[[torch.Tensor], torch.Tensor]:
    def fn(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * factor
        except NameError:
            return x + 1
    if not fn:
        factor = 1
    return fn


def set_x(world: Thing, x: torch.Tensor) -> None:
    world.x = x


@dataclass(frozen=True)
class Case:
    """`program(world)` looks at the world; `change` matters to it, `harmless` does not. `warm` are calls to make first."""

    program: Callable[[Thing], torch.Tensor]
    world: Callable[[], Thing]
    change: Callable[[Thing], object]
    harmless: Callable[[Thing], object]
    warm: tuple[Callable[[Thing], object], ...] = ()


CASES: dict[str, Case] = {
    "TypeIs": Case(
        lambda world: X * len(world.thing.__class__.__name__),
        lambda: Thing(thing=Thing()),
        lambda world: setattr(world, "thing", Other()),
        lambda world: setattr(world.thing, "unread", 3),
    ),
    "IdIs": Case(
        lambda world: world.operator(X),
        lambda: Thing(operator=torch.sin),
        lambda world: setattr(world, "operator", torch.cos),
        lambda world: setattr(world, "unread", torch.cos),
    ),
    "CodeIs": Case(
        lambda world: world.fn(X),
        lambda: Thing(fn=by_two),
        lambda world: setattr(world, "fn", by_three),
        lambda world: setattr(by_two, "note", "unread"),
    ),
    "SameObject": Case(
        lambda world: world.a + world.b,
        lambda: (lambda x: Thing(a=x, b=x))(torch.ones(3)),
        lambda world: setattr(world, "b", torch.zeros(3)),
        lambda world: (lambda x: world.__dict__.update(a=x, b=x))(torch.full((3,), 7.0)),
    ),
    "NotSameObject": Case(
        lambda world: world.a + world.b,
        lambda: Thing(a=torch.ones(3), b=torch.zeros(3)),
        lambda world: setattr(world, "b", world.a),
        lambda world: setattr(world, "b", torch.full((3,), 5.0)),
    ),
    "ConstIs": Case(
        lambda world: X * world.factor,
        lambda: Thing(factor=2),
        lambda world: setattr(world, "factor", 3),
        lambda world: setattr(world, "factor", int("2")),
    ),
    "TensorIs": Case(
        lambda world: world.x + 1,
        lambda: Thing(x=torch.ones(3)),
        lambda world: set_x(world, torch.ones(3, dtype=torch.float64)),
        lambda world: set_x(world, torch.zeros(3)),
    ),
    "ShapeExpr": Case(
        lambda world: world.x * 2 if world.x.size(0) > 5 else world.x * 3,
        lambda: Thing(x=torch.ones(8)),
        lambda world: set_x(world, torch.ones(4)),
        lambda world: set_x(world, torch.ones(11)),
        (lambda world: set_x(world, torch.ones(9)),),
    ),
    "LengthIs": Case(
        lambda world: X * len(world.items),
        lambda: Thing(items=[1, 2]),
        lambda world: world.items.append(3),
        lambda world: world.items.__setitem__(0, 9),
    ),
    "KeysAre": Case(
        lambda world: X * sum(len(key) for key in world.table),
        lambda: Thing(table={"a": 1, "bc": 2}),
        lambda world: world.table.update(def_=3),
        lambda world: world.table.update(a=5),
    ),
    "SetIs": Case(
        lambda world: X * (2 if "a" in world.names else 3) + len(world.names),
        lambda: Thing(names={"a", "b"}),
        lambda world: world.names.discard("a"),
        lambda world: setattr(world, "names", {"b", "a"}),
    ),
    "HasKey": Case(
        lambda world: X * (2 if "a" in world.table else 3),
        lambda: Thing(table={"a": 1, "b": 2}),
        lambda world: world.table.pop("a"),
        lambda world: world.table.update(c=5),
    ),
    "InstanceHasAttr": Case(
        lambda world: X * (2 if hasattr(world.thing, "extra") else 3),
        lambda: Thing(thing=Thing()),
        lambda world: setattr(world.thing, "extra", 1),
        lambda world: setattr(world.thing, "unread", 1),
    ),
    "FoundIn": Case(
        lambda world: X * world.thing.scale,
        lambda: Thing(thing=type("Local", (Thing,), {})(scale=2)),
        lambda world: setattr(type(world.thing), "scale", property(lambda thing: 5)),
        lambda world: setattr(type(world.thing), "unread", 3),
    ),
    "BasesAre": Case(
        lambda world: X * (2 if isinstance(world.thing, Other) else 3),
        lambda: Thing(thing=type("Local", (Other,), {})()),
        lambda world: setattr(type(world.thing), "__bases__", (Thing,)),
        lambda world: setattr(type(world.thing), "unread", 3),
    ),
    "HasAttr": Case(
        lambda world: X * getattr(world.fn, "scale", 2),
        lambda: Thing(fn=made(2)),
        lambda world: setattr(world.fn, "scale", 3),
        lambda world: setattr(world.fn, "note", "unread"),
    ),
    "PythonCheck": Case(
        lambda world: world.fn(X),
        lambda: Thing(fn=made_before_its_factor()),
        lambda world: setattr(world.fn.__closure__[0], "cell_contents", 3),
        lambda world: setattr(world.fn, "note", "unread"),
    ),
    "AmbientIs": Case(
        lambda world: world.x * 2,
        lambda: Thing(x=torch.ones(3, requires_grad=True)),
        lambda world: torch.set_grad_enabled(False),
        lambda world: torch.manual_seed(3),
    ),
}

def guard_kinds(program: Callable[..., Any]) -> set[str]:
    """The kinds in the entries of a function."""
    code = program.__code__
    found = [entry for key in _C.keys(code) for entry in _C.entries(code, key)]
    return {type(guard).__name__ for entry in found for guard in entry.tree.guards}


@pytest.mark.parametrize("kind", CASES)
def test_a_change_is_seen_and_what_does_not_matter_is_not(kind: str) -> None:
    case = CASES[kind]
    world = case.world()
    compiled = fxjit.compile(case.program, backend="eager")

    def check() -> int:
        torch.testing.assert_close(compiled(world), case.program(world))
        return int(counters["frames"]["ok"])

    try:
        before = check()
        for step in case.warm:
            step(world)
            before = check()
        assert kind in guard_kinds(case.program)
        case.harmless(world)
        assert check() == before, "a change that does not matter recompiled"
        case.change(world)
        assert check() == before + 1, "a change was not seen"
    finally:
        torch.set_grad_enabled(True)


def _set_default_dtype() -> Callable[[], object]:
    torch.set_default_dtype(torch.float64)
    return lambda: torch.set_default_dtype(torch.float32)


def _entered(manager: Any) -> Callable[[], object]:
    manager.__enter__()
    return lambda: manager.__exit__(None, None, None)


def _set_deterministic() -> Callable[[], object]:
    torch.use_deterministic_algorithms(True)
    return lambda: torch.use_deterministic_algorithms(False)


#: Each state of the process: a way to change it, which gives the way back.
STATES: dict[str, Callable[[], Callable[[], object]]] = {
    "grad_mode": lambda: _entered(torch.no_grad()),
    "inference_mode": lambda: _entered(torch.inference_mode()),
    "autocast": lambda: _entered(torch.autocast("cpu")),
    "default_dtype": _set_default_dtype,
    "default_device": lambda: _entered(torch.device("meta")),
    "deterministic": _set_deterministic,
    "torch_function": lambda: _entered(torch._C.DisableTorchFunctionSubclass()),
    "torch_function_modes": lambda: _entered(torch.device("cpu")),
}
#: Frames below a dispatch mode or a transform are not compiled at all (pipeline.py).
RUN_EAGERLY = {"dispatch_modes", "functorch_level", "forward_ad_level", "jit_tracing"}


@pytest.mark.parametrize("name", STATES)
def test_state_of_the_process_is_guarded(name: str) -> None:
    compiled = fxjit.compile(lambda x: x * 2, backend="eager")
    x = torch.ones(3)
    compiled(x)
    torch.manual_seed(3)  # does not matter
    compiled(x)
    assert counters["frames"]["ok"] == 1
    undo = STATES[name]()
    try:
        compiled(x)
        assert counters["frames"]["ok"] == 2
    finally:
        undo()
    compiled(x)
    assert counters["frames"]["ok"] == 2


def _set_precision() -> Callable[[], object]:
    torch.set_float32_matmul_precision("medium")
    return lambda: torch.set_float32_matmul_precision("highest")


#: State that compiled code depends on only where the backend says so: a program of which it does, and a way to change it.
ASKED: dict[str, tuple[Callable[[], Callable[[torch.Tensor], Any]], Callable[[], Callable[[], object]]]] = {
    "float32_precision": (lambda: lambda x: x @ x, _set_precision),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("depends", [True, False], ids=["which depends", "which does not"])
def test_state_that_the_backend_asked_for(name: str, depends: bool) -> None:
    make, change = ASKED[name]
    program = make() if depends else torch.sin
    compiled: Any = fxjit.compile(lambda x: program(x), backend="native")
    x = torch.randn(16, 16)
    undo = None
    with torch.no_grad():
        try:
            for compiles in (1, 1 + depends):
                torch.testing.assert_close(compiled(x), program(x))
                assert counters["frames"]["ok"] == compiles
                undo = undo or change()
        finally:
            undo and undo()
        torch.testing.assert_close(compiled(x), program(x))
    assert counters["frames"]["ok"] == 1 + depends


def test_every_kind_and_every_state_has_its_pair() -> None:
    all_kinds = {name for name in kinds.__all__ if isinstance(getattr(kinds, name), type)
                 and issubclass(getattr(kinds, name), kinds.Guard) and name != "Guard"}
    assert set(CASES) == all_kinds
    assert set(STATES) | RUN_EAGERLY == set(AmbientState.__dataclass_fields__)
    assert set(ASKED) == set(QUERYABLE)
