"""`native`: our own compiler. C++/OpenMP kernels on a CPU; what has no kernel is called from ATen.

Works under our front end and under torch.compile (`backend="fxjit"`, or this callable).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.fx

if TYPE_CHECKING:
    from fxjit.backends.plan import Plan


def native(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend: a graph of torch functions and its example inputs in, a callable out."""
    # Loaded at the first compile: AOTAutograd takes a second to import.
    from fxjit.backends.aot import Way, compile_with_aot

    from .decompositions import has_symbols, kept_whole, table
    from .stored import stored

    with kept_whole(has_symbols(gm)):
        way = Way(_compile_aten, "native", table, stored=stored, better_as_captured=_better_as_captured)
        return compile_with_aot(gm, example_inputs, way)


def _better_as_captured(gm: torch.fx.GraphModule, plan: Plan | None, graphs: Mapping[str, Callable[..., Any]]) -> bool:
    from .choose.profitability import better_as_captured

    return better_as_captured(gm, plan, graphs)


def _compile_aten(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str) -> Callable[[list[Any]], Any]:
    from .entry import compile_aten  # all of the compiler, which a graph that the disk has does without

    return compile_aten(gm, example_inputs, name)


__all__ = ["native"]
