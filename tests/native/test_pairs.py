"""Products of bfloat16 by our own kernel of pairs: oneDNN's results, no less exact, on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import _C, config, tensor_shim
from fxjit.backends.native.executor import plan
from fxjit.backends.native.runtime import own_products

pytestmark = pytest.mark.skipif(
    not tensor_shim.ensure() or not _C.program_can("pairs"), reason="this processor multiplies no pairs of bfloat16"
)
#: Rows, columns and terms: one of each, few rows that are packed, odd terms, several blocks of terms and columns, many rows.
SIZES = [(1, 1, 1), (3, 5, 7), (17, 200, 33), (40, 300, 2050), (64, 1000, 130), (65, 70, 1024), (130, 300, 1030),
         (200, 1500, 514), (900, 40, 96), (29, 4100, 16)]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.manual_seed(0)
    fxjit.reset()
    yield
    torch.set_num_threads(before)


def error(found: torch.Tensor, true: torch.Tensor) -> float:
    return float((found.double() - true).abs().max() / true.abs().max())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_results_are_as_exact_as_onednns(sizes: tuple[int, int, int], biased: bool):
    m, n, k = sizes
    rows, columns = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    bias = torch.randn(n).bfloat16() if biased else None
    out = torch.full((m, n), float("nan")).bfloat16()
    _C.multiply_pairs(rows, columns, bias, out)
    true = F.linear(rows.double(), columns.double(), None if bias is None else bias.double())
    assert error(out, true) <= max(5e-3, 1.2 * error(F.linear(rows, columns, bias), true))


def test_views_and_threads():
    """Rows that are further apart than they are long, and share sets of the cache; nothing beside them is written."""
    rows, columns = torch.randn(150, 2048).bfloat16()[:, :515], torch.randn(300, 1024).bfloat16()[:, 1:516]
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        whole = torch.zeros(150, 400).bfloat16()
        _C.multiply_pairs(rows, columns, None, whole[:, 50:350])
        results.append(whole)
    assert all(torch.equal(each, results[0]) for each in results)
    assert not results[0][:, :50].any() and not results[0][:, 350:].any()
    assert error(results[0][:, 50:350], rows.double() @ columns.double().t()) < 5e-3


@pytest.mark.parametrize("wrong", ["sizes", "columns", "type"])
def test_what_is_refused(wrong: str):
    rows, columns, out = torch.randn(4, 8).bfloat16(), torch.randn(3, 8).bfloat16(), torch.empty(4, 3).bfloat16()
    if wrong == "sizes":
        with pytest.raises(ValueError, match="sizes do not fit"):
            _C.multiply_pairs(rows, columns, None, torch.empty(4, 4).bfloat16())
    elif wrong == "columns":
        with pytest.raises(TypeError, match="rows are contiguous"):
            _C.multiply_pairs(rows, torch.randn(8, 3).bfloat16().t(), None, out)
    else:
        with pytest.raises(TypeError, match="rows are contiguous"):
            _C.multiply_pairs(rows, None, None, out)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Products that are said to be faster by pairs."""
    seen: list[tuple[int, int, int]] = []

    def noted(m: int, n: int, k: int) -> bool:
        seen.append((m, n, k))
        return True

    monkeypatch.setattr(plan, "pairs_are_faster", noted)
    return seen


@pytest.mark.compiles
def test_compiled_layers_and_their_gradients(chosen: list[tuple[int, int, int]]):
    def network(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x, w, b).relu(), v) * 2

    results = []
    given = [torch.randn(*sizes).bfloat16() for sizes in ((2, 20, 48), (96, 48), (96,), (50, 96))]
    with config.patch(cache_graphs=False):
        for function in (network, fxjit.compile(network, fullgraph=True)):
            leaves = [each.clone().requires_grad_() for each in given]
            out = function(*leaves)
            out.float().square().sum().backward()
            results.append([out.detach(), *(each.grad for each in leaves)])
    for found, eager in zip(results[1], results[0], strict=True):
        assert error(found, eager.double()) < 3e-2
        assert found.stride() == eager.stride()
    assert {(40, 96, 48), (40, 50, 96), (40, 96, 50)} <= set(chosen)


@pytest.mark.compiles
def test_rows_that_vary(chosen: list[tuple[int, int, int]]):
    weight = torch.randn(60, 64).bfloat16()
    compiled = fxjit.compile(lambda x: F.linear(x, weight).relu(), dynamic=True)
    for rows in (16, 33, 200):
        x = torch.randn(rows, 64).bfloat16()
        torch.testing.assert_close(compiled(x), F.linear(x, weight).relu(), rtol=2e-2, atol=0.1)
    assert chosen


def test_the_choice_is_measured_once(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, ...]] = []

    def compared(*sizes: int) -> list[int]:
        asked.append(sizes)
        return [200, 100] if sizes[0] < 100 else [100, 99]

    monkeypatch.setattr(own_products, "_compare_pairs", compared)
    monkeypatch.setattr(own_products, "nanoseconds", lambda facts, measure, counter, said: measure())
    monkeypatch.setattr(own_products, "_pairs", {})
    with config.patch(measure_machine=True):
        assert own_products.pairs_are_faster(33, 300, 700) and own_products.pairs_are_faster(64, 512, 1000)
        assert not own_products.pairs_are_faster(5000, 300, 700)
        assert not own_products.pairs_are_faster(2, 3, 4)
    assert asked == [(64, 512, 1024), (512, 512, 1024)]
    with config.patch(measure_machine=False):
        assert not own_products.pairs_are_faster(33, 300, 700)


def test_the_comparison_runs():
    assert all(each > 0 for each in own_products._compare_pairs(16, 32, 64))
