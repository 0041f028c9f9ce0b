"""Attention of float32, bfloat16 and float16 on a processor by our own kernels (executor/_attention.c), in the place of ATen's.

Compiled graphs call `attention` and `attention_backward` where they have ATen's operators (executor/aten_calls.py). What our
kernels do not run (float64, dropout, rows that are not contiguous, a processor without AVX2) is ATen's.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import _C, config, torch_private

from .low_precision import LOW_PRECISION
from .measured import in_turns, may_decide, nanoseconds

Tensor = torch.Tensor
aten = torch.ops.aten

#: The types that the kernels know, by their numbers in _attention.h.
KINDS: Final = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
#: Queries that look at one set of keys from which packing it is worth it in float32: 12 heads of 64, 1024 keys, times ATen's
#: speed: 1 query 0.84 to 0.92, 4 queries 1.45. Half types have to be converted in any case (7.1 and 1.8).
LEAST_QUERIES: Final = 4

_profiler_enabled: Final = torch_private.get_or("torch._C._autograd._profiler_enabled", lambda: True)


#: Queries and keys up to which attention is measured.
MOST: Final = 1024
#: Counts up when the kernels change.
KERNELS: Final = 1
_measured: dict[tuple[Any, ...], bool] = {}


def is_preferred(query: Tensor, key: Tensor, backward: bool) -> bool:
    """Whether attention of such tensors is ours. It is, but for half types on a processor with tiles of bfloat16, by which ATen
    multiplies them: there it is where it was measured to be faster. Sizes may be symbols."""
    if query.dtype not in LOW_PRECISION or not _C.program_can("tiles") or not may_decide():
        return True
    sizes = tuple(_rounded(size) for size in (query.shape[-2], key.shape[-2], query.shape[-1]))
    if (query.dtype, sizes, backward) not in _measured:
        aten, own = nanoseconds(
            ("attention", KERNELS, str(query.dtype), sizes, backward), lambda: _compare(query.dtype, sizes, backward),
            "attention compared",
            lambda found: f"attention like {sizes}: {found[0] / 1e3:.1f} us by ATen, {found[1] / 1e3:.1f} us by ours")
        _measured[query.dtype, sizes, backward] = own < aten
    return _measured[query.dtype, sizes, backward]


def _rounded(size: Any) -> int:
    """The next power of two up to the limit; of a size that varies, the limit."""
    return min(1 << (size - 1).bit_length(), MOST) if type(size) is int else MOST


def _compare(dtype: torch.dtype, sizes: tuple[int, ...], backward: bool) -> list[int]:
    """Nanoseconds of ATen's and of ours, of one head."""
    rows, keys, width = sizes
    with _disable_current_modes(), torch.no_grad():
        q, k, v = (torch.randn(1, 1, each, width).to(dtype) for each in (rows, keys, keys))
        attend = aten._scaled_dot_product_flash_attention_for_cpu.default
        if not backward:
            return in_turns(lambda: attend(q, k, v), lambda: attention(q, k, v))
        out, sums = attention(q, k, v)
        derive = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        return in_turns(lambda: derive(out, q, k, v, out, sums, 0.0, False),
                        lambda: attention_backward(out, q, k, v, out, sums, 0.0, False))


def attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`aten::_scaled_dot_product_flash_attention_for_cpu`, as compiled graphs call it."""
    kinds = _kinds((query, key, value), attn_mask, dropout_p)
    if kinds is not None:
        batch, heads, rows, width = query.shape
        out, sums = torch.empty_like(query), query.new_empty((batch, rows, heads), dtype=torch.float32).transpose(1, 2)
        call = query, key, value, attn_mask, out, sums, *kinds, is_causal, width**-0.5 if scale is None else scale
        if _run(_C.attention_forward, "fxjit::attention", call):
            return out, sums
    found: tuple[Tensor, Tensor] = aten._scaled_dot_product_flash_attention_for_cpu.default(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    return found


def attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, dropout_p: float,
    is_causal: bool, *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`aten::_scaled_dot_product_flash_attention_for_cpu_backward`, as compiled graphs call it."""
    kinds = _kinds((query, key, value, out, grad_out), attn_mask, dropout_p)
    if kinds is not None and logsumexp.dtype is torch.float32:
        made = _rows_of_heads(query), _rows_of_heads(key), _rows_of_heads(value)
        factor = query.shape[3] ** -0.5 if scale is None else scale
        call = query, key, value, attn_mask, out, logsumexp, grad_out, *made, *kinds, is_causal, factor
        if _run(_C.attention_backward, "fxjit::attention_backward", call):
            return made
    found: tuple[Tensor, Tensor, Tensor] = aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
        grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    return found


def _kinds(tensors: tuple[Tensor, ...], mask: Tensor | None, dropout: float) -> tuple[int, int] | None:
    """The numbers of the tensors' type, and of the mask's; None for what is ATen's."""
    query, key = tensors[0], tensors[1]
    kind = KINDS.get(query.dtype)
    mask_kind = kind if mask is None else KINDS.get(mask.dtype)
    if dropout or kind is None or mask_kind is None or not config.cpp.own_attention or query.dim() != 4 or key.dim() != 4:
        return None
    if kind == 0 and query.shape[2] * query.shape[1] < LEAST_QUERIES * key.shape[1]:
        return None
    return (kind, mask_kind) if all(each.dtype is query.dtype for each in tensors) else None


def _rows_of_heads(heads: Tensor) -> Tensor:
    """Memory as ATen's derivatives have: the heads of a row one after the other."""
    batch, count, rows, width = heads.shape
    return heads.new_empty((batch, rows, count, width)).transpose(1, 2)


def _run(kernel: Any, name: str, call: tuple[Any, ...]) -> bool:
    """Whether the kernel ran the call, under the name that a profile shows."""
    if not _profiler_enabled():
        return bool(kernel(*call))
    with torch.profiler.record_function(name):
        return bool(kernel(*call))
