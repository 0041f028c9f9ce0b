"""Tables that packages fill when a function of theirs is called for the first time.

A trace that finds such a table empty has it filled when the frame ends, and its entry would hold for no further call: the
table is filled before the trace instead, as eager would have it by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from fxjit.errors import RestartTrace, leave_trace
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import Stage, handles_named, pass_on
from fxjit.frontend.values.tensor import TensorValue

#: Of each type whose tensors a program gives to functions of packages, one that costs nothing.
_SAMPLES: Final[tuple[Callable[[], torch.Tensor], ...]] = (
    lambda: torch.empty(0), lambda: torch.nn.Parameter(torch.empty(0), requires_grad=False))


@handles_named("einops._backends", "get_backend")
def _einops_backend(fn: Any, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """einops looks a tensor's type up in a table of backends, and searches those that it has for one that is not there."""
    table = fn.__globals__.get("_type2backend")
    kind = args[0].realize() if len(args) == 1 and not kwargs else None
    if type(table) is dict and isinstance(kind, TensorValue) and kind.pytype() in (torch.Tensor, torch.nn.Parameter):
        _fill(t, fn, table, kind.pytype())
    return pass_on(t, fn, args, kwargs, after=Stage.FAMILY)


def _fill(t: Tracer, fn: Any, table: dict[Any, Any], kind: type) -> None:
    if kind in table or id(table) in t.break_points.prepared:
        return

    def fill() -> None:
        t.break_points.prepared.add(id(table))
        try:
            for sample in _SAMPLES:
                fn(sample())
        except Exception:  # whatever it is, the program will come to it
            pass

    leave_trace(RestartTrace("a table of a package was filled", fill))
