"""Bound arguments: objects that a node is given and that FX has no text for, such as a device mesh. They become a part of the
function that the node calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx


@dataclass(frozen=True, slots=True)
class BoundArgument:
    """Stands for `obj` among the arguments of a node that is about to be made."""

    obj: Any


def holds_bound(given: Any) -> bool:
    """Whether there is one among these arguments, containers looked into."""
    if isinstance(given, (list, tuple)):
        return any(map(holds_bound, given))
    if isinstance(given, dict):
        return any(map(holds_bound, given.values()))
    return isinstance(given, BoundArgument)


def bound_call(target: Callable[..., Any] | str, args: Sequence[Any],
               kwargs: Mapping[str, Any]) -> tuple[Callable[..., Any], tuple[torch.fx.Node, ...]]:
    """The same call of a function that has all arguments but the nodes in it, and the nodes that it is given."""
    nodes: list[torch.fx.Node] = []

    def note(node: torch.fx.Node) -> torch.fx.Node:
        nodes.append(node)
        return node

    torch.fx.map_arg((args, kwargs), note)

    def call(*given: Any) -> Any:
        values = iter(given)
        real, named = _filled(args, values), _filled(kwargs, values)
        return getattr(real[0], target)(*real[1:], **named) if isinstance(target, str) else target(*real, **named)

    call.__name__ = call.__qualname__ = target if isinstance(target, str) else getattr(target, "__name__", "call")
    call.is_opaque = True  # type: ignore[attr-defined]  # its effects are those of what it calls (schemas.py)
    return call, tuple(nodes)


def _filled(template: Any, values: Iterator[Any]) -> Any:
    """The arguments with the objects in their places, and the next values in those of the nodes."""
    if isinstance(template, torch.fx.Node):
        return next(values)
    if isinstance(template, BoundArgument):
        return template.obj
    if isinstance(template, dict):
        return {name: _filled(each, values) for name, each in template.items()}
    if type(template) in (list, tuple, torch.Size):
        return type(template)([_filled(each, values) for each in template])
    if isinstance(template, slice):
        return slice(*[_filled(each, values) for each in (template.start, template.stop, template.step)])
    return template
