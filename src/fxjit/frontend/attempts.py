"""The traces of one frame, each from the beginning, until one comes to its end: a break that is found inside an inlined call or
halfway through an instruction starts the trace again with that break point decided in advance (interp/restart.py), as state is
never rolled back.

pipeline.py calls `trace_frame`; the answer is a `TraceResult`, or one of the signals of fxjit.errors (SkipFrameSignal,
Unsupported through the pipeline).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import torch

from fxjit import config, state_steps
from fxjit.copied_context import in_copied_context
from fxjit.errors import InternalError, RestartTrace, SkipFrameSignal
from fxjit.frontend import entries
from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.dynamic import FrameHistory
from fxjit.frontend.fakes import quiet_fake_tensors
from fxjit.frontend.interp.restart import BreakPoints
from fxjit.frontend.result import Break, TraceResult
from fxjit.frontend.trace import Frame, Trace
from fxjit.frontend.values import contexts
from fxjit.guards.kinds import GuardSet

_MAX_ATTEMPTS: Final = 64


@in_copied_context
def trace_frame(frame: Frame, history: FrameHistory, dynamic: bool | None,
                relied_on: list[GuardSet] | None = None, *, whole: bool = False) -> tuple[TraceResult, Trace]:
    """Trace `frame`; raises SkipFrameSignal when it cannot be compiled in part or whole. Then, and where the caller may skip it
    for ending in a region, `relied_on` is given the guards of what that was decided by, where sizes do not vary.
    `whole`: a break is an error."""
    break_points = BreakPoints()
    break_points.whole, break_points.makes_classes = whole, history.makes_classes
    break_points.speculates = config.capture_checks and entries.speculates(frame.code)
    code = decode(frame.code)
    attempts, in_regions, found_by = 0, list[GuardSet](), list[GuardSet]()
    while attempts < _MAX_ATTEMPTS:
        trace = Trace(frame, break_points, history, dynamic)
        with preserved_state(), quiet_fake_tensors():
            try:
                result = trace.run(code)
                contexts.abandon(trace)
                trace.found_by = found_by
                if isinstance(result.end, Break) and result.end.skip is not None and relied_on is not None:
                    relied_on += in_regions
                return result, trace
            except RestartTrace as signal:
                contexts.abandon(trace)
                trace.release()
                restart = signal.with_traceback(None)  # which holds this frame, and with it what the call was given
                restart.__context__ = None  # and this, the break, the frames of the trace
            except BaseException as error:  # whatever it is: the process state that the trace set is put back
                if isinstance(error, SkipFrameSignal) and relied_on is not None and not trace.has_symbols:
                    relied_on.append(trace.guards)
                contexts.abandon(trace)
                trace.release()
                raise
        if break_points.ends_in_region and not trace.has_symbols:
            in_regions = [trace.guards]
        if restart.action is not None:
            restart.action()
            found_by.clear()  # the next attempt may go another way
        else:
            attempts += 1
            found_by.append(trace.guards)
    raise InternalError(f"tracing {frame.code.co_qualname} did not come to a break point after {_MAX_ATTEMPTS} attempts")


@contextlib.contextmanager
def preserved_state() -> Iterator[None]:
    """Process state that tracing changes for real (grad mode, autocast, rng...) is as before afterwards."""
    grad_mode, dtype, rng = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_rng_state()
    autocast = {device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")}
    cache = torch.is_autocast_cache_enabled()
    kernels = contexts.attention_kernels()
    try:
        with contexts.hidden_from_saved_tensor_hooks(), state_steps.applying():
            yield
    finally:
        contexts.restore_attention_kernels(kernels)
        torch._C._set_grad_enabled(grad_mode)
        for device, (enabled, autocast_dtype) in autocast.items():
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, autocast_dtype)
        torch.set_autocast_cache_enabled(cache)
        torch.set_default_dtype(dtype)
        torch.set_rng_state(rng)
