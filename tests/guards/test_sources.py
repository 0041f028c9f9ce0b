"""A source finds the same object three ways: fetched in Python, loaded by code, and reached by the C tree."""

from __future__ import annotations

import collections
import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frames import Frame, Missing, X

from fxjit.frontend.bytecode.asm import Asm
from fxjit.guards.parts import TogetherSource
from fxjit.guards.source import (
    ApplySource,
    AttrSource,
    BuiltinSource,
    CallSource,
    CellContentsSource,
    ClassItemSource,
    ClosureCellSource,
    ClosureSource,
    ConstSource,
    DictKeySource,
    DictValueSource,
    GlobalSource,
    GlobalsSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    RandomSource,
    Source,
    TensorOffsetSource,
    TensorSizeSource,
    TensorStrideSource,
    TypeSource,
    get_item,
)


class RunningLoader:
    """A Loader that does at once what the bytecode would do."""

    def __init__(self, frame: Frame) -> None:
        self.scope = frame.scope
        self.stack: list[Any] = []

    def load_local(self, name: str) -> None:
        self.stack.append(self.scope.args[name])

    def load_deref(self, name: str) -> None:
        self.stack.append(self.scope.closure[name].cell_contents)

    def load_cell(self, name: str) -> None:
        self.stack.append(self.scope.closure[name])

    def load_global(self, name: str) -> None:
        self.stack.append(self.scope.globals[name])

    def load_builtin(self, name: str) -> None:
        self.stack.append(self.scope.builtins[name])

    def load_source(self, source: Source) -> None:
        source.load(self)

    def load_globals(self) -> None:
        self.stack.append(self.scope.globals)

    def load_const(self, obj: object) -> None:
        self.stack.append(obj)

    def load_attr(self, name: str) -> None:
        self.stack.append(getattr(self.stack.pop(), name))

    def load_item(self, key: Any) -> None:
        self.stack.append(self.stack.pop()[key])

    def begin_call(self, fn: Callable[..., object]) -> None:
        self.stack.append(fn)

    def call(self, nargs: int) -> None:
        args = self.stack[len(self.stack) - nargs :]
        del self.stack[len(self.stack) - nargs :]
        self.stack.append(self.stack.pop()(*args))


def loaded(source: Source, frame: Frame) -> Any:
    loader = RunningLoader(frame)
    source.load(loader)
    (result,) = loader.stack
    return result


def compiled(source: Source, frame: Frame) -> Any:
    """What the bytecode that loads the source gives."""
    asm = Asm(frame.arg_names, frame.freevars)
    asm.prologue()
    source.load(asm)
    asm.return_value()
    code = asm.finish(sample_frame.__code__)
    return types.FunctionType(code, frame.globals, closure=frame.closure)(*frame.args)


class Color(enum.Enum):
    RED = 1


class Thing:
    kind = "thing"

    def __init__(self) -> None:
        self.size = (3, 4)
        self.table = {"a": [1, 2], 5: "five", Color.RED: "red", None: 0, (1, "t"): 2.5}

    @property
    def doubled(self) -> tuple[int, ...]:
        return self.size * 2

    def __getattr__(self, name: str) -> Any:
        if name.startswith("made_"):
            return name
        raise AttributeError(name)


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = {"k": 1}


def helper(a: int, b: int = 7, *, c: str = "see") -> int:
    return a


THING = Thing()
MODULE = types.ModuleType("a_module")
MODULE.number = 12
MODULE._private = 13
MODULE.__getattr__ = lambda name: f"made {name}"
NT = collections.namedtuple("NT", "p q")


def sample_frame() -> Frame:
    return Frame(
        globals={"THING": THING, "helper": helper, "MODULE": MODULE},
        closure={"captured": [10, 20], "other": THING},
        x=THING,
        y=[1, (2, 3), {"z": "zed"}],
        t=torch.arange(24).view(2, 3, 4)[1:, ::2],
        ordered=collections.OrderedDict(one=1, two=2),
        default=collections.defaultdict(list, a=[1]),
        slotted=Slotted(),
        ref=weakref.ref(THING),
        partial=functools.partial(helper, 3, c="x"),
        some={"only"},
        named=NT(1, "two"),
        queue=collections.deque([5, 6]),
        cell=types.CellType("inside"),
        size=torch.Size([2, 3]),
        method=THING.__init__,
    )


Y, T = LocalSource("y"), LocalSource("t")

SOURCES = [
    X,
    ClosureSource("captured"),
    ItemSource(ClosureSource("captured"), 1),
    ClosureCellSource("captured"),
    CellContentsSource(ClosureCellSource("other")),
    CellContentsSource(LocalSource("cell")),
    GlobalSource("THING"),
    GlobalsSource(),
    ItemSource(GlobalsSource(), "helper"),
    BuiltinSource("len"),
    ConstSource(THING, "thing"),
    ConstSource([1], "a list"),
    AttrSource(X, "size"),
    AttrSource(X, "kind"),
    AttrSource(X, "doubled"),
    AttrSource(X, "made_up"),
    ItemSource(AttrSource(X, "table"), "a"),
    ItemSource(AttrSource(X, "table"), 5),
    ItemSource(AttrSource(X, "table"), Color.RED),
    ItemSource(AttrSource(X, "table"), None),
    ItemSource(AttrSource(X, "table"), (1, "t")),
    ItemSource(ItemSource(Y, 1), 0),
    ItemSource(Y, -1),
    ItemSource(ItemSource(Y, 2), "z"),
    ItemSource(LocalSource("ordered"), "two"),
    ItemSource(LocalSource("default"), "a"),
    ItemSource(LocalSource("named"), 1),
    ItemSource(LocalSource("queue"), 0),
    ItemSource(LocalSource("size"), 1),
    ItemSource(AttrSource(TypeSource(X), "__mro__"), 1),
    ItemSource(AttrSource(TypeSource(X), "__dict__"), "doubled"),
    ClassItemSource(TypeSource(X), "doubled"),
    DictKeySource(AttrSource(X, "table"), 2),
    DictKeySource(LocalSource("ordered"), 1),
    DictValueSource(AttrSource(X, "table"), 2),
    DictValueSource(LocalSource("ordered"), 1),
    DictKeySource(LocalSource("some"), 0),
    TypeSource(X),
    InstanceDictSource(X),
    ItemSource(InstanceDictSource(X), "size"),
    InstanceDictSource(GlobalSource("MODULE")),
    ItemSource(InstanceDictSource(TypeSource(X)), "kind"),
    AttrSource(GlobalSource("MODULE"), "number"),
    AttrSource(GlobalSource("MODULE"), "__name__"),
    AttrSource(GlobalSource("MODULE"), "made"),
    AttrSource(GlobalSource("MODULE"), "_private"),
    AttrSource(LocalSource("slotted"), "value"),
    CallSource(LocalSource("ref")),
    ItemSource(AttrSource(GlobalSource("helper"), "__defaults__"), 0),
    ItemSource(AttrSource(GlobalSource("helper"), "__kwdefaults__"), "c"),
    # The globals of an inlined function, reached through the function and as a constant.
    ItemSource(AttrSource(GlobalSource("helper"), "__globals__"), "THING"),
    ItemSource(ConstSource(helper.__globals__, "globals of helper"), "THING"),
    AttrSource(LocalSource("partial"), "func"),
    ItemSource(AttrSource(LocalSource("partial"), "keywords"), "c"),
    AttrSource(LocalSource("method"), "__self__"),
    ApplySource(Y, len),
    ApplySource(TogetherSource((AttrSource(X, "kind"), ItemSource(Y, 0), ApplySource(TogetherSource((Y, X)), len))), str),
    TensorSizeSource(T, 1),
    TensorSizeSource(T, -1),
    TensorStrideSource(T, 0),
    TensorOffsetSource(T),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_fetched_loaded_and_reached_in_c_are_one(source: Source) -> None:
    frame = sample_frame()
    frame.globals["__builtins__"] = frame.builtins
    fetched = source.fetch(frame.scope)
    for other in (loaded(source, frame), frame.in_c(source), compiled(source, frame)):
        assert other is fetched or (type(other) is type(fetched) and other == fetched)


def test_every_source_class_is_tried() -> None:
    def leaves(cls: type) -> set[type]:
        below = cls.__subclasses__()
        return {leaf for sub in below for leaf in leaves(sub)} if below else {cls}

    # What is drawn at random lies in a local of the new code: no guard and nobody else looks there. Several objects lead
    # somewhere together.
    assert {type(source) for source in SOURCES} == leaves(Source) - {RandomSource, TogetherSource}


def test_names_read_like_python() -> None:
    module = ItemSource(ItemSource(InstanceDictSource(X), "_modules"), "0")
    weight = ItemSource(ItemSource(InstanceDictSource(module), "_parameters"), "weight")
    assert weight.name == "x[0].weight"
    assert ItemSource(AttrSource(X, "layers"), 0).name == "x.layers[0]"
    assert ItemSource(Y, "key").name == "y['key']"
    assert TensorSizeSource(Y, 1).name == "y.size(1)"
    assert DictKeySource(Y, 3).name == "list(y)[3]"
    assert DictValueSource(Y, 3).name == "list(y.values())[3]"


def test_equal_sources_hash_alike_and_others_differ() -> None:
    def make() -> list[Source]:
        return [
            ItemSource(AttrSource(X, "a"), 1),
            ItemSource(AttrSource(X, "a"), True),
            ItemSource(X, 1.0),
            ItemSource(X, 1),
            AttrSource(X, "b"),
            AttrSource(Y, "b"),
            TensorSizeSource(X, 0),
            TensorStrideSource(X, 0),
            GlobalSource("x"),
            LocalSource("x"),
            BuiltinSource("x"),
            ConstSource(helper, "h"),
            ConstSource(THING, "h"),
        ]

    one, two = make(), make()
    assert one == two
    assert len(set(one + two)) == len(one)
    assert hash(one[0]) == hash(two[0])


def test_a_constant_source_is_about_one_object() -> None:
    assert ConstSource([], "a") != ConstSource([], "a")
    shared: list[int] = []
    assert ConstSource(shared, "a") == ConstSource(shared, "b")


@pytest.mark.parametrize(
    "source",
    [
        LocalSource("gone"),
        ItemSource(Y, 3),
        ItemSource(Y, "no index"),
        ItemSource(Y, 1.5),
        AttrSource(X, "no_such_attribute"),
        ItemSource(AttrSource(X, "table"), "missing"),
        ItemSource(LocalSource("default"), "missing"),
        GlobalSource("nowhere"),
        DictKeySource(LocalSource("some"), 4),
        CallSource(X),
        InstanceDictSource(Y),
        CellContentsSource(X),
        TensorSizeSource(X, 0),
        TensorSizeSource(T, 3),
    ],
    ids=lambda source: source.name,
)
def test_what_is_not_there_is_found_missing_not_raised(source: Source) -> None:
    frame = sample_frame()
    with pytest.raises((LookupError, AttributeError, TypeError)):
        source.fetch(frame.scope)
    if source == LocalSource("gone"):
        with pytest.raises(ValueError, match="no variable of the frame"):
            frame.in_c(source)
        return
    assert frame.in_c(source) is Missing


def test_looking_does_not_fill_a_defaultdict() -> None:
    table: collections.defaultdict[str, list[int]] = collections.defaultdict(list)
    with pytest.raises(KeyError):
        get_item(table, "a")
    assert Frame(x=table).in_c(ItemSource(X, "a")) is Missing
    assert not table


def test_an_empty_cell_is_missing() -> None:
    frame = Frame(closure={"v": 1})
    frame.closure = (types.CellType(),)
    assert frame.in_c(ClosureSource("v")) is Missing
    assert isinstance(frame.in_c(ClosureCellSource("v")), types.CellType)


def test_instance_dict_passes_by_getattribute() -> None:
    class Hiding:
        def __init__(self) -> None:
            self.real = 1

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("must not be asked")

    assert Frame(x=Hiding()).in_c(ItemSource(InstanceDictSource(X), "real")) == 1


def test_a_dict_subclass_is_asked_its_own_way() -> None:
    class Loud(dict):
        def __getitem__(self, key: str) -> str:
            return key.upper()

    frame = Frame(x=Loud(a="stored"))
    source = ItemSource(X, "a")
    assert frame.in_c(source) == source.fetch(frame.scope) == loaded(source, frame) == "A"


def test_the_cost_of_a_source_does_not_grow_with_its_depth() -> None:
    """Neither to make one nor to look it up: 1,000 sources, each an item of the one before, take a few Python calls each."""
    calls = 0

    def count(frame: types.FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    deep: Source = X
    seen: dict[Source, int] = {}
    sys.setprofile(count)
    try:
        for index in range(1_000):
            deep = ItemSource(deep, index)
            seen[deep] = index
            assert seen[deep] == index
    finally:
        sys.setprofile(None)
    assert 0 < calls < 1_000 * 20
