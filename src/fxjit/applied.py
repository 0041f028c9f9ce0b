"""The function that a graph calls for `apply` of an `autograd.Function` of the program's."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any


def apply_function(cls: Any) -> Callable[..., Any]:
    """A function for `cls.apply`: FX wants one with a name and a module."""
    def apply(*args: Any) -> Any:
        return cls.apply(*args)

    apply.__name__ = apply.__qualname__ = f"{cls.__name__}_apply"
    apply.is_opaque = True  # type: ignore[attr-defined]  # it runs the program's own code (schemas.py)
    apply.sees_gradients = True  # type: ignore[attr-defined]  # for backends (aot/rules.py)
    apply.applies = cls  # type: ignore[attr-defined]
    return apply


def applied_class(target: Any) -> Any:
    """The class whose `apply` such a function calls; None of anything else."""
    ours = isinstance(target, FunctionType) and target.__globals__ is globals()
    return vars(target).get("applies") if ours else None
