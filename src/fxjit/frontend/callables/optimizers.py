"""torch.optim in traced code: its Python is traced as it stands but for what is here, so that the first step of a training is
the graph of the others.

A first step makes the state of an optimizer (moments, counters), and no other step does: that is done before the trace, as
eager would have it by then. It has no gradients to forget, as the others have: which there are is not looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final

import torch
from torch.optim import Optimizer

from fxjit.errors import BreakGraph, RestartTrace, leave_trace
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles, pass_on
from fxjit.frontend.values.contexts import GradModeValue, PassThroughValue, entered_managers
from fxjit.frontend.values.objects import UserObjectValue
from fxjit.frontend.values.sequence import ListValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.homes import module_of

# -- gradients -----------------------------------------------------------------------------------------------------


@handles(Optimizer.zero_grad)
def _zero_grad(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """torch keeps its own compiler away from it; here it is code like any other."""
    plain: Any = Optimizer.zero_grad
    if _forgets(*args[1:], **kwargs):
        return t.inline(t.make(_forget_gradients_of_groups), args[:1], {})
    return t.inline(t.make(plain.__wrapped__), args, kwargs)


@handles(torch.nn.Module.zero_grad)
def _zero_grad_of_module(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if _forgets(*args[1:], **kwargs):
        return t.inline(t.make(_forget_gradients_of_module), args[:1], {})
    return pass_on(t, torch.nn.Module.zero_grad, args, kwargs)


def _forgets(*args: Value, **kwargs: Value) -> bool:
    """Whether these arguments say that gradients go, rather than become zeros."""
    if not args and not kwargs:
        return True
    given = args[0] if len(args) == 1 and not kwargs else kwargs.get("set_to_none") if len(kwargs) == 1 and not args else None
    return given is not None and given.is_constant() and bool(given.as_constant())


def _forget_gradients_of_groups(optimizer: Any) -> None:
    """It raises as torch's does where the optimizer has none of what that one reads, although nothing comes of it here."""
    if not optimizer.defaults.get("foreach", False):
        optimizer.defaults.get("fused", False)
    if not hasattr(optimizer, "_zero_grad_profile_name"):
        optimizer._patch_step_function()
    for group in optimizer.param_groups:
        _forget_gradients(group["params"])


def _forget_gradients_of_module(module: Any) -> None:
    if getattr(module, "_is_replica", False):
        _zero_grad_of_replica(module)
    _forget_gradients(module.parameters())


#: It warns first; another function than torch's, which is resolved to the handler.
_zero_grad_of_replica: Final = FunctionType(torch.nn.Module.zero_grad.__code__, torch.nn.Module.zero_grad.__globals__,
                                            argdefs=torch.nn.Module.zero_grad.__defaults__)


def _forget_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """Whether there are any is not asked: the graph is the same, and before the first step of a training there are none."""
    for p in parameters:
        if type(p) is torch.nn.Parameter or type(p) is torch.Tensor or p.grad is not None:
            p.grad = None


# -- state ---------------------------------------------------------------------------------------------------------


def _made_by(init_group: Callable[..., Any]) -> None:
    @handles(init_group)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) > 1 and not kwargs:
            _make_state(t, init_group, *args)
        return pass_on(t, init_group, args, kwargs)


for _kind in vars(torch.optim).values():
    if isinstance(_kind, type) and "_init_group" in vars(_kind):
        _made_by(vars(_kind)["_init_group"])


def _make_state(t: Tracer, init_group: Callable[..., Any], owner: Value, given: Value, *lists: Value) -> None:
    """Starts the trace again with the state made, where `init_group` would make some and nothing that the frame did before
    has to do with it."""
    optimizer = owner.obj if isinstance(owner, UserObjectValue) else None
    if not isinstance(optimizer, Optimizer) or t.effects.stored_attrs(owner).keys() & {"state", "param_groups"}:
        return
    groups = [group for group in optimizer.param_groups if t.known(group) is given]
    if not groups or t.known(optimizer.state) is not None or not all(map(_lacks_state(optimizer), groups)):
        return
    if module_of(type(optimizer).step) == module_of(init_group) and not _is_written(t, optimizer.param_groups):
        groups = optimizer.param_groups  # which it makes the state of
    if id(optimizer) in t.break_points.prepared or not _untouched(t, groups):
        return
    grad_mode = torch.is_grad_enabled()

    def make() -> None:
        t.break_points.prepared.add(id(optimizer))
        try:
            with torch.set_grad_enabled(grad_mode):
                for group in filter(_lacks_state(optimizer), groups):
                    init_group(optimizer, group, *([] for _ in lists))
        except Exception:  # whatever it is, the program will come to it
            pass

    leave_trace(RestartTrace("an optimizer got its state", make))


def _lacks_state(optimizer: Optimizer) -> Callable[[dict[str, Any]], bool]:
    def lacks(group: dict[str, Any]) -> bool:
        return any(p.grad is not None and not optimizer.state.get(p) for p in group["params"])

    return lacks


def _untouched(t: Tracer, groups: Iterable[dict[str, Any]]) -> bool:
    """Whether what the state is made of is as it was when the frame began."""
    if overrides.innermost(t) is not None:
        return False
    if not all(isinstance(manager, (GradModeValue, PassThroughValue)) for manager in entered_managers(t)):
        return False
    return not any(_may_have_changed(t, group) for group in groups)


def _may_have_changed(t: Tracer, group: dict[str, Any]) -> bool:
    settings = [t.known(value) for value in group.values() if isinstance(value, torch.Tensor)]
    return (any(_is_written(t, obj) for obj in (group, group["params"], *group["params"]))
            or any(value is not None and _graph_writes(value) for value in settings))


def _graph_writes(value: Value) -> bool:
    return not isinstance(value, TensorValue) or value.write_count() != 0


def _is_written(t: Tracer, obj: object) -> bool:
    value = t.known(obj)
    return value is not None and t.effects.is_written(value)


# -- numbers of steps ----------------------------------------------------------------------------------------------


def _counts_in_tensors(update: Callable[..., Any]) -> None:
    """An update that asks the counters of steps for their numbers is traced as torch's `capturable` one, which does not. While
    they are updated, counters are float64."""
    @handles(update)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if id(update) in t.break_points.prepared:
            return _with_wide_counters(t, update, args, {**kwargs, "capturable": t.make(True)})
        if _keeps_tensors(kwargs):
            return pass_on(t, update, args, kwargs)
        try:
            return _with_wide_counters(t, update, args, kwargs)
        except BreakGraph:
            t.break_points.prepared.add(id(update))
        leave_trace(RestartTrace("the numbers of an optimizer's steps stay tensors"))


def _with_wide_counters(t: Tracer, update: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The update with counters of float64: eager calculates what depends on their numbers with Python's floats."""
    place = _place_of_counters(update.__code__)
    counters = args[place] if place is not None and place < len(args) else None
    if place is None or not isinstance(counters, ListValue) or len(set(map(id, counters.realized()))) < len(counters.items):
        return pass_on(t, update, args, kwargs)
    wide = t.inline(t.make(_widened), [counters], {})
    given = _of_one_element(t, args)
    made = pass_on(t, update, [*given[:place], wide, *given[place + 1:]], kwargs)
    t.inline(t.make(_narrowed), [counters, wide], {})
    return made


def _of_one_element(t: Tracer, args: list[Value]) -> list[Value]:
    """Lists of parameters, gradients and moments, of which those without a dimension have one. Beside a counter of float64
    they would be calculated with in float64, rounded after: a tensor without dimensions decides the dtype only with others."""
    parameters = args[0].realized() if args and isinstance(args[0], ListValue) else []
    scalars = [_dimensions(each) == 0 for each in parameters]
    if not any(scalars):
        return args
    return [_with_dimensions(t, each, scalars) if isinstance(each, ListValue) else each for each in args]


def _with_dimensions(t: Tracer, given: ListValue, scalars: list[bool]) -> Value:
    """A list of another length, or of numbers of other parameters too (NAdam's products of factors), stays as it is."""
    values = given.realized()
    if [_dimensions(each) == 0 for each in values] != scalars:
        return given
    return t.inline(t.make(_with_a_dimension), [given], {})


def _dimensions(value: Value) -> int:
    return value.fake.dim() if isinstance(value, TensorValue) else -1


def _with_a_dimension(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [each.view(1) if each.dim() == 0 else each for each in tensors]


def _keeps_tensors(kwargs: dict[str, Value]) -> bool:
    """Whether the program wants counters that stay tensors, with which eager calculates in float32 too."""
    said = kwargs.get("capturable")
    return said is not None and said.is_constant() and bool(said.as_constant())


def _place_of_counters(code: CodeType) -> int | None:
    """Of the counters among an update's arguments; None where there are none, or an operator is given them as they are."""
    names = code.co_varnames[:code.co_argcount]
    as_they_are = any(name.startswith("_fused_") for name in code.co_names)
    return None if as_they_are or _COUNTERS not in names else names.index(_COUNTERS)


#: What torch's updates call the counters.
_COUNTERS: Final = "state_steps"


def _widened(counters: list[torch.Tensor]) -> list[torch.Tensor]:
    return [each if each.dtype is torch.float64 else each.double() for each in counters]


def _narrowed(counters: list[torch.Tensor], wide: list[torch.Tensor]) -> None:
    for counter, each in zip(counters, wide, strict=True):
        if counter is not each:
            counter.copy_(each)


def _calculates_with_counters(update: Callable[..., Any]) -> None:
    """An update that has no `capturable`: torch's take no numbers out of its counters either, where a compiler traces them."""
    @handles(update)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        place = _place_of_counters(update.__code__)
        if place is None:
            return pass_on(t, update, args, kwargs)
        given = _of_one_element(t, args)
        return pass_on(t, update, [*given[:place], *args[place:place + 1], *given[place + 1:]], kwargs)


def _updates() -> Iterator[FunctionType]:
    for name in {module_of(kind) for kind in vars(torch.optim).values() if isinstance(kind, type)}:
        for fn in vars(sys.modules[name]).values():
            if isinstance(fn, FunctionType) and module_of(fn) == name and _COUNTERS in fn.__code__.co_varnames:
                yield fn


def _keyword_only(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[code.co_argcount:code.co_argcount + code.co_kwonlyargcount]


for _update in _updates():
    (_counts_in_tensors if "capturable" in _keyword_only(_update.__code__) else _calculates_with_counters)(_update)
