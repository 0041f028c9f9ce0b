"""Outputs that are views: regenerates them outside of the autograd node, and restores the CreationMeta that AOTAutograd drops.

Of several views which one operator gave of a tensor (`split`, `unbind`) autograd lets nobody write to any; AOTAutograd gives
them as tensors, or as views, that may be written to. A view that was made under `torch.no_grad()` passes no gradient on to
what it is of, and AOTAutograd makes it anew where gradients are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.fx
from torch._C._autograd import CreationMeta, _get_creation_meta, _set_creation_meta

from fxjit import _C

from .call_plan import OutputKind, OutputRecord

Maker = Callable[[Sequence[Any], Sequence[Any], Any], Any]
Restore = Callable[[torch.Tensor], torch.Tensor]
#: The place of an output, and its CreationMeta by name.
CreationRecord = tuple[int, str]
_UNALIASED = (OutputKind.non_alias, OutputKind.unsafe_view_alias)


class OutputAlias:
    """An output that aliases an input or an intermediate, on its way out of the autograd node: autograd passes it by."""

    __slots__ = ("alias",)

    def __init__(self, alias: torch.Tensor) -> None:
        self.alias = alias


def view_makers(outputs: tuple[OutputRecord, ...]) -> list[Maker | None]:
    """For each output that is an input or a view: what makes it, from the inputs, what the autograd node gave (the outputs,
    then the intermediates), and what it gave for this output."""
    makers = [None if info.kind in _UNALIASED else _maker(info, len(outputs)) for info in outputs]
    for maker in makers:
        if maker is not None:
            _C.set_flags(maker.__code__, _C.TRANSFORMED)  # the frame hook passes it by
    return makers


def _maker(info: OutputRecord, num_outputs: int) -> Maker:
    assert info.base_index is not None, "a view of something"
    kind, base = info.kind, info.base_index
    sequence: Any = None if info.view_steps is None else SimpleNamespace(sequence=info.view_steps)
    if kind in (OutputKind.alias_of_intermediate, OutputKind.alias_of_intermediate_save_as_output):
        base += num_outputs
    if kind is OutputKind.is_input:
        return lambda inputs, outs, out: inputs[base]

    # Half a second to import, which is for graphs that return views alone.
    from torch._functorch import config as functorch_config
    from torch._functorch._aot_autograd.functional_utils import gen_alias_from_base

    replays = functorch_config.view_replay_for_aliased_outputs

    def make(inputs: Sequence[Any], outs: Sequence[Any], out: Any) -> Any:
        viewed = inputs[base] if kind is OutputKind.alias_of_input else outs[base]
        if type(viewed) is OutputAlias:
            viewed = viewed.alias
        return gen_alias_from_base(viewed, out.alias, info.requires_grad, sequence, replay_views=replays)

    return make


def creation_records(gm: torch.fx.GraphModule) -> tuple[CreationRecord, ...]:
    """The outputs of the captured graph whose creation metadata AOTAutograd drops."""
    (outputs,) = next(iter(gm.graph.find_nodes(op="output"))).args
    if not isinstance(outputs, (tuple, list)):
        return ()
    kept = ("MULTI_OUTPUT_NODE", *(("NO_GRAD_MODE",) if torch.is_grad_enabled() else ()))
    made = [_creation_meta(node) for node in outputs]
    return tuple((place, how.name) for place, how in enumerate(made) if how is not None and how.name in kept)


def restored_creation_meta(records: tuple[CreationRecord, ...]) -> list[tuple[int, Restore]]:
    """For each of these outputs, what gives it its creation metadata back."""
    restores: dict[str, Restore] = {"MULTI_OUTPUT_NODE": _as_one_of_several, "NO_GRAD_MODE": _without_history}
    return [(place, restores[how]) for place, how in records]


def _as_one_of_several(output: torch.Tensor) -> torch.Tensor:
    if output.requires_grad:
        output = output if output._is_view() else output.view_as(output)
        _set_creation_meta(output, CreationMeta.MULTI_OUTPUT_NODE)
    return output


def _without_history(output: torch.Tensor) -> torch.Tensor:
    if output.grad_fn is None:
        return output
    with torch.no_grad():
        return output.view_as(output)


def _creation_meta(node: Any) -> CreationMeta | None:
    """Of the view that the node gave in the trace; None where it is none that autograd looks after."""
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.requires_grad or not value._is_view():
        return None
    return _get_creation_meta(value)
