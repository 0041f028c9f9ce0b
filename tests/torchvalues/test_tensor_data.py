"""Tensors made of numbers that vary: one graph for all their values, with eager's results."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.ones(2)

PROGRAMS = {
    "a number": lambda x, n: torch.tensor(n),
    "its type given": lambda x, n: torch.tensor(n, dtype=torch.float64),
    "half a type": lambda x, n: torch.tensor([n, 1], dtype=torch.bfloat16),
    "a list": lambda x, n: torch.tensor([n, 1.5, n * 2]),
    "a tuple in a list": lambda x, n: torch.tensor([(n, 2), (3, n + 1)]),
    "a part that does not vary": lambda x, n: torch.tensor([[n, n], [0, 1]]),
    "as_tensor": lambda x, n: torch.as_tensor([n, 1]),
    "FloatTensor": lambda x, n: torch.FloatTensor([n, 1]),
    "LongTensor": lambda x, n: torch.LongTensor([int(n), 1]),
    "LongTensor of a range": lambda x, n: torch.LongTensor(range(1, 5, 2)) + n,
    "ByteTensor of a deque": lambda x, n: torch.ByteTensor(deque((1, 2))) + n,
    "new_tensor": lambda x, n: x.new_tensor([n, 1]),
    "a method of it": lambda x, n: x * torch.tensor([n, n / 2]).sum(),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("numbers", [(5, 6, 7, 2**40), (0.5, 0.7, -3.0, 1e300)], ids=["int", "float"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_compiles_serve_every_number(name, numbers, backend):
    program = PROGRAMS[name]
    if name == "LongTensor" and isinstance(numbers[0], float):
        pytest.skip("torch.LongTensor takes whole numbers")
    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend, fullgraph=True)
    for number in numbers:
        expected, actual = program(X, number), compiled(X, number)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        assert (actual.dtype, actual.stride()) == (expected.dtype, expected.stride())
    assert fxjit.counters["frames"]["ok"] <= 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: torch.tensor([[n], [1, 2]]),
        lambda x, n: torch.tensor([n, 300], dtype=torch.int8),
        lambda x, n: torch.tensor([n, 1.9], dtype=torch.int64),
        lambda x, n: torch.tensor([n, True]),
        lambda x, n: torch.tensor([n, 1j]),
        lambda x, n: torch.tensor([n, n] * 50),
        lambda x, n: torch.tensor([[], [n]]),
    ],
)
def test_what_is_not_sure_is_left_to_torch(program):
    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager")
    for number in (5, 6, 7):
        assert result_of(compiled, number) == result_of(program, number)


def result_of(program, number):
    try:
        made = program(X, number)
    except (ValueError, RuntimeError, TypeError) as error:
        return type(error), str(error)
    return made.dtype, made.tolist()


def test_a_number_may_come_from_data():
    def program(x):
        return torch.tensor([x.sum().item(), 1.0]) + 1

    with fxjit.config.patch(capture_scalar_outputs=True):
        torch.testing.assert_close(fxjit.compile(program, fullgraph=True)(X), program(X))


def _views_with_other_data():
    """Views that were given other `data`, and views whose base was."""
    with torch.inference_mode():
        inference = torch.ones(3, 4)
    for data in (inference, torch.zeros(3, 4)):
        view = torch.ones(5, 4)[1:4]
        view.data = data
        yield view
        base = torch.ones(3, 4)
        view = base.view(4, 3)
        base.data = data
        yield view
    view = inference[1:]
    view.data = torch.ones(2, 4)
    yield view


@pytest.mark.parametrize("writes", [False, True], ids=["reads", "writes"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_view_in_other_memory_than_its_base(backend, writes):
    def program(x):
        y = x * 2
        if writes:
            x.add_(1)
        return y + x

    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend)
    for mine, theirs in zip(_views_with_other_data(), _views_with_other_data(), strict=True):
        for _ in range(2):
            with torch.inference_mode(writes):
                assert torch.equal(compiled(mine), program(theirs))
            assert torch.equal(mine, theirs)
            if theirs._base is not None:  # of an inference tensor a view knows none
                assert torch.equal(mine._base, theirs._base)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
@pytest.mark.parametrize("make", [
    lambda: torch.zeros(2, 3, device="cuda"), lambda: torch.ones(2).cuda(), lambda: torch.arange(3).to("cuda:0"),
], ids=["made", "moved", "moved_to_the_first"])
def test_a_tensor_on_a_gpu_that_is_not_there_raises_as_in_eager(make: Callable[[], torch.Tensor]) -> None:
    """Fake tensors are made there all the same."""
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sum() + make().sum()

    def falls_back(x: torch.Tensor) -> torch.Tensor:
        try:
            return x.sum() + make().sum()
        except (RuntimeError, AssertionError):  # a torch with CUDA, and one without
            return x * 2

    for each in (fn, falls_back):
        assert_same_as_eager(each, torch.ones(3), fullgraph=False)


@pytest.mark.parametrize("array", [np.arange(6.0, dtype=np.float32).reshape(2, 3), np.arange(4), np.array(2.5)],
                         ids=["of its type", "of another", "a number"])
def test_a_class_of_tensors_takes_an_array(array: np.ndarray) -> None:
    """`torch.FloatTensor(batch)`, as agents make of what a replay buffer gives; over the array's memory, where it can be."""
    def fn(batch: np.ndarray) -> tuple[torch.Tensor, ...]:
        made = torch.FloatTensor(batch)
        made.mul_(2)
        return made, torch.LongTensor(batch), torch.Tensor(batch).unsqueeze(0), torch.BoolTensor(batch)

    assert_same_as_eager(fn, array, backend=("eager", "native"), breaks=0)


def test_variables_are_tensors_beside_the_first() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        doubled = torch.autograd.Variable(x * 2)
        written = torch.autograd.Variable(x, requires_grad=False)
        written.add_(1)
        return (doubled * x).sum(), written

    assert_same_as_eager(lambda x: fn(x * 1), torch.randn(3, requires_grad=True), backend=("eager", "native"), breaks=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_there_is_no_cache_to_empty_without_a_gpu() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.cuda.empty_cache()
        return y * 2

    assert_same_as_eager(fn, torch.randn(3), graphs=1)


def test_a_constructor_of_a_tensor_is_a_view_of_it():
    def fn(x, i):
        y, n = torch.Tensor(x), torch.LongTensor(i)
        z = torch.FloatTensor(x.detach())
        z[0] = 5
        return y * 2, n + 1, y.dtype, torch.Tensor(i).dtype, z

    for backend in ("eager", "native"):
        assert_same_as_eager(fn, torch.randn(3, requires_grad=True), torch.arange(3), backend=backend, fullgraph=True)
    with pytest.raises(TypeError, match="expected TensorOptions"):
        fxjit.compile(torch.FloatTensor, backend="eager")(torch.arange(3))


def test_resizing_a_tensor_without_elements():
    def fn(x, w):
        mask = x.new().resize_((x.size(0), 1)).fill_(0.5).expand_as(x)
        kept = torch.Tensor()
        same = kept.resize_as_(x)
        same.copy_(x)
        zeros = w.data.new().resize_as_(w.data).zero_()
        return mask * x, kept * 2, same is kept, kept.shape, x.new().resize_(0).shape, zeros + w

    w = torch.nn.Parameter(torch.randn(2, 3))
    for backend in ("eager", "native"):
        compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
        for size in (4, 2, 3):
            x = torch.randn(size, 3)
            torch.testing.assert_close(compiled(x, w), fn(x, w))


def test_resizing_what_others_see_breaks_the_graph():
    def fn(x):
        y = x.new_zeros(4)
        z = y.view(2, 2)
        y.resize_(2)
        empty = torch.empty(0)
        alias = empty.detach()
        empty.resize_(3).fill_(1)
        return y + 1, z + 1, alias.shape, empty

    def given(x, y):
        y.resize_(3).fill_(2)
        return x + 1

    x, y, z = torch.ones(2), torch.empty(0), torch.empty(0)
    torch.testing.assert_close(fxjit.compile(fn, backend="eager")(x), fn(x))
    torch.testing.assert_close(fxjit.compile(given, backend="eager")(x, y), given(x, z))
    assert torch.equal(y, z)


array = np.arange(4.0) + 0.25
single = array.astype(np.float32)
#: Lists of tensors, and of NumPy's scalars, that the graph computes.
OF_COMPUTED = {
    "tensors and numbers": lambda x: torch.tensor([x[0], x[1], 2, True]),
    "of the wider type": lambda x: (torch.tensor([x[0].double(), 1.5]), torch.tensor([x[0].bfloat16(), x[1].half()])),
    "a half type and a number": lambda x: torch.tensor([x[0].half(), 1.5]),
    "whole ones": lambda x: (torch.tensor([x.long()[0], 2]), torch.tensor([x.int()[0], 2]), torch.tensor([x.long()[1], 2.5])),
    "NumPy's": lambda x: (torch.tensor([array[0] * 2, 2]), torch.tensor([single[1] + 1, 2.5]), torch.tensor([single[0] * 1])),
    "elements of an array": lambda x: torch.tensor([each * 2 for each in x.numpy()]),
    "nested": lambda x: torch.tensor([[x[0], x[1]], (2, 3)]),
    "columns": lambda x: torch.tensor([[part.mean()] for part in x.split(2)]),
    "of one element": lambda x: torch.tensor([x[:1], x[:1] * 2, x[2]]),
    "as_tensor": lambda x: torch.as_tensor([x[0], 1]),
    "of a size": lambda x: torch.tensor([x.sum(), x.size(0)], dtype=torch.double),
    "out of range": lambda x: torch.tensor([x.double()[1] * 1e300], dtype=torch.float),
    "truths": lambda x: (torch.tensor([x[0] > 1, x[1] > 1]), torch.tensor([True, x[0] > 1, 2]), torch.tensor([x[0] > 1, 2.5])),
    "constructors": lambda x: (torch.FloatTensor([x[0], 1]), torch.Tensor([x[0], x[1]]), torch.LongTensor([x.long()[0]])),
    "in the wrong order": lambda x: torch.tensor([x.max(), x.min()]).flip(0).requires_grad_(),
    "detached": lambda x: torch.tensor([(x * x.clone().requires_grad_()).sum().detach(), 1.0]),
    "new_tensor": lambda x: x.new_tensor([x[0], 1]),
}


@pytest.fixture
def tensors_are_no_sequences() -> Iterator[None]:
    """As long as nothing was put in the place of `torch.Tensor.__getitem__`: CPython fills a slot of the class for it,
    `sq_item`, and leaves it filled when that is taken back. torch.tensor then asks for a number's length, which it refuses."""
    words = ctypes.sizeof(ctypes.c_void_p)
    tp_as_sequence = ctypes.c_void_p.from_address(id(torch.Tensor) + 13 * words)  # PyTypeObject, the same from 3.11 to 3.13
    assert tp_as_sequence.value is not None
    sq_item = ctypes.c_void_p.from_address(tp_as_sequence.value + 3 * words)
    before = sq_item.value
    if "__getitem__" not in vars(torch.Tensor):
        sq_item.value = None
    yield
    sq_item.value = before


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", OF_COMPUTED)
def test_numbers_that_the_graph_computes_are_stacked(name, backend, tensors_are_no_sequences):
    assert_same_as_eager(OF_COMPUTED[name], torch.arange(4.0) + 0.5, backend=backend, breaks=0)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.tensor([x[0], x[1]], dtype=torch.long),
        lambda x: torch.tensor([x.long()[1] * 2**33], dtype=torch.int32),
        lambda x: torch.tensor([[x[0], x[1]], [2]]),
        lambda x: torch.tensor([x[:2], x[:2]]),
        lambda x: torch.tensor([x[0], None]),
        lambda x: torch.tensor([x[0], x[1]], requires_grad=True),
        lambda x: torch.tensor([x[0].to(torch.complex64), 1.0]),
        lambda x: torch.tensor([x.clone().requires_grad_()[0]]),
        lambda x: torch.LongTensor([x[0]]),
        lambda x: torch.tensor([x[0] > 1, 2.5], dtype=torch.bool),
    ],
)
def test_computed_numbers_that_are_cast_otherwise_are_left_to_torch(program):
    assert_same_as_eager(program, torch.arange(4.0) + 0.5, fullgraph=False)


OF_ARRAYS = {
    "a list": lambda x, a: torch.tensor([a, a + 1]),
    "a tuple of one": lambda x, a: torch.tensor((a,)),
    "as_tensor": lambda x, a: torch.as_tensor([a, a]),
    "beside numbers": lambda x, a: torch.tensor([a, [1, 2]]),
    "of two types": lambda x, a: torch.tensor([a, a.astype(np.float32)]),
    "of integers": lambda x, a: torch.tensor([[a.astype(int), a.astype(np.int32)]]),
    "of truths": lambda x, a: torch.tensor([a > 1, a > 2]),
    "of truths and floats": lambda x, a: torch.tensor([a > 1, a]),
    "new_tensor": lambda x, a: x.new_tensor([a, a]),
    "FloatTensor": lambda x, a: torch.FloatTensor([a, a]),
    "a type given": lambda x, a: torch.tensor([a, a], dtype=torch.float16),
    "of matrices": lambda x, a: torch.tensor([a[:, None] * a, a[None] + a[:, None]]),
    "empty ones": lambda x, a: torch.tensor([a[:0], a[:0]]),
    "of other sizes": lambda x, a: torch.tensor([a, a[:1]]),
    "cast otherwise": lambda x, a: torch.tensor([a, a], dtype=torch.int64),
    "full of a number": lambda x, a: torch.full((2,), a[0]),
}


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list")
@pytest.mark.parametrize("name", OF_ARRAYS)
def test_arrays_in_a_list_are_stacked(name):
    left_to_torch = name in ("of other sizes", "cast otherwise")
    assert_same_as_eager(OF_ARRAYS[name], X, np.array([1.5, 2.5]), fullgraph=not left_to_torch)


@pytest.mark.parametrize("program", [
    lambda x: torch.tensor(x.numel() > 3), lambda x: torch.tensor([x.size(0) > 3, x.size(0) == 0]),
    lambda x: torch.as_tensor(x.numel() == 0), lambda x: x.new_tensor([x.size(0) > 3]),
])
def test_truths_about_sizes(program):
    for size in (8, 3, 2):
        x = torch.ones(size)
        compiled = fxjit.compile(program, backend="eager", fullgraph=True, dynamic=True)
        assert_same = compiled(x), program(x)
        assert torch.equal(*assert_same) and assert_same[0].dtype is assert_same[1].dtype
