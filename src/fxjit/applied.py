"""The functions that a graph calls for `apply` of an `autograd.Function` of the program's: of the class itself, or of what was
traced of its `forward` and `backward`."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable


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


class Plan(NamedTuple):
    """What belongs where in a call of traced functions. Values are counted through: those given, then what `forward` makes."""

    #: How many of the values that `forward` makes are results, and which of these have no gradient.
    results: int
    fixed: tuple[int, ...]
    #: Values that the program saved for `backward` (-1: None), and others that `backward` takes.
    saved: tuple[int, ...]
    kept: tuple[int, ...]
    #: What `backward` takes before gradients: places in `saved`, or, less than 0, `~place` in `kept`.
    takes: tuple[int, ...]
    #: For each operand, which of the values that `backward` makes is its gradient (-1: None).
    gradients: tuple[int, ...]
    #: Whether the program's `backward` is differentiable once only, and what its class is called.
    once: bool
    name: str
    #: The name and message of the exception that the program's `backward` raises when it runs a second time, if it does.
    repeat_error: tuple[str, str] | None


def layout_of_gradient(result: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of the stand-in for the gradient of `result`, by which `backward` or a hook were traced."""
    if result.layout is not torch.strided:
        return None
    return result.stride() if result.is_contiguous() else torch.empty_like(result, device="meta").stride()


def with_layout(gradient: Any, strides: tuple[int, ...] | None) -> Any:
    """The gradient that autograd came with, as it was traced: that of a sum is one number in many places."""
    if strides is None or not isinstance(gradient, torch.Tensor) or gradient.layout is not torch.strided:
        return gradient
    if gradient.stride() == strides:
        return gradient
    copy = gradient.contiguous()
    return copy if copy.stride() == strides else gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)


def memory_for_array(tensor: torch.Tensor) -> torch.Tensor:
    """What `tensor.numpy()` of a traced backward has the memory of. Where that pass is recorded, for a second derivative,
    NumPy's part would be lost: torch refuses, and so does this."""
    return tensor.detach() if not (tensor.requires_grad and torch.is_grad_enabled()) else torch.from_numpy(tensor.numpy())


class _Traced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Any, backward: Any, plan: Plan, read: Sequence[Any], *operands: Any) -> Any:
        made = forward(*operands, *read)
        values = [*operands, *read, *made]
        ctx.save_for_backward(*(None if place < 0 else values[place] for place in plan.saved))
        ctx.kept = [values[place] for place in plan.kept]
        ctx.mark_non_differentiable(*(made[place] for place in plan.fixed))
        ctx.traced, ctx.plan, ctx.ran = backward, plan, False
        ctx.layouts = [layout_of_gradient(each) for each in made[: plan.results]]
        return tuple(made[: plan.results])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.plan.repeat_error is not None:
            if ctx.ran:
                error, message = ctx.plan.repeat_error
                raise getattr(builtins, error)(message)
            ctx.ran = True
        saved = ctx.saved_tensors if any(place >= 0 for place in ctx.plan.takes) else ()
        taken = [saved[place] if place >= 0 else ctx.kept[~place] for place in ctx.plan.takes]
        made = ctx.traced(*taken, *map(with_layout, gradients, ctx.layouts))
        return None, None, None, None, *(None if place < 0 else made[place] for place in ctx.plan.gradients)


class _TracedOnce(_Traced):
    backward = staticmethod(once_differentiable(_Traced.backward))  # type: ignore[assignment]  # torch names its argument otherwise


def apply_traced(forward: Any, backward: Any, plan: Sequence[Any], read: Sequence[Any], *operands: Any) -> Any:
    """The target of the node: graphs of `forward` and `backward`, what they read of the program around them (no gradient goes
    there), and the tensors that `apply` was given."""
    plan = Plan(*plan)
    return _traced(plan.name, plan.once).apply(forward, backward, plan, tuple(read), *operands)


@functools.cache
def _traced(name: str, once: bool) -> Any:
    return type(name, (_TracedOnce if once else _Traced,), {})  # messages call autograd's nodes by the class


apply_traced.is_opaque = True  # type: ignore[attr-defined]  # for schemas.py: what the graphs do is seen when they run
apply_traced.sees_gradients = True  # type: ignore[attr-defined]  # for backends (aot/rules.py)
