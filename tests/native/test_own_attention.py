"""Attention by our own kernels: ATen's results and derivatives, no less exact, on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import fxjit
from fxjit import _C, config, tensor_shim
from fxjit.backends.native.runtime import own_attention
from fxjit.backends.native.runtime.own_attention import KINDS, attention, attention_backward

pytestmark = pytest.mark.skipif(
    not tensor_shim.ensure() or not _C.program_can("attention"), reason="this processor has no AVX2"
)
aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
#: Vectors of this processor.
BITS = [bits for bits in (256, 512) if tensor_shim.ensure() and bits <= _C.vector_bits()]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    fxjit.reset()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=BITS)
def bits(request: pytest.FixtureRequest) -> Iterator[int]:
    before = _C.vector_bits()
    _C.set_vector_bits(request.param)
    yield request.param
    _C.set_vector_bits(before)


@dataclass(frozen=True)
class Case:
    """Attention of random numbers; `sets`: heads of the keys; `mask`: the sizes of one of numbers, or none."""

    batch: int
    heads: int
    sets: int
    queries: int
    keys: int
    width: int
    causal: bool = False
    mask: tuple[int, ...] | None = None
    scale: float | None = None
    plain: bool = False

    def tensors(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """Query, key, value and the gradient of the result, as a projection gives them, or contiguous."""
        made, queries, keys = [], (self.heads, self.queries), (self.sets, self.keys)
        for heads, rows in (queries, keys, keys, queries):
            x = torch.randn(self.batch, rows, heads, self.width).to(dtype).transpose(1, 2)
            made.append(x.contiguous() if self.plain else x)
        return made

    def options(self, dtype: torch.dtype) -> dict[str, Any]:
        mask = None if self.mask is None else torch.randn(self.mask).to(dtype)
        return {"attn_mask": mask, "scale": self.scale}


CASES = {
    "one of everything": Case(1, 1, 1, 1, 1, 1),
    "less than a vector": Case(2, 4, 4, 13, 17, 8),
    "a head of 64": Case(1, 2, 2, 200, 300, 64),
    "contiguous": Case(1, 2, 2, 65, 31, 24, plain=True),
    "causal, keys shared by heads": Case(2, 4, 2, 197, 197, 64, causal=True),
    "causal, more keys than queries": Case(1, 2, 2, 50, 600, 33, causal=True, scale=0.3),
    "causal, more queries than keys": Case(1, 2, 2, 600, 270, 16, causal=True),
    "several packed blocks": Case(1, 2, 2, 1000, 700, 40, mask=(1, 700)),
    "a mask of all": Case(2, 3, 3, 49, 49, 32, mask=(2, 3, 49, 49)),
    "a mask of heads": Case(2, 4, 1, 30, 513, 128, mask=(1, 4, 1, 513)),
    "a mask of rows": Case(2, 2, 2, 30, 40, 16, mask=(30, 1)),
    "a wide head": Case(1, 1, 1, 40, 50, 256),
    "a scale below zero": Case(1, 2, 2, 20, 30, 16, scale=-0.5),
}


def own(case: Case, dtype: torch.dtype) -> tuple[list[torch.Tensor], dict[str, Any], list[torch.Tensor]]:
    """The tensors, the options and what our kernels make of them: results, logarithms and derivatives."""
    (q, k, v, grad), options = case.tensors(dtype), case.options(dtype)
    out, sums = attention(q, k, v, 0.0, case.causal, **options)
    return [q, k, v, grad], options, [out, sums, *attention_backward(grad, q, k, v, out, sums, 0.0, case.causal, **options)]


def by_aten(case: Case, tensors: list[torch.Tensor], options: dict[str, Any]) -> list[torch.Tensor]:
    q, k, v, grad = tensors
    repeats = case.heads // case.sets
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    out, sums = FORWARD(q, k, v, 0.0, case.causal, **options)
    d_q, *others = BACKWARD(grad, q, k, v, out, sums, 0.0, case.causal, **options)
    if repeats > 1:
        others = [each.unflatten(1, (case.sets, repeats)).sum(2) for each in others]
    return [out, sums, d_q, *others]


def exact(case: Case, tensors: list[torch.Tensor], options: dict[str, Any]) -> list[torch.Tensor]:
    mask = options["attn_mask"]
    return by_aten(case, [each.double() for each in tensors], {**options, "attn_mask": None if mask is None else mask.double()})


def error(found: torch.Tensor, true: torch.Tensor) -> float:
    return float((found.double() - true).abs().max() / true.abs().max().clamp(min=0.1))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_results_are_as_exact_as_atens(bits: int, name: str, dtype: torch.dtype):
    case = CASES[name]
    tensors, options, found = own(case, dtype)
    true, eager = exact(case, tensors, options), by_aten(case, tensors, options)
    least = {torch.float32: 3e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}[dtype]
    for ours, its, number in zip(found, eager, true, strict=True):
        assert error(ours, number) <= max(least, 2 * error(its, number))
        assert ours.dtype is its.dtype
    of_one_set = case.heads == case.sets
    if case.heads == case.sets:
        assert [each.stride() for each in found] == [each.stride() for each in eager]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(*(st.integers(1, most) for most in (2, 3, 2, 90, 300, 70))),
    causal=st.booleans(), seed=st.integers(0, 1000),
)
def test_sizes_of_all_kinds(sizes: tuple[int, ...], causal: bool, seed: int):
    torch.manual_seed(seed)
    batch, sets, group, queries, keys, width = sizes
    case = Case(batch, sets * group, sets, queries, keys, width, causal)
    tensors, options, found = own(case, torch.float32)
    for ours, number in zip(found, exact(case, tensors, options), strict=True):
        assert error(ours, number) < 1e-4


@pytest.mark.parametrize("name", ["several packed blocks", "causal, keys shared by heads", "a mask of all"])
def test_the_number_of_threads_changes_nothing(bits: int, name: str):
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        results.append(own(CASES[name], torch.float32)[2])
    for found in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found, results[0], strict=True))


def test_queries_that_see_nothing(bits: int):
    """ATen says zero, of which the logarithm is zero."""
    q, k, v, grad = Case(2, 2, 2, 64, 300, 16).tensors(torch.float32)
    mask = torch.zeros(2, 1, 64, 300).masked_fill(torch.rand(2, 1, 64, 300) < 0.5, float("-inf"))
    mask[0, 0, 3] = float("-inf")
    mask[0, 0, 5, :270] = float("-inf")
    out, sums = attention(q, k, v, attn_mask=mask)
    eager, its = FORWARD(q, k, v, attn_mask=mask)
    assert_close(out, eager)
    assert_close(sums, its)
    assert not out[0, :, 3].any() and not sums[0, :, 3].any()
    for ours, theirs in zip(attention_backward(grad, q, k, v, out, sums, 0.0, False, attn_mask=mask),
                            BACKWARD(grad, q, k, v, eager, its, 0.0, False, attn_mask=mask), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e30])
@pytest.mark.parametrize("of", [0, 1, 2])
def test_numbers_that_are_not_finite(bits: int, of: int, number: float):
    tensors = Case(1, 2, 2, 20, 40, 16).tensors(torch.float32)[:3]
    tensors[of][0, 1, 7, 3] = number
    assert_close(attention(*tensors)[0], FORWARD(*tensors)[0], equal_nan=True)


def test_large_scores_overflow_nothing(bits: int):
    q, k, v, _ = Case(1, 1, 1, 30, 400, 16).tensors(torch.float32)
    assert_close(attention(100 * q, 100 * k, v)[0], FORWARD(100 * q, 100 * k, v)[0], rtol=1e-3, atol=1e-4)


def refused() -> dict[str, tuple[list[torch.Tensor], dict[str, Any]]]:
    q, k, v, _ = Case(1, 2, 2, 12, 20, 16).tensors(torch.float32)
    return {
        "float64": ([q.double(), k.double(), v.double()], {}),
        "a mask of columns": ([q, k, v], {"attn_mask": torch.randn(20, 12).t()}),
        "one query": ([q[:, :, :1], k, v], {}),
    }


@pytest.mark.parametrize("name", refused())
def test_what_is_atens(calls: list[str], name: str):
    tensors, options = refused()[name]
    for ours, its in zip(attention(*tensors, **options), FORWARD(*tensors, **options), strict=True):
        assert_close(ours, its)
    assert not calls


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that ran."""
    seen: list[str] = []
    plain = own_attention._run

    def noted(kernel: Any, name: str, call: tuple[Any, ...]) -> bool:
        done = plain(kernel, name, call)
        seen.extend([name] if done else [])
        return done

    monkeypatch.setattr(own_attention, "_run", noted)
    return seen


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("how", ["plain", "causal", "mask", "grouped"])
def test_compiled_programs(calls: list[str], how: str, dtype: torch.dtype):
    q, k, v, _ = Case(2, 4, 2 if how == "grouped" else 4, 33, 33, 24).tensors(dtype)
    mask = torch.rand(33, 33) > 0.3 if how == "mask" else None

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        options: dict[str, Any] = {"is_causal": how == "causal", "enable_gqa": how == "grouped"}
        out = F.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask, **options)
        return out.transpose(1, 2).flatten(2) + 1

    results = []
    for function in (attend, fxjit.compile(attend, fullgraph=True)):
        leaves = [each.detach().clone().requires_grad_() for each in (q, k, v)]
        out = function(*leaves)
        out.float().square().sum().backward()
        results.append([out, *(each.grad for each in leaves)])
    for ours, its in zip(results[1], results[0], strict=True):
        assert error(ours, its.double()) < (1e-5 if dtype is torch.float32 else 3e-2)
        assert ours.stride() == its.stride()
    assert calls.count("fxjit::attention") == 1 and calls.count("fxjit::attention_backward") == 1


def test_lengths_that_vary(calls: list[str]):
    compiled = fxjit.compile(F.scaled_dot_product_attention, dynamic=True)
    for length in (16, 25, 300):
        q, k, v, _ = Case(1, 2, 2, length, length + 3, 16).tensors(torch.float32)
        assert_close(compiled(q, k, v), F.scaled_dot_product_attention(q, k, v))
    assert len(calls) == 3


def test_the_setting(calls: list[str]):
    q, k, v, _ = Case(1, 2, 2, 20, 30, 16).tensors(torch.float32)
    with config.patch({"cpp.own_attention": False}):
        compiled = fxjit.compile(F.scaled_dot_product_attention)
        assert torch.equal(compiled(q, k, v), F.scaled_dot_product_attention(q, k, v))
    assert not calls


def test_half_types_are_measured_where_there_are_tiles(monkeypatch: pytest.MonkeyPatch):
    q, k, *_ = Case(1, 2, 2, 20, 300, 16).tensors(torch.bfloat16)
    asked: list[Any] = []

    def compared(dtype: torch.dtype, sizes: tuple[int, ...], backward: bool) -> list[int]:
        asked.append((dtype, sizes, backward))
        return [100, 200] if backward else [200, 100]

    monkeypatch.setattr(own_attention, "_compare", compared)
    monkeypatch.setattr(own_attention, "nanoseconds", lambda facts, measure, counter, said: measure())
    monkeypatch.setattr(own_attention, "_measured", {})
    monkeypatch.setattr(own_attention, "_C", SimpleNamespace(program_can=lambda name: True))
    with config.patch(measure_machine=True):
        assert own_attention.is_preferred(q, k, False) and not own_attention.is_preferred(q, k, True)
        assert own_attention.is_preferred(q.float(), k.float(), True)
    assert own_attention.is_preferred(q, k, True)  # nothing may be measured: as on every processor
    assert asked == [(torch.bfloat16, (32, 512, 16), False), (torch.bfloat16, (32, 512, 16), True)]


@pytest.mark.parametrize("backward", [False, True])
def test_the_comparison_runs(backward: bool):
    assert all(each > 0 for each in own_attention._compare(torch.bfloat16, (16, 32, 8), backward))


def test_a_profile_shows_it():
    q, k, v, _ = Case(1, 2, 2, 20, 30, 16).tensors(torch.float32)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        attention(q, k, v)
    assert "fxjit::attention" in [each.key for each in profile.key_averages()]
