"""`config.guard_nn_modules = False`: a program that promises not to change the insides of its modules has them not guarded.

What kernels rely on stays guarded, tensors and relations between sizes, and so do `training` and numbers in buffers, which
programs change as a matter of course.
"""

from __future__ import annotations

import torch
from torch import nn

from fxjit.guards.kinds import Guard, GuardSet, NotSameObject, SameObject, ShapeExpr, TensorIs
from fxjit.guards.source import ApplySource, AttrSource, InstanceDictSource, Scope, Source

#: What kernels rely on.
ABOUT_TENSORS = (TensorIs, ShapeExpr, SameObject, NotSameObject)


def without_module_internals(guards: GuardSet, scope: Scope) -> GuardSet:
    """The guards but those on what is inside of modules, for the frame of `scope`."""
    kept = GuardSet()
    for guard in guards:
        if not _is_internal(guard, scope):
            kept.add(guard, guards.user_stack(guard))
    return kept


def _is_internal(guard: Guard, scope: Scope) -> bool:
    if isinstance(guard, ABOUT_TENSORS) or not guard.sources:
        return False
    return all(source.accessor[1] != "training" and _is_inside(source, scope) and not _is_element(source, scope)
               for source in guard.sources)


def _is_element(source: Source, scope: Scope) -> bool:
    """Whether it is what a function makes of a tensor."""
    return isinstance(source, ApplySource) and isinstance(source.base.fetch(scope), torch.Tensor)


def _is_inside(source: Source, scope: Scope) -> bool:
    """Whether a module is on the way to `source`."""
    base = source.base
    while base is not None:
        try:
            if isinstance(base.fetch(scope), nn.Module):
                return True
        except Exception:  # the user's own look-up; its guard stays
            return False
        base = base.base
    return False


def is_of_object(source: Source | None) -> bool:
    """Whether an attribute is on the way to `source`: a number of heads, a width, a buffer. Attributes are taken to stay, where
    what calls give varies."""
    while source is not None:
        if isinstance(source, (AttrSource, InstanceDictSource)):
            return True
        source = source.base
    return False
