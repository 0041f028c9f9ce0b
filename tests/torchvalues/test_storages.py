"""Storages and addresses of tensors in one graph."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same

import fxjit

X = torch.arange(40.0)


def sizes(x):
    made = x * 2
    return (x.untyped_storage().size(), x.untyped_storage().nbytes(), len(x.untyped_storage()), made.untyped_storage().nbytes(),
            made[1:].untyped_storage().size(), x[1:].untyped_storage().size(), x.storage().size(), len(x.storage()))


def offsets(x):
    return x.storage_offset(), x[1:].storage_offset(), (x * 2)[1:].storage_offset(), x.view(2, 3)[:, 1:].storage_offset()


def kinds(x):
    typed, untyped = x.storage(), x.untyped_storage()
    return (isinstance(typed, torch.TypedStorage), isinstance(untyped, torch.UntypedStorage), type(untyped), typed.dtype,
            isinstance(typed, torch.UntypedStorage), untyped.device, typed.device, typed.element_size(), untyped.element_size())


HELD = torch.BoolStorage.from_buffer(bytearray(8), "big")


def types(x):
    """A class of storages for each dtype and device, by a metaclass of torch's."""
    typed = x.storage()
    return (isinstance(typed, torch.FloatStorage), isinstance(typed, torch.DoubleStorage), isinstance(HELD, torch.BoolStorage),
            isinstance(HELD, torch.FloatStorage), isinstance(x, torch.FloatStorage), isinstance(typed, torch.cuda.FloatStorage),
            isinstance(typed, (torch.DoubleStorage, torch.FloatStorage)), issubclass(torch.FloatStorage, torch.TypedStorage))


def addresses(x):
    made = x + 1
    view = x.view(2, 3)
    return x.data_ptr() == view.data_ptr(), x.data_ptr() != x.detach().data_ptr(), made.data_ptr() == made[:1].data_ptr()


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [sizes, offsets, kinds, types, addresses])
def test_facts(program, backend):
    compiled = fxjit.compile(program, backend=backend, fullgraph=True)
    for x in (X[:6], X[6:12], X[3:9].clone(), X[3:9], torch.zeros(6, dtype=torch.float64)):
        assert_same(program(x), compiled(x))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_given_back(backend):
    def program(x):
        made = x + 1
        return made, made.data_ptr(), x.data_ptr(), x.untyped_storage().data_ptr(), x.untyped_storage(), made.untyped_storage()

    x = X[6:12]
    made, of_made, of_x, of_storage, storage, new = fxjit.compile(program, backend=backend, fullgraph=True)(x)
    assert (of_made, of_x, of_storage) == (made.data_ptr(), x.data_ptr(), X.data_ptr())
    assert storage.data_ptr() == X.data_ptr() and new.data_ptr() == of_made


@pytest.mark.parametrize("program", [
    lambda x, y: x * 2 if x.data_ptr() == y.data_ptr() else x,
    lambda x, y: x * 2 if x.data_ptr() % 16 == 0 else x,
    lambda x, y: x * 2 if x.data_ptr() else x,
    lambda x, y: (x.data_ptr(), x.untyped_storage().resize_(0)),
])
def test_what_only_a_run_knows_breaks_the_graph(program):
    with pytest.raises(fxjit.errors.Unsupported) as error:
        fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(3), torch.ones(3))
    assert error.value.reason_id == "tensor-data"


def freed(x):
    made = x * 2
    before = made.untyped_storage().size()
    made.untyped_storage().resize_(0)
    after = made.untyped_storage().size(), len(made.untyped_storage())
    made.untyped_storage().resize_(before)
    made.copy_(x + 1)
    return made * 3, before, after, made.untyped_storage().nbytes()


def of_an_argument(x):
    """As FSDP does: freed and allocated memory of a parameter."""
    size = x.untyped_storage().size()
    total = x.sum()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(size * 2)
    x.fill_(2.0)
    return total, x.untyped_storage().size(), x[1:] + 1


def left_empty(x):
    y = x + 1
    x.untyped_storage().resize_(0)
    return y


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [freed, of_an_argument, left_empty], ids=lambda program: program.__name__)
def test_given_another_size(program, backend):
    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        expected, actual = X[:6].clone(), X[:6].clone()
        assert_same(program(expected), compiled(actual))
        assert actual.untyped_storage().size() == expected.untyped_storage().size()
        if expected.untyped_storage().size():
            assert torch.equal(actual, expected)
