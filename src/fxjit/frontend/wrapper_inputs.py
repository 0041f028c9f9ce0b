"""Tensors of traceable wrapper subclasses as inputs of a graph: their fake tensors, and the guards on what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit.errors import RestartTrace, leave_trace
from fxjit.guards.kinds import IdIs, TensorIs
from fxjit.guards.source import AttrSource
from fxjit.guards.tensor_spec import TensorSpec
from fxjit.guards.wrappers import UnguardableMetadata, WrapperMetadataIs
from fxjit.tensor_wrappers import dispatches_to_operators, inner_tensors, is_wrapper, opaque_parts

if TYPE_CHECKING:
    from fxjit.frontend.dynamic import ShapePolicy
    from fxjit.frontend.tracer import Tracer
    from fxjit.guards.source import Source


def fake_wrapper(t: Tracer, policy: ShapePolicy, tensor: torch.Tensor, source: Source) -> tuple[torch.Tensor, frozenset[int]]:
    """The fake tensor of a wrapper, and the dimensions that are symbols in it. The graph breaks where the class cannot put one
    together of fake tensors. Of a view torch makes the base anew, and has numbers of its own for what part of it the view is:
    where they stay unknown, the trace begins again, with sizes that are constants."""
    try:
        fake, symbolic = policy.fake(tensor, source)
    except Exception as error:  # the class's own code
        why = f"its `__tensor_unflatten__` over fake tensors raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        t.break_("tensor-subclass", type=type(tensor).__qualname__, why=why)
    if tensor._is_view() and not tensor.is_nested and policy.has_unknown_numbers(fake):
        policy.history.fixed_views.add(source.name)
        leave_trace(RestartTrace("a view of a wrapper lies in a part of its base that only the trace has numbers for"))
    return fake, symbolic


def guard_wrapper(t: Tracer, wrapper: torch.Tensor, fake: torch.Tensor, source: Source,
                  note_object: Callable[[torch.Tensor, Source], None]) -> bool:
    """Guards the facts of a wrapper beside those of every tensor: its metadata, its inner tensors, and which of them are
    one object with another tensor from outside (`note_object`). Whether sizes of theirs are symbols."""
    try:
        t.guard(WrapperMetadataIs(source, wrapper, fake))
    except UnguardableMetadata as problem:
        t.break_("tensor-subclass", type=type(wrapper).__qualname__, why=str(problem))
    for name, part in opaque_parts(wrapper):
        t.guard(IdIs(AttrSource(source, name), part))
    any_symbol = False
    for (name, inner), (_, inner_fake) in zip(inner_tensors(wrapper), inner_tensors(fake), strict=True):
        inner_source = AttrSource(source, name)
        note_object(inner, inner_source)
        numbers = [*inner_fake.shape, *inner_fake.stride()] if inner_fake.layout is torch.strided else []
        symbolic = any(isinstance(number, torch.SymInt) for number in numbers)
        t.guard(TensorIs(inner_source, TensorSpec.of(inner, fake=inner_fake if symbolic else None)))
        below = is_wrapper(inner) and guard_wrapper(t, inner, inner_fake, inner_source, note_object)
        any_symbol = any_symbol or symbolic or below
    return any_symbol


def takes_wrapper(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call reaches a `__torch_dispatch__` without a declaration of its effects."""
    found: list[bool] = []

    def look(node: torch.fx.Node) -> None:
        found.append(any(map(is_wrapper, pytree.tree_leaves(node.meta["example_value"]))))

    torch.fx.map_arg((args, kwargs), look)
    return any(found)


def wrapper_chooses_operators(args: Any) -> bool:
    """Whether a call with these arguments reaches the `__torch_function__` of a class of torch's own."""
    return any(isinstance(each, torch.Tensor) and dispatches_to_operators(type(each)) for each in pytree.tree_leaves(args))
