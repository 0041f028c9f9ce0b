"""Autograd in traced code: `torch.autograd.Function` and functions that talk to the autograd engine.

Calling a custom Function ends the graph: its forward and backward are Python of the user's that autograd runs.
"""

from __future__ import annotations

from typing import Any

import torch

from fxjit.frontend.callables.table import handles
from fxjit.frontend.values.base import Tracer, Value


_APPLY: Any = torch.autograd.Function.apply


@handles(_APPLY.__func__)
def _apply(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`MyFunction.apply(...)`: the class is the first argument."""
    t.break_("call-autograd-engine", function=f"{args[0].describe()}.apply")
