"""Products by weights that were packed before: as exact as by weights as they lie, for both sets of vectors and on any number
of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fxjit import _C, tensor_shim

#: Rows, results and terms: one of each, odd ones, several blocks of terms and of columns, so many rows that they are in blocks.
SIZES = [(1, 1, 1), (3, 5, 7), (17, 200, 33), (40, 300, 2050), (64, 1000, 130), (65, 70, 1024), (130, 300, 1030),
         (200, 1500, 514), (900, 40, 96), (600, 1100, 800), (29, 4100, 16)]
TYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.manual_seed(0)
    tensor_shim.ensure()
    yield
    torch.set_num_threads(before)


def packed(weight: torch.Tensor) -> torch.Tensor:
    """Behind its end nothing is written."""
    try:
        count = _C.packed_size(*weight.shape, weight.dtype is torch.bfloat16)
    except RuntimeError:
        pytest.skip("this processor has no kernels for packed weights of this type")
    room = torch.full((count + 64,), 7.0, dtype=weight.dtype)
    _C.pack_weight(weight, room[:count])
    assert (room[count:] == 7).all()
    return room[:count]


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    whole = torch.full((rows.shape[0], weight.shape[0] + 6), 7.0, dtype=rows.dtype)
    out = whole[:, 2:-4]
    _C.multiply_packed(rows, packed(weight), bias, out)
    assert (whole[:, :2] == 7).all() and (whole[:, -4:] == 7).all()
    return out


def assert_exact(found: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """No further from the true result than eager, or than its terms' magnitudes allow: they may cancel."""
    true, terms = (F.linear(given(rows), given(weight), None if bias is None else given(bias))
                   for given in (torch.Tensor.double, lambda each: each.double().abs()))
    eager = float((F.linear(rows, weight, bias).double() - true).abs().max())
    rounded = rows.shape[1] ** 0.5 * torch.finfo(torch.float32).eps + torch.finfo(rows.dtype).eps
    assert float((found.double() - true).abs().max()) <= max(rounded * float(terms.max()), 1.5 * eager)


@pytest.mark.sweep(2)
@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_results_are_exact(dtype: torch.dtype, sizes: tuple[int, int, int], biased: bool, turned: bool):
    m, n, k = sizes
    rows, weight = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
    bias = torch.randn(n).to(dtype) if biased else None
    assert_exact(linear(rows, weight.t().contiguous().t() if turned else weight, bias), rows, weight, bias)


@given(m=st.integers(1, 70), n=st.integers(1, 140), k=st.integers(1, 90), dtype=st.sampled_from(TYPES), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_of_any_sizes(m: int, n: int, k: int, dtype: torch.dtype, seed: int):
    torch.manual_seed(seed)
    rows, weight, bias = (torch.randn(sizes).to(dtype) for sizes in ((m, k), (n, k), (n,)))
    assert_exact(linear(rows, weight, bias), rows, weight, bias)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_threads_change_nothing(dtype: torch.dtype):
    rows, weight = torch.randn(150, 2048).to(dtype)[:, :515], torch.randn(900, 1024).to(dtype)[:, 1:516]
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(linear(rows, weight, None))
    assert all(torch.equal(each, results[0]) for each in results)
    assert_exact(results[0], rows, weight, None)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_what_is_refused(dtype: torch.dtype):
    rows, weight, out = torch.randn(4, 8).to(dtype), torch.randn(3, 8).to(dtype), torch.empty(4, 3).to(dtype)
    good = packed(weight)
    for call in (
        lambda: _C.multiply_packed(rows, good[:-2], None, out),
        lambda: _C.multiply_packed(rows, good.double(), None, out),
        lambda: _C.multiply_packed(rows, good, None, torch.empty(5, 3).to(dtype)),
        lambda: _C.multiply_packed(rows, good, torch.ones(2).to(dtype), out),
        lambda: _C.multiply_packed(rows, good, torch.ones(3).double(), out),
        lambda: _C.pack_weight(weight, torch.zeros(100).to(dtype)),
    ):
        with pytest.raises(ValueError, match="sizes do not fit|other weights than were packed"):
            call()
    for call in (
        lambda: _C.multiply_packed(None, good, None, out),
        lambda: _C.multiply_packed(rows[0], good, None, out),
        lambda: _C.pack_weight(torch.zeros(6, 16).to(dtype)[::2, ::2], good),
    ):
        with pytest.raises(TypeError, match="plain tensor|rows or columns are contiguous"):
            call()
    with pytest.raises(RuntimeError, match="no kernels for packed weights of this type"):
        _C.pack_weight(weight.double(), good)
