"""The function that a graph calls for `apply` of an `autograd.Function` of the program's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any


def apply_function(cls: Any, held: Mapping[int, Callable[[], Any]] | None = None) -> Callable[..., Any]:
    """A function for `cls.apply`: FX wants one with a name and a module. `held`: arguments that FX has no text for, by their
    places; they are there as long as the guards of the graph hold."""
    def apply(*args: Any) -> Any:
        return cls.apply(*args)

    def apply_with_held(*args: Any) -> Any:
        given = list(args)
        for place, each in held.items():  # type: ignore[union-attr]  # there are some
            given.insert(place, each())
        return cls.apply(*given)

    if held:
        apply = apply_with_held
    apply.__name__ = apply.__qualname__ = f"{cls.__name__}_apply"
    apply.is_opaque = True  # type: ignore[attr-defined]  # it runs the program's own code (schemas.py)
    apply.sees_gradients = True  # type: ignore[attr-defined]  # for backends (aot/rules.py)
    apply.applies = None if held else cls  # type: ignore[attr-defined]  # what is stored finds no object again
    return apply


def applied_class(target: Any) -> Any:
    """The class whose `apply` such a function calls; None of anything else."""
    ours = isinstance(target, FunctionType) and target.__globals__ is globals()
    return vars(target).get("applies") if ours else None
