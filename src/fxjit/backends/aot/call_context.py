"""The context of the wrappers around a compiled graph, built from its compile result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from ..eager import eager
from .backend import CompileResult
from .runtime.double_backward import DoubleBackward, may_run_twice
from .runtime.input_aliasing import AliasedInputs
from .runtime.output_views import CreationRecord
from .runtime.version_counters import VersionCounterEffects
from .runtime.wrappers import CallContext

#: The captured graph, or what makes it when it is first called.
Captured = torch.fx.GraphModule | Callable[..., Any]


def call_context(gm: Captured, aliases: AliasedInputs | None, result: CompileResult, restore: Callable[[Any], Any] | None,
                 creation: tuple[CreationRecord, ...]) -> CallContext:
    """The context of the wrappers; the same for a fresh graph and for one from the store."""
    plan, versions = result.plan, result.versions
    if plan is not None:
        versions = VersionCounterEffects(plan.preserves_version, plan.bumps_version)

    def run_as_captured(rule: str, *args: Any) -> Any:
        _report(rule, gm)
        return (eager(gm, ()) if isinstance(gm, torch.fx.GraphModule) else gm)(*args)

    differentiated_twice = functools.partial(_report, "double-backward", gm)
    shared = aliases is not None and (bool(aliases.aliases) or aliases.has_wrappers)
    twice = plan is not None and may_run_twice(plan, shared)
    double_backward = DoubleBackward(gm, plan, differentiated_twice) if plan is not None and twice else None
    by_kernels = hasattr(result.graphs.get("inference", result.graphs.get("forward")), "unboxed")
    trains = "backward" in result.graphs
    return CallContext(creation, aliases, plan, versions, by_kernels, trains, run_as_captured, double_backward, restore)


def _report(rule: str, gm: Captured) -> None:
    """A call of the graph runs as captured."""
    from . import rules  # with AOTAutograd's classes and sympy, which no stored graph wants

    rules.report(rules.rule(rule), gm)
