"""Backends that run the captured graph as it is: to try the front end alone, and to halve the search for a mistake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.fx

from fxjit import torch_private
from fxjit.errors import InternalError, is_foreign

from .graph.facts import state_changed_by

_HAS_SDPA_KERNEL: Final = torch_private.is_on("sdpa_kernel")
_kernels_now: Final = torch_private.optional("torch.nn.attention._cur_sdpa_kernel_backends")
_set_kernels: Final = torch_private.optional("torch.nn.attention._sdpa_kernel")
_kernel_order: Final = torch_private.optional("torch._C._get_sdp_priority_order")
_set_kernel_order: Final = torch_private.optional("torch._C._set_sdp_priority_order")


def eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph, operator by operator, by torch itself."""
    return as_a_block(gm.forward, state_changed_by(gm.graph))


def as_a_block(run: Callable[..., Any], changed: str) -> Callable[..., Any]:
    """`run`, which leaves what it changes of gradient mode, autocast and attention kernels (`state_changed_by`) as it was where
    it raises, as blocks do."""
    if not changed:
        return run
    return _keeping_grad_mode(run) if changed == "grad mode" else _keeping_all(run)


def _keeping_grad_mode(run: Callable[..., Any]) -> Callable[..., Any]:
    """Looking at all of the state takes longer than a small operator does."""

    def call(*args: Any) -> Any:
        grad_mode = torch.is_grad_enabled()
        try:
            return run(*args)
        except BaseException:  # whatever ends the graph: what it set is put back
            torch._C._set_grad_enabled(grad_mode)
            raise

    return call


def _keeping_all(run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        grad_mode, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
        autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
        nesting = _autocast_nesting()
        kernels, order = (_kernels_now(), _kernel_order()) if _HAS_SDPA_KERNEL else (None, None)
        try:
            return run(*args)
        except BaseException as error:  # whatever ends the graph: what it set is put back
            _let_go(error, run)
            if _HAS_SDPA_KERNEL:
                _set_kernels(kernels, False)
                _set_kernel_order(order)
            torch._C._set_grad_enabled(grad_mode)
            for kind, enabled, dtype in autocast:
                torch.set_autocast_enabled(kind, enabled)
                torch.set_autocast_dtype(kind, dtype)
            while _autocast_nesting() > nesting:
                if torch.autocast_decrement_nesting() == 0:
                    torch.clear_autocast_cache()
            torch.set_autocast_cache_enabled(cache)
            raise

    return call


def _let_go(error: BaseException, run: Callable[..., Any]) -> None:
    """Empty the frame of `run`: an inference mode that it entered ends with the object that it holds, and puts the state back
    that it found, now rather than when the traceback goes."""
    code = getattr(run, "__code__", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is code:
            trace.tb_frame.clear()
        trace = trace.tb_next


def _autocast_nesting() -> int:
    inside: int = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return inside - 1


def eager_noexcept(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """As `eager`; an exception inside the graph is a mistake of ours, since the trace ran the same operators."""

    def run(*args: Any) -> Any:
        try:
            return gm.forward(*args)
        except Exception as error:  # all of them: see above
            if is_foreign(error):
                raise
            raise InternalError(f"a captured graph raised {type(error).__name__}: {error}") from error

    return run


def pre_dispatch_eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph taken through make_fx before dispatch (autograd and autocast are still in it), then run eagerly."""
    if not torch_private.is_on("make_fx backend", thoroughly=True):
        return eager(gm, example_inputs)
    make_fx = torch_private.get("torch.fx.experimental.proxy_tensor.make_fx")

    def run(*args: Any) -> Any:
        # Composite operators differ by what their inputs require, so they are taken apart anew for each call.
        return make_fx(gm, pre_dispatch=True)(*args)(*args)

    return run
