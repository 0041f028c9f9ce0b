"""Mutation test of the guards: for everything that guard trees are made of (tree.def), a program whose trace relies on it. The
fact changes, and the entry must not be used: the result is eager's, with the fast path warm and cold.

The table is held against tree.def: a check, condition or accessor without a case fails the last test.
"""

from __future__ import annotations

import builtins
import copy
import copyreg
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.guards.test_catalogue import Other, Thing, by_three, by_two, made, made_before_its_factor

import fxjit
from fxjit import _C, config, tensor_shim
from fxjit.guards import tree

WARM = 18  # calls, after which there is a snapshot
Program = Callable[[torch.Tensor, Any], Any]

factor = 2


@dataclass(frozen=True)
class Case:
    """`program(x, world)` relies on the fact about `world()`; `change(world)` makes it untrue, and may give the way back, or
    another world."""

    program: Program
    world: Callable[[], Any]
    change: Callable[[Any], Any]
    dynamic: bool | None = None
    whole: bool = False  # the program is the frame itself: the fact is about its own closure


def _set(**attributes: Any) -> Callable[[Thing], None]:
    return lambda world: world.__dict__.update(attributes)


def _with_global(x: torch.Tensor, world: Any) -> torch.Tensor:
    return x * factor


def _change_global(world: Any) -> Callable[[], None]:
    globals()["factor"] = 3
    return lambda: globals().update(factor=2)


def _with_builtin(x: torch.Tensor, world: Any) -> torch.Tensor:
    return x * len([1, 2, 3])


def _change_builtin(world: Any) -> Callable[[], None]:
    was = builtins.len
    builtins.len = lambda items: 7  # type: ignore[assignment]  # a program may
    return lambda: setattr(builtins, "len", was)


def _with_a_variable(over: int) -> tuple[Program, Callable[[Any], Any]]:
    def program(x: torch.Tensor, world: Any) -> torch.Tensor:
        return x * over

    def change(world: Any) -> Callable[[], None]:
        nonlocal over
        was, over = over, 7
        return lambda: set_(was)

    def set_(value: int) -> None:
        nonlocal over
        over = value

    return program, change


def _with_a_variable_unset() -> tuple[Program, Callable[[Any], Any]]:
    def program(x: torch.Tensor, world: Any) -> torch.Tensor:
        try:
            return x * number
        except NameError:
            return x + 1

    def change(world: Any) -> Callable[[], None]:
        nonlocal number
        number = 5
        return unset

    def unset() -> None:
        nonlocal number
        del number

    if not program:
        number = 1
    return program, change


def _grad_off(world: Any) -> Callable[[], object]:
    torch.set_grad_enabled(False)
    return lambda: torch.set_grad_enabled(True)


def _default_device(world: Any) -> Callable[[], object]:
    manager = torch.device("meta")
    manager.__enter__()
    return lambda: manager.__exit__(None, None, None)


def _copied_otherwise(world: Any) -> Callable[[], object]:
    copyreg.pickle(Thing, lambda thing: (_made_otherwise, ()))
    return lambda: copyreg.dispatch_table.pop(Thing)


def _made_otherwise() -> Thing:
    return Thing(n=9)


class Keyed:
    def __init__(self, number: int) -> None:
        self.number = number


def _local_class(**namespace: Any) -> Any:
    return type("Local", (Other,), namespace)()


_ONE = torch.ones(3)
_deref, _set_deref = _with_a_variable(2)
_unset, _set_unset = _with_a_variable_unset()

NUMBER = 2


def by_number(x: torch.Tensor) -> torch.Tensor:
    return x * NUMBER


by_other_number = types.FunctionType(by_number.__code__, {"NUMBER": 3})

CASES: dict[str, Case] = {
    # checks
    "type": Case(lambda x, w: x * len(type(w.thing).__name__), lambda: Thing(thing=Thing()), _set(thing=3)),
    "is": Case(lambda x, w: w.fn(x), lambda: Thing(fn=torch.sin), _set(fn=torch.cos)),
    "tensor": Case(lambda x, w: x + w.t, lambda: Thing(t=torch.ones(3)), _set(t=torch.ones(3, dtype=torch.float64))),
    "code": Case(lambda x, w: w.fn(x), lambda: Thing(fn=by_two), _set(fn=by_three)),
    "namespace": Case(lambda x, w: w.fn(x), lambda: Thing(fn=by_number), _set(fn=by_other_number)),
    "const": Case(lambda x, w: x * w.number, lambda: Thing(number=2.5), _set(number=-0.5)),
    "length": Case(lambda x, w: x * len(w.items), lambda: Thing(items=[1, 2]), lambda w: w.items.append(3)),
    "instance_has_attr": Case(lambda x, w: x * (2 if hasattr(w.thing, "more") else 3), lambda: Thing(thing=Thing()),
                              lambda w: setattr(w.thing, "more", 1)),
    "has_key": Case(lambda x, w: x * (2 if "a" in w.table else 3), lambda: Thing(table={"a": 1}), lambda w: w.table.clear()),
    "keys": Case(lambda x, w: x * sum(map(len, w.table)), lambda: Thing(table={"a": 1}), lambda w: w.table.update(bc=1)),
    "set": Case(lambda x, w: x * (2 if "a" in w.names else 3), lambda: Thing(names={"a"}), lambda w: w.names.discard("a")),
    "found_in": Case(lambda x, w: x * w.thing.scale, lambda: Thing(thing=_local_class(scale=2)),
                     lambda w: setattr(type(w.thing), "scale", property(lambda thing: 5))),
    "bases": Case(lambda x, w: x * (2 if isinstance(w.thing, Other) else 3), lambda: Thing(thing=_local_class()),
                  lambda w: setattr(type(w.thing), "__bases__", (Thing,))),
    "has_attr": Case(lambda x, w: x * getattr(w.fn, "scale", 2), lambda: Thing(fn=made(2)),
                     lambda w: setattr(w.fn, "scale", 3)),
    # conditions
    "state": Case(lambda x, w: w.t * 2, lambda: Thing(t=torch.ones(3, requires_grad=True)), _grad_off),
    "probe": Case(lambda x, w: w.t * 2, lambda: Thing(t=torch.ones(3, requires_grad=True)), _grad_off),
    "dict_item": Case(lambda x, w: torch.ones(2) + 1, Thing, _default_device),
    "same": Case(lambda x, w: x + w.a + w.b, lambda: Thing(a=_ONE, b=_ONE), _set(b=torch.zeros(3))),
    "distinct": Case(lambda x, w: x * (2 if w.a is w.b else 3), lambda: Thing(a=Thing(), b=Thing()),
                     lambda w: _set(b=w.a)(w)),
    "shape": Case(lambda x, w: x * w.t.size(0) if w.t.size(0) > 5 else x, lambda: Thing(t=torch.ones(8)), _set(t=torch.ones(3)),
                  dynamic=True),
    "python": Case(lambda x, w: w.fn(x), lambda: Thing(fn=made_before_its_factor()),
                   lambda w: setattr(w.fn.__closure__[0], "cell_contents", 3)),
    # accessors
    "get arg": Case(lambda x, w: x * w, lambda: 2, lambda w: 3),
    "get deref": Case(_deref, Thing, _set_deref, whole=True),
    "get cell": Case(_unset, Thing, _set_unset, whole=True),
    "get globals": Case(_with_global, Thing, _change_global),
    "get builtins": Case(_with_builtin, Thing, _change_builtin),
    "get const": Case(lambda x, w: x * copy.copy(w.thing).n, lambda: Thing(thing=Thing(n=2)), _copied_otherwise),
    "get class": Case(lambda x, w: x * w.thing.scale, lambda: Thing(thing=_local_class(scale=2)),
                      lambda w: setattr(type(w.thing), "scale", 5)),
    "get attr": Case(lambda x, w: x * w.fn.__defaults__[0], lambda: Thing(fn=lambda n=2: n),
                     lambda w: setattr(w.fn, "__defaults__", (3,))),
    "get item": Case(lambda x, w: x * w.items[1], lambda: Thing(items=[1, 2]), lambda w: w.items.__setitem__(1, 5)),
    "get key": Case(lambda x, w: x * next(iter(w.table)).number, lambda: Thing(table={Keyed(2): 1}),
                    lambda w: setattr(next(iter(w.table)), "number", 5)),
    "get value": Case(lambda x, w: x * sum(w.table.values()), lambda: Thing(table={7: 1, 8: 2}),
                      lambda w: w.table.__setitem__(8, 5)),
    "get class_item": Case(lambda x, w: x * w.thing.scale, lambda: Thing(thing=_local_class(scale=2)),
                           lambda w: setattr(type(w.thing), "scale", 5)),
    "get instance_dict": Case(lambda x, w: x * w.thing.n, lambda: Thing(thing=Thing(n=2)), lambda w: setattr(w.thing, "n", 4)),
    "get cell_contents": Case(lambda x, w: w.fn(x), lambda: Thing(fn=made(2)),
                              lambda w: setattr(w.fn.__closure__[0], "cell_contents", 3)),
    "get call": Case(lambda x, w: x * w.ref().number, lambda: (lambda it: Thing(it=it, ref=weakref.ref(it)))(Keyed(2)),
                     lambda w: setattr(w.it, "number", 5)),
    "get apply": Case(lambda x, w: x + torch.from_numpy(w.n), lambda: Thing(n=torch.ones(3).numpy()),
                      _set(n=torch.ones(3).double().numpy())),
    "get tensor_size": Case(lambda x, w: x * 2 if w.t.size(0) > 5 else x, lambda: Thing(t=torch.ones(8)),
                            _set(t=torch.ones(4)), dynamic=True),
    "get tensor_stride": Case(lambda x, w: x * 2 if w.t.stride(0) > 9 else x + w.t.sum(), lambda: Thing(t=torch.ones(4, 8)),
                              _set(t=torch.ones(4, 16)[:, :8]), dynamic=True),
    "get tensor_offset": Case(lambda x, w: x * 2 if w.t.storage_offset() > 3 else x + w.t.sum(),
                              lambda: Thing(t=torch.ones(8)[2:6]), _set(t=torch.ones(10)[5:9]), dynamic=True),
}
#: What no trace relies on: "never" stands for a fact about an object that is gone before the tree is built, and no value has
#: a source that goes by "type" alone.
WITHOUT_A_CASE = {"never", "get type"}


class Recorder:
    """What the guard trees that are built meanwhile are made of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: set[str] = set()
        self.trees: list[Any] = []
        real = tree.GuardTree

        def build(nodes: Any, conditions: Any, *rest: Any) -> Any:
            for node in nodes:
                self.found |= {f"get {node[2]}", *(op[0] for _, op in node[6])}
            self.found |= {op[0] for _, _, op in conditions}
            self.trees.append(real(nodes, conditions, *rest))
            return self.trees[-1]

        monkeypatch.setattr(tree, "GuardTree", build)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("name", CASES)
def test_an_entry_is_not_used_once_a_fact_changed(name: str, warm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case, recorder = CASES[name], Recorder(monkeypatch)
    if name == "probe":  # what asks Python, where torch's memory is not known
        monkeypatch.setattr(tensor_shim, "readable_states", frozenset)
    program = case.program if case.whole else _beside_many(case.program, Thing(**dict.fromkeys(NAMES, 0)))
    compiled = fxjit.compile(program, backend="eager", dynamic=case.dynamic)
    x, world = torch.arange(1.0, 4.0), case.world()
    for _ in range(WARM if warm else 1):
        before = compiled(x, world)
    assert_same(before, case.program(x, world))
    assert name in recorder.found
    assert case.whole or any(each.has_snapshot for each in recorder.trees) is warm
    changed = case.change(world)
    try:
        world = changed if isinstance(changed, int) else world
        found, wanted = compiled(x, world), case.program(x, world)
    finally:
        if callable(changed):
            changed()
    assert not is_same(before, wanted), "the change does not show"
    assert_same(found, wanted)


@pytest.mark.parametrize("name", CASES)
def test_a_stored_entry_is_not_used_once_a_fact_changed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where the entry comes from the disk, as it does in another process."""
    case = CASES[name]
    if name == "probe":
        monkeypatch.setattr(tensor_shim, "readable_states", frozenset)
    with config.patch(store_entries=True, cache_graphs=True, cache_dir=str(tmp_path)):
        x, world = torch.arange(1.0, 4.0), case.world()
        for _ in range(2):
            before = fxjit.compile(case.program, backend="eager", dynamic=case.dynamic)(x, world)
            assert_same(before, case.program(x, world))
            fxjit.reset()
        changed = case.change(world)
        try:
            world = changed if isinstance(changed, int) else world
            found = fxjit.compile(case.program, backend="eager", dynamic=case.dynamic)(x, world)
            wanted = case.program(x, world)
        finally:
            if callable(changed):
                changed()
    assert not is_same(before, wanted), "the change does not show"
    assert_same(found, wanted)


NAMES = [f"number_{index}" for index in range(12)]


def _beside_many(program: Program, many: Thing) -> Program:
    """The program, beside an object of which so much is guarded that the fast path is taken for the tree."""
    def run(x: torch.Tensor, world: Any) -> Any:
        for name in NAMES:
            if getattr(many, name):
                return None
        return program(x, world)

    return run


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    facts = [(each.dtype, each.shape, each.device, each.requires_grad) for each in (a, b)]
    return facts[0] == facts[1] and (a.is_meta or torch.equal(a, b))


def assert_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert is_same(found, wanted), f"{found} instead of {wanted}"


def test_everything_that_trees_are_made_of_has_a_case() -> None:
    names = {name for name, _ in _C.CHECKS} | {name for name, _, _ in _C.CONDITIONS}
    names |= {f"get {name}" for name, _ in _C.ACCESSORS}
    assert set(CASES) | WITHOUT_A_CASE == names
