"""NumPy's functions called with tensors: those of C make arrays of them, and ufuncs give tensors back."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import fxjit

x = torch.tensor([[0.5, 1.5, 2.0], [3.0, 0.25, 1.0]])
whole, number, array = torch.tensor([3, 1, 2]), torch.tensor(2.5), np.array([1.0, 2.0, 3.0], np.float32)

counts, table = np.array([1, 2, 4]), np.arange(12.0).reshape(3, 4)


def added(y, other):
    """`+=` of a tensor and an array is no write: the array's operator makes a new tensor."""
    z = y
    z += other
    return y, z, z is y


class Counts(TorchFunctionMode):
    def __torch_function__(self, fn, types, args=(), kwargs=None):
        seen.append(fn.__name__)
        return fn(*args, **(kwargs or {}))


seen = []


def under_a_mode():
    seen.clear()
    with Counts():
        made = x * array, x // array, x == array, array / x
    return made, list(seen)


def written_at(key, value):
    """`array[key] = value`, of a new array."""
    made = table.copy()
    made[key] = value
    return made


UNARY = ("log", "exp", "sqrt", "isnan", "sign", "floor", "negative", "modf", "frexp", "sin", "positive", "logical_not")
BINARY = ("add", "multiply", "maximum", "greater", "power", "divmod", "hypot", "floor_divide", "logical_and", "equal",
          "subtract")
#: In the graph, without a break.
CAPTURED = {
    **{name: lambda fn=getattr(np, name): (fn(x), fn(number), fn(whole)) for name in UNARY},
    **{name: lambda fn=getattr(np, name): (fn(x, 2.0), fn(x, x), fn(array, x), fn(x, array), fn(number, 3), fn(whole, 2))
       for name in BINARY},
    "of lists": lambda: (np.log([number, number]), np.log((1.0, number)), np.add([number], number)),
    "made arrays": lambda: (np.array(x), np.asarray(whole), np.array([number, number]), np.array([1.0, number])),
    "joined": lambda: (np.concatenate([x, x]), np.concatenate([array, [number]]), np.stack([x, x]), np.vstack([x, array])),
    "chosen": lambda: (np.where(x > 1, x, 0.0), np.tile(whole, 2), np.outer(whole, whole), np.dot(x, x.T), np.roll(x, 1)),
    "of shapes": lambda: (np.shape(x), np.ndim(x), np.ravel(x), np.squeeze(x), np.expand_dims(x, 0), np.swapaxes(x, 0, 1)),
    "in turn": lambda: np.log(np.add(x, 1)) * 2 + torch.ones(3),
    "operators": lambda: (x + array, x - array, x * array, x / array, x // array, x % array, x.abs() ** array, x @ array),
    "operators of whole numbers": lambda: (whole & counts, whole | counts, whole ^ counts, whole << counts, whole >> counts,
                                           divmod(whole, counts), x + counts, whole / counts, whole.half() * array),
    "after an array": lambda: (array / x, array.astype(float) / whole, counts / x, np.array(3.0) / x, array == x),
    "of bytes": lambda: (x > 1) & (array > 2),
    "of one number": lambda: (x * np.array(3.0), number * np.array(3.0), number * array, array / number),
    "of a tensor's own array": lambda: (x * x.numpy(), np.asarray(x) / x, x + np.asarray(whole)),
    "equal": lambda: (x == array, array == x, whole == counts, x == np.asarray(x), x.clone().requires_grad_() == array),
    "of two identities": lambda: (x != array, array != x, x is not array),
    "a new tensor": lambda: added(x.clone(), array),
    "of a trained tensor": lambda: np.log(x.clone().requires_grad_().detach()),
    "indices": lambda: (array[whole - 1], table[whole - 1], table[whole.byte() - 1], table[whole.reshape(3, 1) - 1]),
    "indices beside others": lambda: (table[:, whole], table[whole - 1, 0], table[..., whole],
                                      table[whole - 1, whole], table[1:, None, whole], table[np.array([0, 2]), whole[:2]]),
    "no indices": lambda: table[whole[:0]],
    "indices of a tensor's own array": lambda: x.numpy()[:, whole[1:] - 1],
    "written at indices": lambda: (written_at(whole - 1, 5.0), written_at((0, whole), 7), written_at(whole - 1, table[:1])),
    "written tensors": lambda: (written_at(0, torch.arange(4.0)), written_at((slice(None), 1), whole),
                                written_at((0, 0), number), written_at(whole - 1, x[0, 0]),
                                written_at((slice(None), slice(1)), whole[:, None] > 1), written_at((whole - 1, 0), x[1])),
    "written at truths": lambda: (written_at(torch.from_numpy(table) > 3, 0.0), written_at(whole > 1, 1.0)),
    "methods that take arrays": lambda: (array.take(whole - 1), table.take(indices=whole, axis=1), array.dot(x[0]),
                                         table.dot(torch.ones(4).double()), array.searchsorted(x[0]),
                                         table.take([whole, whole])),
    "written by a method": lambda: (written := table.copy(), written.put(whole, x[0]), written)[2:],
}
#: As eager's, with breaks or exceptions.
OTHERS = {
    **{name: lambda fn=getattr(np, name): fn(x) for name in
       ("mean", "sum", "max", "argmax", "std", "any", "cumsum", "sort", "median", "transpose", "round", "flip", "size",
        "unique", "count_nonzero", "zeros_like", "copy", "average", "diff", "trace")},
    "written to": lambda: (np.copyto(x.clone(), array), np.putmask(x.clone(), x > 1, x)),
    "asked for its type": lambda: (np.min_scalar_type(x), np.can_cast(x, np.float64)),
    "of two types": lambda: np.result_type(x, array),
    "methods": lambda: (np.add.reduce(x), np.add.accumulate(whole), np.add.outer(whole, whole)),
    "added at": lambda: np.add.at(whole.clone(), [0], 1),
    "written": lambda: np.log(x, out=np.zeros((2, 3), np.float32)),
    "where": lambda: np.log(x, where=np.array(True)),
    "of a gradient": lambda: np.log(x.clone().requires_grad_()),
    "of half type": lambda: np.log(x.bfloat16()),
    **{f"array {op} tensor": lambda fn=getattr(operator, op): fn(array, x) for op in
       ("add", "sub", "mul", "floordiv", "mod", "pow", "matmul", "lt", "ge", "iadd", "itruediv")},
    **{f"tensor {op} array": lambda fn=getattr(operator, op): fn(x, array) for op in ("lt", "le", "gt", "ge", "and_")},
    "of other shapes": lambda: x * np.arange(5.0),
    "equal to other shapes": lambda: x == np.arange(5.0),
    "operator of a gradient": lambda: x.clone().requires_grad_() * array,
    "operator of half type": lambda: x.bfloat16() * array,
    "of objects": lambda: (x == np.array([1, "a"], dtype=object), x * np.array([1, 2, 3], dtype=object)),
    "of a parameter": lambda: torch.nn.Parameter(x, requires_grad=False) * array,
    "one index": lambda: (array[whole[0] - 1], array[whole[:1] - 1], table[whole[:1, None] - 1, 0], table[torch.tensor(True)],
                          table[torch.tensor([True])], table[:, whole[0]], written_at(whole[0] - 1, 1.0)),
    "truths": lambda: (array[whole > 1], table[torch.from_numpy(table) > 3], table[:, torch.tensor([True, False] * 2)]),
    "no whole numbers": lambda: array[x[0]],
    "out of range": lambda: array[whole],
    "indices in a list": lambda: table[[whole[0] - 1, whole[1] - 1]],
    "indices with a hole": lambda: table[whole[1]:],
    "written with a gradient": lambda: written_at(0, torch.ones(4).requires_grad_()),
    "written complex numbers": lambda: written_at(0, torch.ones(4) * 1j),
    "written wrong shapes": lambda: written_at(0, torch.ones(3)),
    "methods with sizes from data": lambda: (array.repeat(whole), array.compress(whole > 1)),
    "methods with numbers": lambda: (table.sum(axis=whole[1]), table.clip(torch.zeros(4).double(), 2.0), array.round(whole[1])),
    "dot with a gradient": lambda: array.dot(x[0].clone().requires_grad_()),
    "under a mode": under_a_mode,
    "classes": lambda: (np.float32(number), np.float64(number), np.int64(whole[0])),
}


def outcome(fn):
    try:
        return fn()
    except Exception as error:
        return type(error), str(error)


def agree(eager, ours):
    if isinstance(eager, (tuple, list)):
        return len(eager) == len(ours) and all(map(agree, eager, ours))
    if type(eager) is not type(ours):
        return False
    if isinstance(eager, torch.Tensor):
        return eager.dtype == ours.dtype and eager.stride() == ours.stride() and torch.allclose(eager, ours, equal_nan=True)
    if isinstance(eager, (np.ndarray, np.generic)):
        layout = isinstance(eager, np.generic) or eager.strides == ours.strides
        return eager.dtype == ours.dtype and eager.shape == ours.shape and layout and np.allclose(eager, ours, equal_nan=True)
    return callable(eager) or eager == ours


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CAPTURED)
def test_in_the_graph(name):
    fxjit.reset()
    assert agree(outcome(CAPTURED[name]), outcome(fxjit.compile(CAPTURED[name], backend="eager")))
    assert not fxjit.counters["graph_break"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    assert agree(outcome(OTHERS[name]), outcome(fxjit.compile(OTHERS[name], backend="eager")))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_rows_by_indices_out_of_a_tensor(backend):
    """As selectors of pairs have them, of several sizes."""
    def fn(given, labels, pairs):
        labels = labels.numpy()
        alike = labels[pairs[:, 0]] == labels[pairs[:, 1]]
        return (given[pairs[:, 0]] - given[pairs[:, 1]]).pow(2).sum(1) * torch.from_numpy(alike)

    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend)
    for count in (6, 6, 9, 5):
        given = torch.arange(count * 3.0).reshape(count, 3), torch.arange(count) % 3, torch.combinations(torch.arange(count))
        torch.testing.assert_close(compiled(*given), fn(*given))
    assert not fxjit.counters["graph_break"]["NumPy function that torch._numpy does otherwise"]


def test_a_check_of_an_array_does_not_break():
    def fn(given):
        made = given * 2
        if np.isnan(made.sum().numpy()) or made.numpy().max() > 100:
            raise ValueError("not fine")
        return made + 1

    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    assert compiled(torch.ones(3)).tolist() == [3.0] * 3
    assert not fxjit.counters["graph_break"]
    for bad in (float("nan"), 1e3):
        with pytest.raises(ValueError, match="not fine"):
            compiled(torch.tensor([1.0, bad]))


def test_memory_is_shared():
    """An array of a tensor is over its memory, and what a ufunc gives is new."""
    def fn(given):
        made, view = np.positive(given), np.asarray(given)
        view[0] = 7.0
        return made, given + 0

    for call in (fn, fxjit.compile(fn, backend="eager")):
        made, given = call(torch.ones(2))
        assert made.tolist() == [1.0, 1.0] and given.tolist() == [7.0, 1.0]


schedule = np.linspace(0.1, 1.0, 6)


def added_in_place(y, number):
    first = y[0]
    y += number
    y *= number
    return y, first


#: A number out of an array, by an index that varies, as schedules have it.
OF_SCHEDULES = {
    "quotient": lambda y, at: y / schedule[at],
    "product": lambda y, at: schedule[at] * y - y * schedule.astype(np.float32)[at],
    "difference": lambda y, at: (schedule[at] - y) + (y + schedule[-at]),
    "whole numbers": lambda y, at: (y * np.arange(6)[at], y.long() * np.arange(6)[at], y.double() - schedule[at]),
    "no dimensions": lambda y, at: (y.sum() * schedule[at], y.double().sum() / schedule[at]),
    "of two indices": lambda y, at: (y * table[at % 3, 1], y + torch.from_numpy(table[1:, at % 3]).sum()),
    "in place": lambda y, at: added_in_place(y.clone(), schedule[at]),
}
#: Those with another result than a tensor without dimensions gives: eager's, behind a break.
OF_OTHER_TYPES = {
    "whole tensors": lambda y, at: y.long() * schedule[at],
    "16 bits": lambda y, at: y.half() / schedule[at],
    "quotient of the number": lambda y, at: schedule[at] / y,
    "power": lambda y, at: y.abs() ** schedule[at],
    "complex numbers": lambda y, at: y.to(torch.complex64) * schedule[at],
}


@pytest.mark.parametrize("name", [*OF_SCHEDULES, *OF_OTHER_TYPES])
def test_numbers_out_of_arrays_beside_tensors(name):
    fn = {**OF_SCHEDULES, **OF_OTHER_TYPES}[name]
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager", fullgraph=name in OF_SCHEDULES)
    for at in range(6):
        torch.testing.assert_close(compiled(x, at), fn(x, at), rtol=0, atol=0)
    if name in OF_SCHEDULES:
        assert fxjit.counters["stats"]["unique_graphs"] <= 3


def test_gradients_beside_numbers_out_of_arrays():
    ends = []
    for called in (lambda y, at: y / schedule[at] * schedule[at + 1], None):
        fn = called or fxjit.compile(lambda y, at: y / schedule[at] * schedule[at + 1], backend="native", fullgraph=True)
        y = x.clone().requires_grad_()
        for at in (1, 2, 3):
            fn(y, at).sum().backward()
        ends.append(y.grad)
    torch.testing.assert_close(ends[1], ends[0])


#: What a function of NumPy makes of sizes is a size.
OF_SIZES = {
    "the lesser": lambda y: torch.topk(y, np.minimum(6, y.shape[1]), largest=False),
    "the greater": lambda y: y.repeat(np.maximum(2, y.shape[0]), 1)[:, :np.minimum(y.shape[1], np.int64(4))],
    "a product": lambda y: (y.view(np.prod(y.shape)), y.sum() / np.prod(y.shape[1:]), np.prod((y.shape[1], 2))),
    "rounded": lambda y: (y.new_zeros(int(np.ceil(y.shape[1] / 2))), y[:, int(np.floor(y.shape[1] / 3)):]),
    "returned": lambda y: (y + 1, np.minimum(3, y.shape[1]), np.prod(y.shape),
                            np.floor(y.shape[1] / 2), np.ceil(y.shape[1] / 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SIZES)
def test_numpys_functions_of_sizes_that_vary(name):
    fxjit.reset()
    compiled = fxjit.compile(OF_SIZES[name], backend="eager", fullgraph=True)
    for columns in (8, 12, 7, 5, 4, 9):
        y = torch.arange(3.0 * columns).sin().reshape(3, columns)
        assert agree(OF_SIZES[name](y), compiled(y))
    assert fxjit.counters["stats"]["unique_graphs"] <= 3


#: Where NumPy's arithmetic is another than Python's.
OF_NUMBERS = {
    "overflow": lambda y, n: (y * 1, np.prod((n, 2**62)), np.prod((n, 4, 2**61)), np.prod([2**40, n, 2**40])),
    "signs of zero": lambda y, n: (y * 1, np.ceil(-0.1 * n), np.floor(0.0 * -n), np.ceil(n / 2 - 30)),
    "other types": lambda y, n: (y * 1, np.minimum(n, 2.5), np.prod((n, 1.5)), np.prod((n, True)), np.minimum(n, False)),
    "too large": lambda y, n: (y * 1, np.ceil(n * 1e300), np.floor(n * 2.0**60)),
    "options": lambda y, n: (y * 1, np.minimum(n, 3, dtype=np.float32), np.prod((n, 2), dtype=np.int32)),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_numpys_functions_of_numbers_that_vary(name):
    fxjit.reset()
    compiled = fxjit.compile(OF_NUMBERS[name], backend="eager")
    for n in (3, 5, 7, -4, 0, 11):
        eager, ours = outcome(lambda n=n: OF_NUMBERS[name](x, n)), outcome(lambda n=n: compiled(x, n))
        assert agree(eager, ours) and str(eager) == str(ours)
