"""The C tree as a citizen of the interpreter: references, the collector, exceptions, re-entry, the cost of a check."""

from __future__ import annotations

import gc
import resource
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from frames import Frame, X, Y

from fxjit import _C
from fxjit.guards import kinds
from fxjit.guards.ambient import AmbientState
from fxjit.guards.kinds import (
    AmbientIs,
    ConstIs,
    Guard,
    HasAttr,
    HasKey,
    IdIs,
    InstanceHasAttr,
    KeysAre,
    LengthIs,
    NotSameObject,
    PythonCheck,
    SameObject,
    SetIs,
    TensorIs,
    TensorSpec,
    TypeIs,
)
from fxjit.guards.source import (
    AttrSource,
    BuiltinSource,
    CallSource,
    ClosureSource,
    ConstSource,
    DictKeySource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    Source,
    TensorSizeSource,
    TypeSource,
)
from fxjit.guards.tree import build_tree


class Thing:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


KEY = Thing()


def everything() -> tuple[Frame, list[Guard]]:
    """A frame and guards that use every accessor and every check, all of which hold."""
    tensor = torch.ones(3, 4)
    x = Thing(table={"a": [1, 2.5], KEY: 3}, t=tensor, elements={"p", KEY}, pair=(1, "é"))
    frame = Frame(globals={"g": x}, closure={"c": [x]}, x=x, y=weakref.ref(x))
    table = AttrSource(X, "table")
    guards: list[Guard] = [
        TypeIs(X, Thing),
        IdIs(GlobalSource("g"), x),
        KeysAre(InstanceDictSource(X), tuple(vars(x))),
        KeysAre(table, ("a", KEY)),
        LengthIs(table, 2),
        ConstIs(ItemSource(ItemSource(table, "a"), 1), 2.5),
        ConstIs(ItemSource(table, KEY), 3),
        IdIs(DictKeySource(table, 1), KEY),
        SetIs(AttrSource(X, "elements"), frozenset(x.elements)),
        ConstIs(AttrSource(X, "pair"), (1, "é")),
        TensorIs(AttrSource(X, "t"), TensorSpec.of(tensor)),
        ConstIs(TensorSizeSource(AttrSource(X, "t"), 1), 4),
        SameObject(X, CallSource(Y)),
        NotSameObject((X, Y, AttrSource(X, "t"))),
        HasKey(table, "a", True),
        HasKey(table, "b", False),
        HasAttr(X, "pair", True),
        HasAttr(X, "q", False),
        InstanceHasAttr(X, "t", True),
        IdIs(BuiltinSource("len"), len),
        IdIs(ItemSource(ClosureSource("c"), 0), x),
        IdIs(TypeSource(X), Thing),
        IdIs(ConstSource(KEY, "key"), KEY),
        PythonCheck((X, AttrSource(X, "t")), lambda thing, t: thing.t is t, "x.t is itself"),
    ]
    guards += [AmbientIs(name, value) for name, value in AmbientState.capture().items()]
    return frame, guards


def counts(frame: Frame) -> list[int]:
    x = frame.args[0]
    watched = [
        x,
        frame.args[1],
        x.table,
        x.t,
        x.pair,
        x.elements,
        KEY,
        Thing,
        frame.globals,
        frame.builtins,
        None,
        True,
    ]
    return [sys.getrefcount(obj) for obj in watched]


def test_checks_keep_no_references() -> None:
    frame, guards = everything()
    tree = frame.tree(*guards)
    wrong = Frame(globals=frame.globals, closure={"c": [frame.args[0]]}, x=frame.args[0], y=weakref.ref(KEY))
    assert tree.check(*frame.parts) and not tree.check(*wrong.parts)
    gc.collect()
    before = counts(frame)
    for _ in range(100_000):
        tree.check(*frame.parts)
    for _ in range(20_000):
        tree.check(*wrong.parts)
    for _ in range(2_000):
        tree.first_failure(*wrong.parts)
    after = counts(frame)
    assert all(abs(a - b) < 20 for a, b in zip(before, after, strict=True)), (before, after)


def test_failing_at_each_guard_keeps_no_references() -> None:
    frame, guards = everything()
    trees = [frame.tree(guard) for guard in guards if guard.sources]
    empty = Frame(globals={}, closure={"c": []}, x=Thing(), y=Thing())
    before = [sys.getrefcount(obj) for obj in (*empty.args, None, Thing)]
    for _ in range(2_000):
        for tree in trees:
            tree.check(*empty.parts)
    after = [sys.getrefcount(obj) for obj in (*empty.args, None, Thing)]
    assert all(abs(a - b) < 20 for a, b in zip(before, after, strict=True)), (before, after)


def test_building_and_checking_does_not_grow() -> None:
    frame, guards = everything()

    def rounds(n: int) -> int:
        for _ in range(n):
            assert frame.tree(*guards).check(*frame.parts)
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    rounds(300)
    before = rounds(300)
    assert rounds(1500) - before < 4_000, "kilobytes"


def test_a_broken_tree_is_refused_and_leaks_nothing() -> None:
    good = (-1, 1, "arg", 0, -1, 0, ((0, ("type", int)),))
    for nodes, conditions in [
        (((-1, 1, "nonsense", 0, -1, 0, ()),), ()),
        (((-1, 1, "attr", "a", -1, 0, ()),), ()),
        (((-1, 2, "arg", 0, -1, 0, ()),), ()),
        (((-1, 1, "arg", -1, -1, 0, ()),), ()),
        (((-1, 1, "arg", "zero", -1, 0, ()),), ()),
        (((-1, 1, "arg", 0, 7, 0, ()),), ()),
        ((good, (0, 2, "attr", 5, -1, 0, ())), ()),
        (((-1, 1, "arg", 0, -1, 0, ((0, ("no such check", 1)),)),), ()),
        (((-1, 1, "arg", 0, -1, 0, ((0, ("type",)),)),), ()),
        (((-1, 1, "arg", 0, -1, 0, ((0, ("keys", ("a",))),)),), ()),
        ((good,), ((0, (0,), ("python", len)),)),
        ((good,), ((0, (), ("shape", (1, 0))),)),
        ((good,), ((0, (), ("shape", (99,))),)),
        ((good,), ((0, (), ("shape", ())),)),
        ((good,), ((0, (), ("probe", 1)),)),
        (("no tuple",), ()),
    ]:
        with pytest.raises((ValueError, TypeError)):
            _C.GuardTree(nodes, conditions, 0, 0, ())


@pytest.mark.parametrize("row", [*_C.CHECKS, *_C.CONDITIONS], ids=lambda row: str(row[0]))
def test_each_check_and_condition_takes_as_many_operands_as_its_row_says(row: tuple[Any, ...]) -> None:
    name, operands = row[:2]
    for given in {operands - 1, operands + 1} - {-1}:
        op = (name, *(0 for _ in range(given)))
        checks, conditions = (((0, op),), ()) if row in _C.CHECKS else ((), ((0, (0, 0), op),))
        with pytest.raises(ValueError, match=f"takes {operands} operands"):
            _C.GuardTree(((-1, 1, "arg", 0, 0, 0, checks),), conditions, 0, 1, ())


def test_each_row_of_the_tables_is_made_by_some_guard_or_source() -> None:
    """And no guard, and no source, is made of anything else: the tree refuses what is in no table."""
    folder = Path(kinds.__file__).parent
    made = "".join((folder / f"{name}.py").read_text() for name in ("kinds", "ambient", "source", "tree"))
    names = [row[0] for row in (*_C.CHECKS, *_C.CONDITIONS, *_C.ACCESSORS)]
    assert not [name for name in names if f'"{name}"' not in made]
    assert len(set(_C.SHAPE_OPS)) == len(_C.SHAPE_OPS) and {"const", "var"} <= set(_C.SHAPE_OPS)


# -- the collector -------------------------------------------------------------------------------------------------


def test_a_tree_in_a_cycle_is_collected() -> None:
    holder: list[Any] = []  # no weak references to lists: held strongly
    key = ItemSource(X, 0)
    tree = Frame(x=holder).tree(
        IdIs(X, holder), PythonCheck((key,), lambda value, held=holder: value is held, "cycle"), ConstIs(key, (holder,))
    )
    holder.append(tree)
    gone = weakref.ref(tree)
    del tree, holder
    gc.collect()
    assert gone() is None


def test_a_tree_used_by_a_finalizer_while_it_dies() -> None:
    answers: list[bool] = []

    class Last:
        def __del__(self) -> None:
            answers.append(tree_ref.check((1,), None, {}, {}))

    holder: list[Any] = [Last()]
    tree_ref = Frame(x=1).tree(ConstIs(X, 1), PythonCheck((X,), lambda value, held=holder: held is not None, "x"))
    holder.append(tree_ref)
    del holder
    gc.collect()
    tree_ref = Frame(x=1).tree(ConstIs(X, 1))
    gc.collect()
    assert answers == [True]


# -- exceptions ----------------------------------------------------------------------------------------------------


class Rude:
    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error(name)

    def __len__(self) -> int:
        raise self.error

    def __iter__(self) -> Any:
        raise self.error

    def __contains__(self, key: object) -> bool:
        raise self.error

    def __getitem__(self, key: object) -> Any:
        raise self.error

    def __call__(self) -> Any:
        raise self.error

    def __bool__(self) -> bool:
        raise self.error


RUDE_GUARDS = [
    HasAttr(X, "a", True),
    HasAttr(X, "a", False),
    LengthIs(X, 0),
    KeysAre(X, ()),
    HasKey(X, 1, False),
    TypeIs(ItemSource(X, 1), int),
    TypeIs(CallSource(X), int),
    TypeIs(AttrSource(X, "a"), int),
    TypeIs(DictKeySource(X, 0), int),
    PythonCheck((X,), lambda x: x, "truth of x"),
]


@pytest.mark.parametrize("guard", RUDE_GUARDS, ids=str)
def test_no_exception_escapes(guard: Guard) -> None:
    frame = Frame(x=Rude(ZeroDivisionError))
    tree = frame.tree(guard)
    for _ in range(3):
        assert tree.check(*frame.parts) is False
    assert tree.first_failure(*frame.parts) == (0, guard)
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("guard", RUDE_GUARDS, ids=str)
def test_ctrl_c_passes_through(guard: Guard) -> None:
    frame = Frame(x=Rude(KeyboardInterrupt))
    tree = frame.tree(guard)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            tree.check(*frame.parts)
    with pytest.raises(KeyboardInterrupt):
        tree.first_failure(*frame.parts)


def test_an_objects_type_is_checked_before_its_attributes_are_asked_for() -> None:
    asked: list[str] = []

    class Spy:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            raise AttributeError(name)

    tree = Frame(x=1).tree(ConstIs(AttrSource(X, "field"), 1), HasAttr(X, "field", True), TypeIs(X, Thing))
    assert tree.check((Thing(field=1),), None, {}, {})
    assert not tree.check((Thing(field=2),), None, {}, {})
    assert not tree.check((Spy(),), None, {}, {}), (
        "the check that failed last is tried first, yet the type comes before"
    )
    assert not asked


# -- re-entry ------------------------------------------------------------------------------------------------------


def test_a_check_that_runs_the_same_tree() -> None:
    depth = 0

    def again(value: int) -> bool:
        nonlocal depth
        depth += 1
        return depth > 5 or tree.check((value, 2), None, {}, {})

    tree = Frame(x=1, y=2).tree(PythonCheck((X,), again, "again"), SameObject(Y, Y), ConstIs(Y, 2))
    assert tree.check((1, 2), None, {}, {})
    assert depth == 6


def test_a_check_that_drops_the_tree_and_changes_the_containers() -> None:
    held: dict[str, Any] = {}
    items = [Thing(), Thing()]

    def havoc(value: Any) -> bool:
        held.clear()
        items.clear()
        gc.collect()
        return True

    guards = (
        PythonCheck((ItemSource(X, 0),), havoc, "havoc"),
        TypeIs(ItemSource(X, 1), Thing),
        NotSameObject((ItemSource(X, 0), ItemSource(X, 1))),
    )
    held["tree"] = Frame(x=items).tree(*guards)
    assert held["tree"].check((items,), None, {}, {})


def test_deep_sources() -> None:
    source: Source = X
    nested: Any = 5
    for _ in range(300):
        source = ItemSource(source, 0)
        nested = [nested]
    frame = Frame(x=nested)
    tree = frame.tree(ConstIs(source, 5))
    assert tree.check(*frame.parts) and tree.num_nodes == 301
    while isinstance(nested, list):
        nested = nested.pop()


# -- shape of the tree ---------------------------------------------------------------------------------------------


def test_shared_prefixes_are_fetched_once() -> None:
    fetched = 0

    class Counting:
        @property
        def field(self) -> Thing:
            nonlocal fetched
            fetched += 1
            return Thing(a=1, b=2, c=3)

    base = AttrSource(X, "field")
    frame = Frame(x=Counting())
    tree = frame.tree(*(ConstIs(AttrSource(base, name), value) for name, value in (("a", 1), ("b", 2), ("c", 3))))
    assert tree.num_nodes == 5 and tree.num_guards == 3
    assert tree.check(*frame.parts) and fetched == 1


def test_the_check_that_failed_last_is_tried_first() -> None:
    asked: list[str] = []

    def checking(name: str) -> Guard:
        def check(value: Any) -> bool:
            asked.append(name)
            return bool(value[name])

        return PythonCheck((X,), check, name)

    tree = Frame(x=1).tree(checking("first"), checking("second"))
    bad, good = {"first": True, "second": False}, {"first": True, "second": True}
    tree.check((bad,), None, {}, {})
    assert asked == ["first", "second"]
    asked.clear()
    tree.check((bad,), None, {}, {})
    assert asked == ["second"]
    asked.clear()
    assert tree.check((good,), None, {}, {})
    assert asked == ["second", "first", "second"]
    asked.clear()
    assert tree.check((good,), None, {}, {})
    assert asked == ["first", "second"], "all is well again"


def test_no_guards_always_hold() -> None:
    tree = Frame().tree()
    assert tree.check((), None, {}, {}) and tree.num_guards == 0
    assert tree.first_failure((), None, {}, {}) is None


def test_too_few_arguments_do_not_hold() -> None:
    tree = Frame(x=1, y=2).tree(TypeIs(Y, int))
    assert not tree.check((1,), None, {}, {})
    with_closure = build_tree(Frame().tree().guards or _none(), (), ())
    assert with_closure.check((), None, {}, {})


def _none() -> Any:
    from fxjit.guards.kinds import GuardSet

    return GuardSet()


# -- cost ----------------------------------------------------------------------------------------------------------


def parameters_of_a_model(layers: int) -> tuple[Frame, list[Guard]]:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)))
    modules = ItemSource(InstanceDictSource(X), "_modules")
    guards: list[Guard] = [TypeIs(X, torch.nn.Sequential)]
    for index, layer in enumerate(model):
        module = ItemSource(modules, str(index))
        guards.append(TypeIs(module, torch.nn.Linear))
        parameters = ItemSource(InstanceDictSource(module), "_parameters")
        for name, parameter in layer.named_parameters():
            guards.append(TensorIs(ItemSource(parameters, name), TensorSpec.of(parameter)))
    return Frame(x=model), guards


def test_two_hundred_parameters_take_microseconds() -> None:
    frame, guards = parameters_of_a_model(100)
    tree = frame.tree(*guards)
    assert tree.num_python == 0
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(50):
            tree.check(*frame.parts)
        best = min(best, (time.perf_counter() - start) / 50)
    assert best < 100e-6, f"{best * 1e6:.1f} us; about 10 are usual"
