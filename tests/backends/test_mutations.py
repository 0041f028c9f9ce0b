"""Each form of a write, of inputs that lie apart when the graph is compiled and share memory at a later call: as in eager."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import schemas

BACKENDS = ["aot_eager", "native"]
Form = Callable[[torch.Tensor], Any]
BITWISE = ("iand", "ior", "ixor", "ilshift", "irshift")


def floats() -> torch.Tensor:
    return torch.linspace(0.1, 0.9, 24)


def integers() -> torch.Tensor:
    return torch.arange(1, 25)


#: What the two inputs are at a call, of memory that holds 24 numbers.
MEETINGS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "apart": lambda base: (base[:9].view(3, 3), base[12:21].view(3, 3).clone()),
    "the same": lambda base: (base[:9].view(3, 3), base[:9].view(3, 3)),
    "overlapping": lambda base: (base[:9].view(3, 3), base[4:13].view(3, 3)),
    "turned": lambda base: (base[:9].view(3, 3), base[:9].view(3, 3).t()),
}


def assert_as_in_eager(form: Form, make: Callable[[], torch.Tensor], backend: str) -> None:
    """The other input is read before the write and behind it."""
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = y * 2
        form(x)
        return z, y + 1

    compiled = fxjit.compile(function, backend=backend)
    for name, meeting in MEETINGS.items():
        mine, theirs = make(), make()
        torch.manual_seed(0)
        results = compiled(*meeting(mine))
        torch.manual_seed(0)
        expected = function(*meeting(theirs))
        for got, wanted in ((results, expected), (mine, theirs)):
            torch.testing.assert_close(got, wanted, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture(autouse=True)
def compiled_graphs() -> Iterator[None]:
    fxjit.reset()
    with fxjit.config.patch(small_graphs_as_captured=False):
        yield


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", sorted(each.strip("_") for each in schemas.IN_PLACE_METHODS - {"__setitem__"}))
def test_operators_of_python(name: str, backend: str) -> None:
    function = getattr(operator, name)
    assert_as_in_eager(lambda x: function(x, 2), integers if name in BITWISE else floats, backend)


FORMS: dict[str, Form] = {
    "an item": lambda x: operator.setitem(x, 0, 5.0),
    "a slice": lambda x: operator.setitem(x, (slice(1, None), 0), 5.0),
    "by a mask": lambda x: operator.setitem(x, x > 0.3, 0.0),
    "by indices": lambda x: operator.setitem(x, torch.tensor([2, 0]), 0.0),
    "in place by position": lambda x: F.relu(x.sub_(0.5), True),
    "threshold in place": lambda x: F.threshold(x, 0.5, 0.0, True),
    "dropout in place": lambda x: F.dropout(x, 0.5, True, True),
    "elu in place": lambda x: F.elu(x, inplace=True),
    "hardtanh in place": lambda x: F.hardtanh(x, 0.2, 0.4, inplace=True),
    "a module in place": lambda x: RELU(x),
    "a dropout module in place": lambda x: DROPOUT(x),
    "out of a function": lambda x: torch.mul(x, 3, out=x),
    "out of a sum": lambda x: torch.sum(x.clone(), 0, out=x[0]),
    "out of torch.norm": lambda x: torch.norm(x.clone(), dim=1, out=x[0]),
    "out of two": lambda x: torch.max(x.clone(), 0, out=(x[1], torch.empty(3, dtype=torch.int64))),
    "initialisation": lambda x: torch.nn.init.constant_(x, 3.0),
    "random initialisation": lambda x: torch.nn.init.uniform_(x),
    "foreach": lambda x: torch._foreach_add_([x[0], x[2]], 1.0),
    "foreach, with a list": lambda x: torch._foreach_mul_([x[0], x[2]], [x[1].clone(), x[1].clone()]),
    "foreach of one tensor": lambda x: torch._foreach_sqrt_([x]),
    "a function of torch": lambda x: torch.relu_(x),
    "a method of the class": lambda x: torch.Tensor.add_(x, 1),
    "an operator": lambda x: torch.ops.aten.add_(x, 1),
    "an overload": lambda x: torch.ops.aten.mul_.Tensor(x, x.clone()),
    "batch statistics": lambda x: F.batch_norm(torch.ones(4, 3), x[0], x[1], training=True),
    "a renormed embedding": lambda x: F.embedding(torch.tensor([0, 2]), x, max_norm=0.1),
}
RELU, DROPOUT = torch.nn.Threshold(0.5, 0.0, inplace=True), torch.nn.Dropout(0.5, inplace=True)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str, backend: str) -> None:
    assert_as_in_eager(FORMS[name], floats, backend)


#: What a method is given, by the types in its schema; the first of these that eager takes.
GIVEN: dict[str, list[Any]] = {
    "Tensor": [lambda: torch.full((3, 3), 0.5), lambda: torch.full((3, 3), 2), lambda: torch.tensor([2, 0, 1]),
               lambda: torch.tensor([[0, 1, 2]]), lambda: torch.eye(3) > 0],
    "number": [lambda: 2, lambda: 0.5],
    "int": [lambda: 1, lambda: 0],
    "float": [lambda: 0.5, lambda: 2.0],
    "bool": [lambda: True],
    "List[int]": [lambda: [3, 3]],
}  # fmt: skip
#: These change sizes or strides of the input itself, which the caller's other tensors do not share.
OF_METADATA = {
    "t_", "squeeze_", "unsqueeze_", "transpose_", "swapaxes_", "swapdims_", "as_strided_", "resize_", "resize_as_", "set_",
    "requires_grad_", "detach_", "rename_", "resize_as_sparse_", "sparse_resize_", "sparse_resize_and_clear_",
}  # fmt: skip


def in_place_methods() -> list[str]:
    names = [name for name in dir(torch.Tensor) if name.endswith("_") and not name.endswith("__")]
    return [name for name in names if schemas.overloads_of(name) and name not in OF_METADATA]


def form_of(name: str) -> tuple[Form, Callable[[], torch.Tensor]] | None:
    """A call of the method that eager takes, and on what."""
    for overload in schemas.overloads_of(name):
        wanted = [each for each in overload._schema.arguments if not each.has_default_value() and each.name != "self"]
        if any(each.kwarg_only or str(each.type) not in GIVEN for each in wanted):
            continue
        for turn in range(max([len(GIVEN[str(each.type)]) for each in wanted], default=1)):
            makers = [GIVEN[str(each.type)][min(turn, len(GIVEN[str(each.type)]) - 1)] for each in wanted]
            for make in (floats, integers):
                def form(x: torch.Tensor, makers: list[Any] = makers) -> Any:
                    return getattr(x, name)(*[each() for each in makers])
                try:
                    form(make()[:9].view(3, 3))
                except (RuntimeError, TypeError, IndexError, NotImplementedError):
                    continue
                return form, make
    return None


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", in_place_methods())
def test_methods(name: str) -> None:
    found = form_of(name)
    if found is None:
        pytest.skip("takes what this test does not make")
    assert_as_in_eager(*found, "aot_eager")


def test_most_methods_are_tested() -> None:
    untested = {name for name in in_place_methods() if form_of(name) is None}
    assert len(untested) < 20, untested


#: Two tensors over the memory of a third one.
SHARED: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "detached second": lambda t: (t, t.detach()),
    "detached first": lambda t: (t.detach(), t),
    "data": lambda t: (t.data, t),
    "slices": lambda t: (t[1:], t[:3]),
    "of other type": lambda t: (t, t.view(torch.int32)),
    "apart": lambda t: (t, torch.ones(4)),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("pair", SHARED)
def test_writes_to_shared_memory_are_counted(pair: str, backend: str) -> None:
    """A backward that saved the memory is refused, as in eager, where the write counts for it."""

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    def run(function: Callable[..., torch.Tensor]) -> tuple[Any, ...]:
        weight, t = torch.ones(4, requires_grad=True), torch.ones(4)
        a, b = SHARED[pair](t)
        loss = (weight * t).sum()
        given = a._version, b._version
        result = function(a, b)
        try:
            loss.backward()
        except RuntimeError as error:
            refused = "modified by an inplace operation" in str(error)
        else:
            refused = False
        return result.tolist(), t.tolist(), refused, a._version > given[0], b._version > given[1]

    assert run(fxjit.compile(program, backend=backend)) == run(program)
