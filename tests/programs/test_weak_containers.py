"""WeakKeyDictionary, WeakValueDictionary and WeakSet that compiled code reads and changes; their objects come and go between
calls."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit
from fxjit import config, regions


class Thing:
    """Hashed by identity."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Named(Thing):
    """Equal to others of its name."""

    def __eq__(self, other: object) -> Any:
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class State:
    """The containers, and the objects that keep their entries alive."""

    def __init__(self, cls: type[Thing]) -> None:
        self.things = [cls(name) for name in "abcd"]
        self.by_key = weakref.WeakKeyDictionary[Thing, Any]({self.things[0]: 1.0, self.things[1]: 2.0})
        self.by_value = weakref.WeakValueDictionary({"a": self.things[0], "b": self.things[1]})
        self.live = weakref.WeakSet(self.things[:2])
        self.seen: list[Any] = []

    def shown(self) -> Any:
        return ([(key.name, value) for key, value in self.by_key.items()],
                [(key, value.name) for key, value in self.by_value.items()],
                sorted(each.name for each in self.live), self.seen)


def cached(x: torch.Tensor, s: State, thing: Thing) -> Any:
    if thing not in s.by_key:
        s.by_key[thing] = float(len(s.by_key) + 5)
    return x * s.by_key[thing], len(s.by_key)


def looked_up(x: torch.Tensor, s: State, thing: Thing) -> Any:
    try:
        found = s.by_key[thing]
    except KeyError:
        found = -1
    return x * s.by_key.get(thing, 7), found, s.by_value.get(thing.name), thing in s.live, thing.name in s.by_value, len(s.live)


def removed(x: torch.Tensor, s: State, thing: Thing) -> Any:
    gone = s.by_key.pop(thing, None)
    s.live.discard(thing)
    return x + 1, gone, s.by_value.pop(thing.name, None)


def deleted(x: torch.Tensor, s: State, thing: Thing) -> Any:
    if thing in s.by_key:
        del s.by_key[thing]
    return x + 1


def put(x: torch.Tensor, s: State, thing: Thing) -> Any:
    s.by_value[thing.name] = thing
    s.live.add(thing)
    s.by_key.setdefault(thing, 3)
    s.by_key[thing] += 1
    return x * s.by_key[thing], s.by_value[thing.name] is thing


def compared(x: torch.Tensor, s: State, thing: Thing) -> Any:
    other = s.things[0]
    first, second = weakref.ref(other), weakref.ref(thing)
    table = {first: 1}
    return x + 1, first == second, first != second, second in table, table.get(second), other, thing


PROGRAMS = (cached, looked_up, removed, deleted, put, compared)


@pytest.fixture(autouse=True)
def many_entries() -> Any:
    """An entry is for the keys that there are."""
    with config.patch(recompile_limit=64):
        yield


@pytest.mark.parametrize("cls", [Thing, Named])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program: Callable[..., Any], cls: type[Thing]) -> None:
    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    states = State(cls), State(cls)
    for step in (0, 2, 0, 1, 2, 3, "drop", 2, "new", 3, 0):
        shown = []
        for run, s in zip((program, compiled), states, strict=True):
            if step == "drop":
                s.things[1] = cls("e")
                gc.collect()
                shown.append(s.shown())
            elif step == "new":
                s.things[3] = cls("a")
            else:
                shown.append((repr(run(torch.ones(2), s, s.things[step])), s.shown()))
        assert len({repr(each) for each in shown}) < 2, step


def test_entries_go_with_their_objects() -> None:
    s = State(Thing)
    compiled = fxjit.compile(put, backend="eager", fullgraph=True)
    for _ in range(4):
        compiled(torch.ones(2), s, Thing("x"))
        gc.collect()
        assert [key.name for key in s.by_key] == ["a", "b"] and len(s.live) == 2 and "x" not in s.by_value


def test_a_callback_is_called_when_its_object_goes() -> None:
    gone: list[str] = []

    def fn(x: torch.Tensor, thing: Thing, kept: list[Any]) -> torch.Tensor:
        kept.append(weakref.ref(thing, lambda reference: gone.append("gone")))
        return x + 1

    compiled, kept, thing = fxjit.compile(fn, backend="eager", fullgraph=True), [], Thing("x")
    for count in (1, 2):
        compiled(torch.ones(2), thing, kept)
        assert len(kept) == count and all(reference() is thing for reference in kept) and not gone
    assert kept[0] is not kept[1]
    del thing
    gc.collect()
    assert gone == ["gone", "gone"]


def made_here(x: torch.Tensor, s: State, thing: Thing) -> Any:
    s.by_key[Thing("new")] = 1
    kept = Thing("kept")
    s.by_key[kept] = 2
    s.seen.append(len(s.by_key))
    return x + len(s.by_key)


def let_go(x: torch.Tensor, s: State, thing: Thing) -> Any:
    first, second = Thing("first"), Thing("second")
    x = x + 1
    fxjit.graph_break()
    s.by_key[first], s.by_key[second] = 1, 2
    s.live.add(first)
    s.by_value["first"] = first
    counts = [len(s.by_key), len(s.live), len(s.by_value)]
    del first
    counts += [len(s.by_key), len(s.live), len(s.by_value)]
    second = None
    return x + 1, counts, len(s.by_key)


def over_all(x: torch.Tensor, s: State, thing: Thing) -> Any:
    s.seen.append([(key.name, value) for key, value in s.by_key.items()])
    return x + sum(s.by_key.values()), len(list(s.live)), [value.name for value in s.by_value.values()]


def of_tensors(x: torch.Tensor, s: State, thing: Thing) -> Any:
    first, second = weakref.ref(x), weakref.ref(x)
    return x + 1, first is second, first() is x


@pytest.mark.parametrize("program", [made_here, let_go, over_all, of_tensors])
def test_what_breaks(program: Callable[..., Any]) -> None:
    compiled = fxjit.compile(program, backend="eager")
    states = State(Thing), State(Thing)
    for _ in range(3):
        assert len({repr((run(torch.ones(2), s, s.things[0]), s.shown()))
                    for run, s in zip((program, compiled), states, strict=True)}) == 1


class Interned:
    """Held by nothing but itself, as classes are: it ends when the collector comes by."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.me = self


def test_what_a_weak_container_gave_does_not_end_while_the_graph_runs() -> None:
    known: weakref.WeakValueDictionary[int, Interned] = weakref.WeakValueDictionary()

    def intern(size: int) -> Interned:
        found = known.get(size)
        if found is None:
            found = known[size] = Interned(size)
        return found

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, int, bool]:
        found = intern(x.shape[0])
        y = x * found.size
        return y, found.size, known[x.shape[0]] is found and kept.append(found) is None

    def collecting(gm: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        def run(*args: object) -> object:
            gc.collect()
            return gm.forward(*args)

        return run

    kept: list[Interned] = []
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=collecting)
    for _ in range(3):
        intern(4)
        y, size, found = compiled(torch.ones(4))
        assert torch.equal(y, torch.full((4,), 4.0)) and size == 4 and found
        assert kept.pop().size == 4


def test_what_a_weak_container_gave_may_end_before_the_new_code_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector comes by behind the compile; then the user's code runs, and makes another or sees that it has ended."""
    known: weakref.WeakValueDictionary[int, Interned] = weakref.WeakValueDictionary()
    references: list[weakref.ref[Interned]] = []

    def of_container(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        found = known.get(4)
        if found is None:
            found = known[4] = Interned(8)
        return x * found.size, found.size

    def of_reference(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        found = references[0]()
        return x * 4, found if found is None else found.size

    def compile_and_collect(*args: Any) -> Any:
        entry = compile_frame(*args)
        gc.collect()
        return entry

    compile_frame = regions._entry_for
    monkeypatch.setattr(regions, "_entry_for", compile_and_collect)
    for program, sizes in ((of_container, (8, 8)), (of_reference, (None, None))):
        fxjit.reset()
        first = Interned(4)
        known[4], references[:] = first, [weakref.ref(first)]
        del first
        compiled = fxjit.compile(program, backend="eager")
        for size in sizes:
            y, told = compiled(torch.ones(4))
            assert told == size
            assert torch.equal(y, torch.full((4,), float(size or 4)))
