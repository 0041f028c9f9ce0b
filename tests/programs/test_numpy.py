"""NumPy in compiled functions: captured as torch operators, with the very types, shapes and aliases that NumPy gives."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import assert_same, assert_same_as_eager

import fxjit
from fxjit.frontend.values import numpy_agreement


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (np.random.default_rng(0).random(shape) + 0.5).astype(dtype)


def assert_same_arrays(
    fn: Callable[..., Any], *make: Callable[[], Any], graphs: int | None = 1, backend: str = "eager"
) -> None:
    """Results and arguments as eager's, in that many graphs."""
    counted = graphs if backend == "eager" else None
    assert_same_as_eager(fn, *(each() for each in make), fullgraph=False, backend=backend, rtol=1e-5, graphs=counted)


def kmeans(points: np.ndarray, centres: np.ndarray) -> Any:
    for _ in range(3):
        distance = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(-1)
        nearest = np.argmin(distance, axis=1)
        one_hot = (nearest[:, None] == np.arange(centres.shape[0])[None, :]).astype(points.dtype)
        counts = np.maximum(one_hot.sum(0), 1.0)
        centres = (one_hot.T @ points) / counts[:, None]
    return centres, nearest, distance.min(axis=1).mean()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_program_is_one_graph(backend: str) -> None:
    assert_same_arrays(kmeans, lambda: array(32, 4), lambda: array(3, 4), backend=backend)


@pytest.mark.parametrize("fn", [
    lambda a: (a.sum(), a.sum(0), a.mean(), a.std(), a.max(), a.argmax(), a[0, 1], a[0][1]),
    lambda a: (a.sum() * 2, a.sum() + a.max(), np.sqrt(a.sum()), a[0, 0] * a, a.sum() / len(a)),
    lambda a: (isinstance(a.sum(), np.float32), isinstance(a.sum(), np.ndarray), type(a), type(a.sum())),
])
def test_what_is_a_scalar_in_numpy_is_one(fn: Callable[..., Any]) -> None:
    assert_same_arrays(fn, lambda: array(3, 4))


@pytest.mark.parametrize("fn", [
    lambda a: (a * 2, a * 2.5, a / 2, a // 2, a ** 2, a % 3, 2 / a, a > 1, -a, abs(-a)),
    lambda a: (np.exp(a), np.maximum(a, 1), np.clip(a, 0.6, 1), np.where(a > 1, a, 0), np.round(a, 1)),
    lambda a: (a.reshape(4, 3), a.T, np.stack([a, a]), np.concatenate([a, a], axis=1), np.expand_dims(a, 0)),
    lambda a: (a[0], a[:, 1:3], a[..., 0], a[None], a[::2], a[[0, 2]], a[-1, -1], a[()]),
    lambda a: (a @ a.T, np.dot(a, a.T), np.linalg.norm(a), np.einsum("ij,kj->ik", a, a)),
    lambda a: (np.sort(a, axis=1), np.cumsum(a), np.diff(a), np.any(a > 1), (a > 1).all()),
    lambda a: (np.zeros(3), np.ones((2, 3), dtype=np.float32), np.arange(5), np.array([1, 2]), np.full((2,), 7)),
    lambda a: (a.shape, a.ndim, a.size, a.dtype, len(a), a.itemsize, a.nbytes, np.shape(a)),
    lambda a: (a.astype(np.float64), a.astype("int32"), a.astype(int), a.astype(a.dtype), a.copy()),
    lambda a: [row * 2 for row in a],
])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_functions_methods_and_operators(fn: Callable[..., Any], dtype: Any) -> None:
    assert_same_arrays(
        fn, lambda: array(3, 4, dtype=dtype) if dtype is np.float32 else np.arange(12).reshape(3, 4), graphs=None
    )


def test_types_of_numbers_count() -> None:
    """A NumPy number decides the result's type, a Python number does not; torch._numpy knows no such difference."""
    assert_same_arrays(lambda a: (a * np.float64(2), a * 2.0), lambda: array(3), graphs=None)


def in_place(a: np.ndarray) -> Any:
    first, row = a[0, 0], a[0]
    row += 1
    a *= 2
    a[1] = row
    turned, flat, copied = a.T, a.reshape(-1), a.flatten()
    turned[0, 0] = 9
    flat[1] = 7
    copied[2] = 5
    return first, a, row, turned, flat, copied


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_writes_reach_the_callers_array_and_every_view(backend: str) -> None:
    assert_same_arrays(in_place, lambda: array(3, 4), backend=backend)


def test_an_array_stays_the_object_it_was() -> None:
    a = array(3)
    compiled = fxjit.compile(lambda x: (np.add(x, 1, out=x), x.view(), x.astype(x.dtype)), backend="eager", fullgraph=True)
    same_one, view, copied = compiled(a)
    assert same_one is a and view is not a and np.shares_memory(view, a) and not np.shares_memory(copied, a)


def between(x: torch.Tensor) -> Any:
    a = x.detach().cpu().numpy()
    a += 1
    return torch.from_numpy(a * 2) + 1, torch.tensor(a), torch.as_tensor(a, dtype=torch.float64), np.asarray(x), np.array(x), x


def test_from_tensors_and_back() -> None:
    assert_same_arrays(between, lambda: torch.arange(3.0))


@pytest.mark.parametrize("made_inside", [False, True])
def test_where_nothing_is_recorded_tensors_with_a_history_give_arrays_too(made_inside: bool) -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x * 2 if made_inside else x
        with torch.no_grad():
            a = y.numpy()
        return torch.from_numpy(a + 1), torch.from_numpy(a), y.sum()

    assert_same_arrays(fn, lambda: torch.arange(3.0, requires_grad=True))


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_arrays_are_indices_of_tensors(dtype: Any) -> None:
    def fn(x: torch.Tensor, rows: Any) -> Any:
        y = x * 2
        y[rows] = 0.0
        return y, x[rows], x[:, rows[:2]], x[rows, rows], x[rows.reshape(1, -1), 0]

    assert_same_arrays(fn, lambda: torch.arange(16.0).reshape(4, 4), lambda: np.array([2, 0, 3]).astype(dtype))


def test_an_array_of_rows_is_a_tuple_of_indices() -> None:
    assert_same_arrays(
        lambda x, rows: x[rows] + 1, lambda: torch.arange(16.0).reshape(4, 4), lambda: np.array([[0, 1, 2], [3, 3, 3]])
    )


def test_numbers_of_numpy_make_tensors_of_their_dtype() -> None:
    def fn(x: torch.Tensor, reward: Any, few: Any) -> Any:
        return (torch.tensor(reward), torch.tensor([reward, 1.0]), torch.tensor([[few], [2.0]]), torch.as_tensor([reward]),
                torch.tensor([reward], dtype=torch.float32), torch.FloatTensor([reward]), x + torch.tensor([few]))

    assert_same_arrays(fn, lambda: torch.ones(2), lambda: np.float64(2.5), lambda: np.float32(0.5))


def test_slices_of_numpys_integers() -> None:
    def fn(x: torch.Tensor, cut: Any) -> Any:
        low, high = np.clip(cut - 1, 0, 4), np.clip(cut + 1, 0, 4)
        y = x.clone()
        y[:, low:high] = x[torch.tensor([1, 0]), low:high]
        return y, x[low:high, :high]

    assert_same_arrays(fn, lambda: torch.arange(8.0).reshape(2, 4), lambda: np.int64(1))


def test_wrap_numpy_is_captured() -> None:
    wrapped = fxjit.wrap_numpy(lambda a: (np.sqrt(np.abs(a)), a.sum()))
    assert_same_arrays(wrapped, lambda: torch.arange(3.0))
    fxjit.compile(wrapped, backend="eager", fullgraph=True)(torch.ones(3))


@pytest.mark.parametrize(("fn", "make", "in_one_graph"), [
    (lambda a: float(a.sum()) + a.max().item(), lambda: array(3), True),
    (lambda a: a * 2 if a.sum() > 0 else a, lambda: array(3), False),
    (lambda a: a.tolist(), lambda: array(3), True),
    (lambda a: np.unique(a), lambda: array(3), True),
    (lambda a: a[a > 1], lambda: array(5), True),
    (lambda a: a + 1, lambda: np.broadcast_to(np.arange(3.0), (2, 3)), False),
    (lambda a: a + 1, lambda: np.arange(3.0)[::-1], False),
    (lambda a: (a, a[0]), lambda: np.array(["x", 1], dtype=object), False),
])
def test_what_depends_on_data_or_cannot_be_a_tensor_breaks(
        fn: Callable[..., Any], make: Callable[[], Any], in_one_graph: bool) -> None:
    value = make()
    expected = fn(value)
    actual = fxjit.compile(fn, backend="eager")(value)
    assert type(actual) is type(expected)
    assert np.array_equal(actual, expected) if isinstance(expected, np.ndarray) else actual == expected
    if not in_one_graph:
        with pytest.raises(fxjit.errors.Unsupported):
            fxjit.compile(fn, backend="eager", fullgraph=True)(value)
        return
    actual = fxjit.compile(fn, backend="eager", fullgraph=True)(value)
    assert type(actual) is type(expected)
    assert np.array_equal(actual, expected) if isinstance(expected, np.ndarray) else actual == expected


@pytest.mark.parametrize("fn", [
    lambda a: a.nosuch, lambda a: a + np.ones(4), lambda a: a.reshape(5), lambda a: hash(a), lambda a: a.__iadd__("x"),
    lambda a: np.arange(3).__iadd__(1.5), lambda a: len(a.sum()), lambda a: a[9],
])
def test_errors_are_numpys(fn: Callable[..., Any]) -> None:
    with pytest.raises(Exception) as plain:  # noqa: PT011 - whatever it is
        fn(array(3))
    with pytest.raises(plain.type) as compiled:
        fxjit.compile(fn, backend="eager")(array(3))
    assert str(compiled.value) == str(plain.value)


def test_guards_see_another_kind_of_array() -> None:
    def twice(a: np.ndarray) -> np.ndarray:
        return a * 2

    compiled = fxjit.compile(twice, backend="eager")
    for value in (array(3), array(5), array(5, dtype=np.float64), np.arange(4), np.arange(4.0)[::-1],
                  np.broadcast_to(np.float32(1), (3,)), array(2, 3).T):
        assert_same(twice(value), compiled(value))


def test_the_setting_turns_it_off() -> None:
    with fxjit.config.patch(trace_numpy=False):
        assert_same_arrays(lambda a: a + 1, lambda: array(3), graphs=0)


TYPES = [np.float32, np.int64, np.uint8, np.bool_, np.complex64, bool, int, float, complex, "float32", np.dtype("int16")]


MADE_WITH: dict[str, Callable[..., Any]] = {
    "ones": lambda a, dtype: np.ones(3, dtype=dtype),
    "zeros": lambda a, dtype: np.zeros((2,), dtype),
    "full": lambda a, dtype: np.full(2, 1, dtype=dtype),
    "eye": lambda a, dtype: np.eye(3, dtype=dtype),
    "astype": lambda a, dtype: a.astype(dtype),
    "array": lambda a, dtype: np.array([1, 0], dtype=dtype),
    "ones_like": lambda a, dtype: np.ones_like(a, dtype=dtype),
    "asarray": lambda a, dtype: np.asarray(a, dtype=dtype),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fn", MADE_WITH.values(), ids=MADE_WITH)
def test_types_of_numbers_are_given_as_classes_and_by_name(fn: Callable[..., Any], dtype: Any) -> None:
    fxjit.reset()
    actual = fxjit.compile(lambda a: fn(a, dtype) * 2, backend="eager", fullgraph=True)(array(3))
    assert_same(fn(array(3), dtype) * 2, actual)


VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "flip": np.flip, "flip of columns": lambda a: np.flip(a, 1), "flipud": np.flipud, "fliplr": np.fliplr,
    "backwards": lambda a: a[::-1], "every other column backwards": lambda a: a[:, ::-2], "both": lambda a: a[::-1, ::-1],
    "rot90": np.rot90, "diag": np.diag, "diagonal": lambda a: a.diagonal(),
    "broadcast_to": lambda a: np.broadcast_to(a[0], (2, 3, 4)), "broadcast_arrays": lambda a: np.broadcast_arrays(a, a[0])[1],
    "rows of a view": lambda a: a[::-1][1:], "a view turned back": lambda a: np.flip(np.flip(a)),
    "a view's transpose": lambda a: a[::-1].T,
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.filterwarnings("ignore:future versions")
def test_a_view_that_no_tensor_can_be(name: str) -> None:
    """It is read in one graph, before and after its array is written, and what leaves is NumPy's own view of that array."""
    view = VIEWS[name]

    def program(a: np.ndarray) -> Any:
        seen = view(a)
        before = seen * 2 + seen.sum()
        a += 1
        a[0, 1] = -5
        return before, seen * 3, seen

    fxjit.reset()  # one code object for all of them
    mine, theirs = array(3, 4), array(3, 4)
    got, want = fxjit.compile(program, backend="eager", fullgraph=True)(mine), program(theirs)
    assert_same(got[:2], want[:2], rtol=1e-5)
    np.testing.assert_array_equal(mine, theirs)
    assert got[2].strides == want[2].strides and got[2].flags.writeable == want[2].flags.writeable
    for each in (mine, theirs):
        each[:] = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(got[2], want[2])
    assert np.shares_memory(got[2], mine)


@pytest.mark.parametrize("write", [
    lambda a: a[::-1].__setitem__(0, 7), lambda a: np.add(a, 1, out=np.flip(a)), lambda a: a[::-1][1:].sort(axis=1),
    lambda a: torch.from_numpy(a[1:]).add_(1), lambda a: np.abs(a, out=a[:, ::-1]),
])
def test_a_write_to_such_a_view_reaches_the_array(write: Callable[[np.ndarray], Any]) -> None:
    fxjit.reset()

    def program(a: np.ndarray) -> Any:
        seen = a[::-1]
        before = seen.copy()
        write(a)
        return before, seen + 0

    assert_same_arrays(program, lambda: -array(3, 4), graphs=None)


@pytest.mark.parametrize("fn", [
    lambda a: a.astype(np.dtype("float64")), lambda a: a * np.dtype(np.int32).itemsize,
    lambda a: a + np.finfo(np.float32).eps, lambda a: a * np.finfo(a.dtype).max, lambda a: a + np.iinfo(np.int16).max,
    lambda a: a.astype(np.promote_types(np.float32, np.int64)), lambda a: a.astype(np.promote_types("f4", a.dtype)),
    lambda a: a.astype(np.result_type(np.float64, a)), lambda a: a if a.dtype == np.dtype("float32") else a + 1,
    lambda a: a * 2 if np.issubdtype(a.dtype, np.floating) else a,
    lambda a: (a.astype(np.common_type(a, np.arange(2))), np.common_type(a) is np.float32, np.common_type(a, a * 1j)),
])
def test_what_is_asked_about_types_is_known(fn: Callable[..., Any]) -> None:
    assert_same_as_eager(fn, array(3, 4), fullgraph=True, backend="eager")


@pytest.mark.parametrize("fn", [
    lambda a: a[:3, :3][np.mask_indices(3, np.triu)], lambda a: a[np.mask_indices(3, np.tril, -1)],
    lambda a: np.mask_indices(3, np.triu, k=1), lambda a: [each.strides for each in np.mask_indices(3, np.triu)],
])
def test_indices_of_triangles(fn: Callable[..., Any]) -> None:
    assert_same_as_eager(fn, array(3, 4), fullgraph=True, backend="eager")


@pytest.mark.parametrize("fn", [
    np.median, lambda a: np.percentile(a, 30), lambda a: np.quantile(a, 0.3), lambda a: np.median(a) * a,
    lambda a: np.quantile(a, 0.3, method="nearest"),
])
def test_one_number_is_a_scalar(fn: Callable[..., Any]) -> None:
    """Also where torch._numpy gives an array of it."""
    assert_same_as_eager(fn, array(3, 4), fullgraph=True, backend="eager", rtol=1e-5)


@pytest.mark.parametrize("fn", [
    np.modf, np.floor, np.round, np.trunc, np.sign, np.rint, np.fix, np.remainder, np.fmod, np.divmod,
])
def test_numbers_below_zero_are_numpys(fn: Callable[..., Any]) -> None:
    """A counterpart that agrees on positive numbers alone (torch._numpy.modf rounds down) is not taken."""
    two = fn in (np.remainder, np.fmod, np.divmod)
    signs = np.array([-1, 1, -3, 2], np.float32)
    assert_same_arrays(lambda a: fn(a, 0.7) if two else fn(a), lambda: array(3, 4) * signs, graphs=None)


def test_a_size_that_varies_is_told_right() -> None:
    compiled = fxjit.compile(lambda a: (a * 2, np.shape(a), np.size(a)), backend="eager", fullgraph=True)
    for rows in (3, 4, 5, 6):
        assert compiled(array(rows, 2))[1:] == ((rows, 2), rows * 2)


def with_errstate(a: np.ndarray) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.cbrt(a / (a - a)) + np.log2(a - a)


def writes(a: np.ndarray) -> Any:
    np.add.at(a, ([0, 0], [1, 1]), 5)
    a.flat[2:4] = 7
    np.hypot(a[1:], 2.0, out=a[1:])
    np.copyto(a, 0, where=a > 8)
    np.fill_diagonal(a, -1)
    return a.flat[3], [each for each in a[0].flat]


#: What is called otherwise than by a function's name: tests/programs/test_numpy_surface.py has the functions.
WAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "layouts": lambda a: (np.array(a, order="F"), a.copy(order="F"), np.zeros((2, 3), order="F"), np.asfortranarray(a),
                          a.flatten("F"), a.ravel("F"), a.reshape((4, 3), order="F"), a.strides, a.T.strides),
    "c_ and r_": lambda a: (np.c_[a, a], np.r_[a, a], np.r_[0:3, 5], np.mgrid[0:3, 0:2] + a.sum(), a[np.s_[1:, 0]]),
    "ix_": lambda a: a[np.ix_([0, 1], [1, 2])],
    "errstate": with_errstate,
    "writes": writes,
    "apply_along_axis": lambda a: (np.apply_along_axis(lambda row: row.sum() * row, 1, a),
                                   np.apply_along_axis(np.sum, 0, a),
                                   np.apply_along_axis(lambda row: np.outer(row, row), 0, a)),
    "scalars in a list": lambda a: (np.array([a.sum(), 1.0]), np.array([a[0], a[1]]), np.sum([a.sum(), a.max()])),
    "masks of ufuncs": lambda a: np.add(a, a, where=a > 1, out=np.zeros_like(a)),
    "reductions of ufuncs": lambda a: (np.add.reduce(a), np.maximum.accumulate(a, axis=1), np.subtract.outer(a[0], a[1]),
                                       np.logical_and.reduce([a > 1, a > 0.7])),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_ways_to_call_numpy(name: str, backend: str) -> None:
    assert_same_as_eager(WAYS[name], array(3, 4), fullgraph=True, backend=backend, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_numpy_as_an_operator_raises_what_numpy_raises() -> None:
    inverse = fxjit.compile(np.linalg.inv, backend="eager")
    np.testing.assert_array_equal(inverse(np.eye(2)), np.eye(2))
    with pytest.raises(np.linalg.LinAlgError):
        inverse(np.zeros((2, 2)))


def escapes(c: np.ndarray) -> Any:
    """A Mandelbrot set: its loop is unrolled."""
    z, steps = np.zeros_like(c), np.zeros(c.shape, dtype=np.int64)
    for _ in range(6):
        inside = np.abs(z) <= 2
        z = np.where(inside, z * z + c, z)
        steps = steps + inside
    return z, steps


def plane() -> np.ndarray:
    return np.linspace(-2, 1, 6)[None, :] + 1j * np.linspace(-1.5, 1.5, 5)[:, None]


def divergence(c: np.ndarray) -> Any:
    """The Mandelbrot set of NumPy's own tutorial, which orders complex numbers and writes through masks."""
    z, steps = c, np.full(c.shape, 6)
    for i in range(6):
        z = z**2 + c
        diverges = z * np.conj(z) > 2**2
        steps[diverges & (steps == 6)] = i
        z[diverges] = 2
    return z, steps


def test_a_set_by_masks_is_kernels() -> None:
    assert_same_arrays(divergence, plane, backend="native")
    assert not fxjit.counters["run_as_captured"]


def complex_numbers() -> np.ndarray:
    parts = np.array([0.0, -1.0, 2.0, np.nan, np.inf])
    return (parts[:, None] + 1j * parts[None, :]).ravel()


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("other", [2, -1.0, "array", "reals", "small"])
def test_complex_numbers_are_ordered_by_their_parts(compare: Any, other: Any) -> None:
    def ordered(z: np.ndarray) -> Any:
        if other == "array":
            return compare(z[:, None], z[None, :])
        if other == "reals":
            return compare(z, np.linspace(-2, 2, 25)), compare(np.linspace(-2, 2, 25), z)
        if other == "small":
            return compare(z.astype(np.complex64), 0.1), compare(z.astype(np.complex64), z)
        return compare(z, other), compare(other, z)

    assert_same_arrays(ordered, complex_numbers)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, -1, -2])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_whole_powers_of_complex_numbers(exponent: int, dtype: Any) -> None:
    assert_same_arrays(lambda z: z**exponent, lambda: plane().astype(dtype))


def test_each_call_of_a_loop_is_tried_beside_numpy_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    original = numpy_agreement._agreed
    monkeypatch.setattr(numpy_agreement, "_TRIED", {})
    monkeypatch.setattr(numpy_agreement, "_agreed", lambda what, *given: tried.append(what.name) or original(what, *given))
    assert_same_arrays(escapes, plane)
    rounds = [name for name in tried if name not in ("zeros_like", "zeros")]
    assert rounds == ["absolute", "le", "mul", "add", "where", "add"]  # of one round


@pytest.mark.parametrize("key", [np.s_[::-1], np.s_[:, ::-2], np.s_[::-1, ::-1], np.s_[2:0:-1, 1:3], np.s_[0:2:-1]], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_writes_through_slices_that_step_backwards(key: Any, dtype: Any) -> None:
    def write(a: np.ndarray, value: Any) -> np.ndarray:
        a[key] = value
        return a + 1

    fxjit.reset()  # one code object for all of them
    compiled = fxjit.compile(write, backend="eager", fullgraph=True)
    plain = np.arange(12).reshape(3, 4).astype(dtype)
    shape = plain[key].shape
    for value in (7, np.float32(2.5), np.arange(plain[key].size, dtype=np.float64).reshape(shape), np.arange(shape[-1])):
        expected, given = plain.copy(), plain.copy()
        assert_same(write(expected, value), compiled(given, value))
        assert_same(expected, given)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("cls", [np.float16, np.float64, np.bool_, np.complex64, np.int64])
@pytest.mark.parametrize("fn", [lambda cls, a: cls(a.max()), lambda cls, a: cls(a), lambda cls, a: cls(a[0, :1].reshape(()))])
def test_scalar_types_convert_what_the_graph_computes(fn: Callable[..., Any], cls: Any) -> None:
    a = np.array([[3, -70000, 0]], dtype=np.int32)
    fxjit.reset()
    found = fxjit.compile(fn, backend="eager", fullgraph=True)(cls, a)
    assert type(found) is type(fn(cls, a))
    assert_same(fn(cls, a), found)


POWERS = {
    "arrays": lambda x, n: x ** n, "np.power": lambda x, n: np.power(x, n), "a number's": lambda x, n: 2 ** n,
    "scalars": lambda x, n: x[0] ** n[1], "out": lambda x, n: np.power(x, n, out=np.zeros(3)),
}


@pytest.mark.parametrize("power", POWERS.values(), ids=POWERS)
def test_powers_of_integers_below_zero_are_refused(power):
    """By what the data is, when the graph runs."""
    compiled = fxjit.compile(power, backend="eager", fullgraph=True)
    bases = np.array([2, 3, 1])
    for exponents in ([1, 2, 0], [1, -1, 2]):
        n = np.array(exponents)
        results = []
        for run in (power, compiled):
            try:
                results.append(run(bases, n).tolist())
            except ValueError as error:
                results.append(str(error))
        assert results[0] == results[1]


BACKWARDS = [
    np.s_[3:0:-1, 1:], np.s_[None, ::-1], np.s_[..., None, 3:0:-2], np.s_[1, ::-1], np.s_[::-1, None, ::-2],
    np.s_[2::-1, :3:-1], np.s_[0:3:-1], np.s_[10::-1], np.s_[:-10:-1], np.s_[::-1, [0, 2]], np.s_[3:0:-1, ..., 1::2],
    np.s_[-2::-1, -1:0:-2],
]


@pytest.mark.parametrize("key", BACKWARDS, ids=str)
@pytest.mark.parametrize("make", [lambda: array(4, 5), lambda: array(5, 4, dtype=np.int64).T])
def test_slices_that_step_backwards_beside_other_indices(key: Any, make: Callable[[], Any]) -> None:
    assert_same_arrays(lambda a: (a[key], a[key] * 2), make)


@pytest.mark.parametrize("fn", [
    lambda a: np.select([a > 1, a < 0.7], [a, a * 2], default=0), lambda a: np.select([a > 1, a < 0.7], [a, -a], 1.5),
    lambda a: np.full((3, 4), np.broadcast_arrays(a, 0)[1]), lambda a: np.broadcast_arrays(a, 2)[1] + a,
    lambda a: np.full((2, 3), a.max()), lambda a: np.full_like(a, a.max()),
])  # fmt: skip
def test_arrays_filled_from_what_is_spread(fn: Callable[..., Any]) -> None:
    assert_same_arrays(fn, lambda: array(3, 4))
