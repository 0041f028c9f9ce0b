"""What an entry is about may go: then the entry goes, and nothing of ours keeps it, its parameters or its buffers alive."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxjit
from fxjit.frontend import entries
from fxjit.frontend.dynamic import forget_histories
from fxjit.guards import kinds
from fxjit.guards.source import LocalSource


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    forget_histories()
    yield
    fxjit.reset()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.in_list = [nn.Linear(3, 3)]
        self.in_dict = {"scale": nn.Parameter(torch.ones(3))}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.in_list[0](self.linear(x)) * self.in_dict["scale"]


class Box:
    """Where the programs below find the model; emptied at the end."""

    model: Any
    other: Any
    table: Any


BOX = Box()
X = torch.arange(6.0).reshape(2, 3)


def of_attribute(x: torch.Tensor) -> torch.Tensor:
    return BOX.model(x)


def of_bound_method(x: torch.Tensor) -> torch.Tensor:
    return BOX.other(x)


def of_list(x: torch.Tensor) -> torch.Tensor:
    return BOX.table[0](x)


def of_membership(x: torch.Tensor) -> torch.Tensor:
    return BOX.model(x) * (2 if BOX.model in BOX.table else 3)


def of_identity(x: torch.Tensor) -> torch.Tensor:
    return BOX.model.linear(x) * (2 if BOX.model is BOX.other else 3)


def with_a_break(x: torch.Tensor) -> torch.Tensor:
    y = BOX.model.linear(x)
    fxjit.graph_break()
    return BOX.model(y)


PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[Model], dict[str, Any]]]] = {
    "attribute": (of_attribute, lambda m: {"model": m}),
    "bound method": (of_bound_method, lambda m: {"other": m.forward}),
    "partial": (of_bound_method, lambda m: {"other": functools.partial(Model.forward, m)}),
    "list": (of_list, lambda m: {"table": [m]}),
    "element of a set": (of_membership, lambda m: {"model": m, "table": {m}}),
    "identity": (of_identity, lambda m: {"model": m, "other": m}),
    "graph break": (with_a_break, lambda m: {"model": m}),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_model_and_its_parameters_go_with_the_last_of_the_users_references(name: str, backend: str) -> None:
    program, make = PROGRAMS[name]
    model = Model()
    compiled = fxjit.compile(program, backend=backend)
    BOX.__dict__.update(make(model))
    for _ in range(4):
        compiled(X)
    compiled(X).sum().backward()
    parts = [weakref.ref(part) for part in (model, model.linear.weight, model.in_dict["scale"], model.in_list[0].bias)]
    BOX.__dict__.clear()
    del model
    gc.collect()
    assert [part() for part in parts] == [None] * len(parts)


class Thing:
    """An object that programs compare with and look up."""



SOURCE = LocalSource("x")

#: A guard of each kind that compares by identity, about a thing.
MORTAL: dict[str, Callable[[Any], kinds.Guard]] = {
    "TypeIs": lambda thing: kinds.TypeIs(SOURCE, thing),
    "IdIs": lambda thing: kinds.IdIs(SOURCE, thing),
    "CodeIs": lambda thing: kinds.CodeIs(SOURCE, thing, globals()),
    "ConstIs": lambda thing: kinds.ConstIs(SOURCE, thing),
    "KeysAre": lambda thing: kinds.KeysAre(SOURCE, ("a", thing)),
    "SetIs": lambda thing: kinds.SetIs(SOURCE, frozenset({"a", thing})),
    "HasKey": lambda thing: kinds.HasKey(SOURCE, thing, True),
    "FoundIn": lambda thing: kinds.FoundIn(SOURCE, "method", thing),
    "BasesAre": lambda thing: kinds.BasesAre(SOURCE, (thing, object)),
}


def thing_for(kind: str) -> Any:
    if kind in ("TypeIs", "FoundIn", "BasesAre"):
        return type("Temporary", (), {})
    if kind == "CodeIs":
        return compile("1 + 1", "somewhere", "eval")
    return Thing()


def identity(x: Any) -> Any:
    return x


def kept_entries(code: Any, key: object) -> int:
    return len(entries.of(code, key))


@pytest.mark.parametrize("kind", MORTAL)
def test_an_entry_goes_with_what_its_guards_compare_with(kind: str) -> None:
    from fxjit import _C

    thing, key, guards = thing_for(kind), Thing(), kinds.GuardSet()
    guards.add(MORTAL[kind](thing))
    entry = _C.Entry(lambda *frame: False, identity.__code__.replace(co_name="generated"))
    entries.add(identity.__code__, key, entry, guards.weakly_held())
    assert kept_entries(identity.__code__, key) == 1
    gone = weakref.ref(entry)
    del entry
    gc.collect()
    assert gone() is not None
    del thing
    gc.collect()
    assert gone() is None and kept_entries(identity.__code__, key) == 0


def test_every_kind_that_holds_an_object_says_so() -> None:
    """A kind that keeps a weak reference is in the table above."""
    slots = {name: getattr(kind, "__slots__", ()) for name, kind in vars(kinds).items()
             if isinstance(kind, type) and issubclass(kind, kinds.Guard) and kind is not kinds.Guard}
    holding = {name for name, names in slots.items() if {"_held", "_keys", "_elements"} & set(names)}
    assert holding == set(MORTAL)


def test_objects_that_come_and_go_do_not_use_up_the_recompile_limit() -> None:
    def program(x: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return fn(x) + 1

    compiled = fxjit.compile(program, backend="eager")
    with fxjit.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for n in range(6):
            namespace: dict[str, Any] = {}
            exec(f"def fn(x): return x * {n}", namespace)
            for _ in range(2):
                torch.testing.assert_close(compiled(X, namespace["fn"]), X * n + 1)
            del namespace
            gc.collect()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_compiled_parameters_can_be_swapped(backend: str) -> None:
    """torch.utils.swap_tensors refuses a tensor that somebody has a weak reference to."""
    model = nn.Linear(3, 3)
    compiled = fxjit.compile(model, backend=backend)
    for _ in range(4):
        compiled(X)
    compiled(X).sum().backward()
    model.zero_grad()
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to(torch.float64)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    torch.testing.assert_close(compiled(X.double()), model(X.double()))
    other = nn.Parameter(torch.ones(5, 3, dtype=torch.float64))
    bias = nn.Parameter(torch.ones(5, dtype=torch.float64))
    torch.utils.swap_tensors(model.weight, other)
    torch.utils.swap_tensors(model.bias, bias)
    torch.testing.assert_close(compiled(X.double()), model(X.double()))


@fxjit.disable
def code_of_its_own() -> types.CodeType:
    return compile("a + b", "own", "eval")


def with_code_of_its_own(x: torch.Tensor) -> torch.Tensor:
    return x + len(code_of_its_own().co_names)


def test_what_is_compiled_for_objects_of_one_call_is_given_up() -> None:
    """The rest of the frame is for a code object that no later call has: it is not compiled again for ever."""
    compiled = fxjit.compile(with_code_of_its_own, backend="eager")
    frames = []
    for _ in range(12):
        assert torch.equal(compiled(X), with_code_of_its_own(X))
        frames.append(fxjit.counters["frames"]["total"])
    assert frames[1] > frames[0] and frames[-1] == frames[-4]
