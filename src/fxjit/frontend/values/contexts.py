"""Context managers of torch that are state around operators: grad mode, autocast, inference mode, default device,
attention kernels, profiler ranges.

Their handlers below answer the calls that make them; the interpreter enters and leaves them like any other manager.
Entering changes the state for real while tracing (fake tensors see it) and puts the same change in the graph. At a
stop point trace.py calls `leave` on those that are open, and resume/ has `push_manager` make them again.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.attention

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, overrides, protocol
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.calls import handles, pass_on
from fxjit.frontend.values.constant import ConstantValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import ConstIs, TypeIs
from fxjit.guards.source import AttrSource, Source

Args = Sequence[Value]
Kwargs = Mapping[str, Value]


class ContextValue(Value):
    """A manager whose whole effect is known. `cls` is its Python type; `arguments` make another one like it."""

    resumable = True
    #: Whether leaving one that was entered before the trace began is traced too.
    leaves_what_was_open = False
    #: The grad mode that entering it sets; None where it sets none.
    grad_mode_inside: bool | None = None
    #: See result.ManagerValue.
    exit_state: Callable[[Any], Any] | None = None

    def __init__(self, cls: type, arguments: tuple[Any, ...] = (), source: Source | None = None) -> None:
        super().__init__(source)
        self.cls = cls
        self.arguments = arguments
        #: For each time that it was entered while tracing and is not left yet: the root frame's step and index then.
        self.entered: list[tuple[int, int]] = []

    def pytype(self) -> type:
        return self.cls

    # -- what the subclasses say ---------------------------------------------------------------------------------

    def enter(self, t: Tracer) -> Value:
        """`__enter__`."""
        return t.make(None)

    def leave(self, t: Tracer) -> None:
        """`__exit__`, whatever the reason."""

    def leave_for(self, t: Tracer, exception: Value) -> None:
        """`__exit__` because of an exception, given as its type, or in order, for None."""
        self.leave(t)

    def clone(self, t: Tracer) -> Value:
        """Another manager like it: what torch's decorators enter on each call."""
        return t.call(t.make(self.cls), [t.make(argument) for argument in self.arguments], None)

    # -- the interface to the interpreter -------------------------------------------------------------------------------

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__", *_COPIES):
            raw, _ = descriptors.look_up(t, self.cls, name)
            if isinstance(raw, types.FunctionType) and not descriptors.is_trusted(raw.__globals__.get("__name__")):
                t.break_("context-unsupported", value=self.describe(), type=self.cls.__name__,
                         why=f"the program has put a `{name}` of its own there")
            return ContextMethodValue(self, name)
        if name == "__class__":
            return t.make(self.cls)
        if name == "mode" and self.cls in (torch.inference_mode, torch.set_grad_enabled):  # what their `clone` reads
            return t.make(self.arguments[0])
        return self.own_attribute(t, name)

    def own_attribute(self, t: Tracer, name: str) -> Value:
        """An attribute that only some managers have."""
        t.break_("value-attribute", name=name, value=self.describe(), type=self.cls.__name__,
                 why="only entering and leaving it is traced")

    def bind_special(self, t: Tracer, name: str) -> Value | None:
        return self.tp_getattro(t, name) if name in ("__enter__", "__exit__") else None

    def tp_call(self, t: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """As a decorator: torch's own wrapper is traced."""
        call = protocol.type_lookup(self.cls, "__call__")
        if not hasattr(call, "__code__"):
            t.break_("call-unsupported", callable=self.describe())
        return t.call(t.make(call), [self, *args], kwargs)

    def push_manager(self, cg: Rebuilder) -> None:
        cg.call(self.cls, *self.arguments)

    def rebuild(self, cg: Rebuilder) -> None:
        self.push_manager(cg)


#: The methods by which the decorators of torch and contextlib make another manager for each call.
_COPIES: Final = ("clone", "_recreate_cm")


class ContextMethodValue(Value):
    """`manager.__enter__`, `manager.__exit__` or one that makes another such manager, bound."""

    def __init__(self, manager: ContextValue, name: str) -> None:
        super().__init__(None)
        self.manager = manager
        self.name = name

    @property
    def self_value(self) -> Value:
        return self.manager

    def pytype(self) -> type:
        return type(self.tp_call)

    def describe(self) -> str:
        return f"{self.manager.cls.__name__}.{self.name}"

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__self__":  # by which torch's wrapper of a function is named
            return self.manager
        return super().tp_getattro(t, name)

    def tp_call(self, t: Tracer, args: Args, kwargs: Kwargs) -> Value:
        manager = self.manager
        if isinstance(manager, DeviceValue) and overrides.innermost(t) is not None:
            overrides.refuse(t, "a default device, which is a mode as well, is entered under it")
        if self.name == "__enter__":
            manager.entered.append((t.root.steps, t.root.index))
            entered_managers(t).append(manager)
            return manager.enter(t)
        if self.name in _COPIES:
            return manager.clone(t)
        if manager.entered:
            manager.entered.pop()
            entered_managers(t).remove(manager)
        elif not manager.leaves_what_was_open:
            t.break_("context-unsupported", value=manager.describe(), type=manager.cls.__name__, why="it is left, and was "
                     "entered before")
        manager.leave_for(t, args[0] if args else t.make(None))
        return t.make(None)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push(self.manager)
        cg.asm.load_attr(self.name)


class GuardedValue(ContextValue):
    """A manager that holds an object of torch's between entering and leaving."""

    def open(self, t: Tracer, enter: Callable[..., Any], *arguments: object) -> None:
        held = t.emit(enter, [t.make(argument) for argument in arguments])
        _open_managers(t).append(held)

    def close(self, t: Tracer, leave: Callable[..., Any]) -> None:
        t.emit(leave, [_open_managers(t).pop()])


def _open_managers(t: Tracer) -> list[Value]:
    held: list[Value] = t.new_source_state("open managers").setdefault("held", [])
    return held


def entered_managers(t: Tracer) -> list[ContextValue]:
    """torch's managers that were entered while tracing and not left."""
    found: list[ContextValue] = t.new_source_state("entered managers").setdefault("all", [])
    return found


def entered_for_real(t: Tracer) -> list[contextlib.AbstractContextManager[Any]]:
    """The program's managers that the trace has entered itself, for what they set to be seen while tracing."""
    found: list[contextlib.AbstractContextManager[Any]] = t.new_source_state("entered for real").setdefault("all", [])
    return found


def left_open(t: Tracer) -> list[ContextValue]:
    """The managers that were entered while tracing and not left, whose object or state new code cannot make as it is then."""
    return [manager for manager in entered_managers(t) if not manager.leaves_what_was_open]


def abandon(t: Tracer) -> None:
    """The trace ends where it is: close for real what its managers hold open, innermost first."""
    held = _open_managers(t)
    while held:
        with t.fake_execution():  # a manager restores the dispatch keys it was entered with
            held.pop().obj.__exit__(None, None, None)  # type: ignore[attr-defined]  # OpaqueValues
    for manager in reversed(entered_for_real(t)):
        manager.__exit__(None, None, None)
    entered_for_real(t).clear()


def leave_state(t: Tracer, grad_mode_before: bool) -> None:
    """The frame ends, or stops: a grad mode that it leaves behind is set after the graph, whatever a backend made of it."""
    if torch.is_grad_enabled() != grad_mode_before:
        t.effects.call_later(torch._C._set_grad_enabled, (torch.is_grad_enabled(),))


# -- grad mode -----------------------------------------------------------------------------------------------------


def set_grad_mode(t: Tracer, mode: bool) -> None:
    """From here on, in the graph and in the trace."""
    if overrides.innermost(t) is not None:
        overrides.refuse(t, "the grad mode is set under it")
    if torch.is_grad_enabled() != mode:
        t.emit(torch._C._set_grad_enabled, [t.make(mode)])
        root = t.root
        t.new_source_state("grad mode")["set at"] = (root.steps, root.index)


def grad_mode_set_at(t: Tracer) -> tuple[int, int]:
    """The root frame's step and index when the grad mode was last changed."""
    place: tuple[int, int] = t.new_source_state("grad mode")["set at"]
    return place


def grad_mode_exit_state(manager: Any) -> Any:
    """`manager`, or one for the grad mode that untraced code has set in its block."""
    now = torch.is_grad_enabled()
    meant = manager.mode if type(manager) is torch.set_grad_enabled else type(manager) is torch.enable_grad
    return manager if now == meant else torch.enable_grad() if now else torch.no_grad()


class GradModeValue(ContextValue):
    """no_grad, enable_grad and set_grad_enabled."""

    leaves_what_was_open = True
    exit_state = staticmethod(grad_mode_exit_state)

    def __init__(self, cls: type, mode: bool, arguments: tuple[Any, ...], previous: bool | None = None,
                 source: Source | None = None, obj: Any = None) -> None:
        super().__init__(cls, arguments, source)
        self.mode = self.grad_mode_inside = mode
        self.previous = previous
        self.obj = obj

    def enter(self, t: Tracer) -> Value:
        if self.cls is not torch.set_grad_enabled or self.previous is None:
            self.previous = torch.is_grad_enabled()
            if self.source is not None:
                t.effects.store_attr(self, "prev", t.make(self.previous))
        set_grad_mode(t, self.mode)
        return t.make(None)

    def leave(self, t: Tracer) -> None:
        if self.previous is None and self.source is not None and hasattr(self.obj, "prev"):
            self.previous = t.wrap(self.obj.prev, AttrSource(self.source, "prev")).realize().as_constant()
        if self.previous is None:
            t.break_("context-unsupported", value=self.describe(), type=self.cls.__name__,
                     why="it is left, and was not entered")
        set_grad_mode(t, bool(self.previous))

    def own_attribute(self, t: Tracer, name: str) -> Value:
        if name == "prev" and self.previous is not None:  # which set_grad_enabled brings back where it is a decorator
            return t.make(self.previous)
        return super().own_attribute(t, name)

    def rebuild(self, cg: Rebuilder) -> None:
        if self.previous is None:
            self.push_manager(cg)
        else:
            cg.call(entered_grad_mode_manager, self.cls, self.mode, self.previous)

    def push_manager(self, cg: Rebuilder) -> None:
        if self.cls is torch.set_grad_enabled:
            cg.call(grad_mode_manager, self.mode, bool(self.previous))
        else:
            super().push_manager(cg)


def entered_grad_mode_manager(cls: Any, mode: bool, previous: bool) -> Any:
    """A manager of the grad mode that was entered before: leaving it restores `previous`."""
    if cls is torch.set_grad_enabled:
        return grad_mode_manager(mode, previous)
    made = cls()
    made.prev = previous
    return made


def grad_mode_manager(mode: bool, previous: bool) -> torch.set_grad_enabled:
    """A `set_grad_enabled` that was made before: making one sets the mode at once."""
    made = torch.set_grad_enabled.__new__(torch.set_grad_enabled)
    made.mode, made.prev = mode, previous
    return made


def _no_grad_class(cls: type, mode: bool) -> None:
    """`with torch.no_grad():`, and `@torch.no_grad` with or without parentheses."""
    @handles(cls)
    def make(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        manager = GradModeValue(cls, mode, ())
        return t.call(manager, args, kwargs) if args else manager

    @wraps(cls)
    def wrap(t: Tracer, obj: object, source: Source) -> Value:
        t.guard(TypeIs(source, cls))
        return GradModeValue(cls, mode, (), source=source, obj=obj)


_no_grad_class(torch.no_grad, False)
_no_grad_class(torch.enable_grad, True)


@handles(torch.set_grad_enabled)
def _set_grad_enabled(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Takes effect when it is called; the manager only restores."""
    if len(args) + len(kwargs) != 1:
        t.raise_(TypeError, "set_grad_enabled() takes one argument")
    mode = known(t, "set_grad_enabled", *args, **kwargs)[0]
    previous = torch.is_grad_enabled()
    set_grad_mode(t, bool(mode))
    return GradModeValue(torch.set_grad_enabled, bool(mode), (bool(mode),), previous)


@wraps(torch.set_grad_enabled)
def _wrap_set_grad_enabled(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, torch.set_grad_enabled))
    t.guard(ConstIs(AttrSource(source, "mode"), obj.mode))
    t.guard(ConstIs(AttrSource(source, "prev"), obj.prev))
    return GradModeValue(torch.set_grad_enabled, obj.mode, (obj.mode,), obj.prev, source)


@handles(torch._C._set_grad_enabled)
def _raw_set_grad_enabled(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    set_grad_mode(t, bool(known(t, "_set_grad_enabled", *args, **kwargs)[0]))
    return t.make(None)


def known(t: Tracer, function: str, *args: Value, **kwargs: Value) -> list[Any]:
    """The constants behind arguments that steer state, which a number that varies becomes; others break."""
    return [_constant(t, function, value.realize()) for value in (*args, *kwargs.values())]


def _constant(t: Tracer, function: str, value: Value) -> Any:
    if isinstance(value, SymValue):
        value = value.specialize(t)
    if not value.is_constant():
        t.break_("value-global-state", function=function)
    return value.as_constant()


# -- inference mode ------------------------------------------------------------------------------------------------


class InferenceModeValue(GuardedValue):
    """torch.inference_mode."""

    def __init__(self, mode: bool, source: Source | None = None) -> None:
        super().__init__(torch.inference_mode, (mode,), source)
        self.mode = mode
        self.grad_mode_inside = not mode

    def enter(self, t: Tracer) -> Value:
        torch_private.need("inference_mode in compiled code")
        t.new_source_state("inference mode").setdefault("at the start", torch.is_inference_mode_enabled())
        self.open(t, torch_private.get("torch.autograd.grad_mode._enter_inference_mode"), self.mode)
        return t.make(None)

    def leave(self, t: Tracer) -> None:
        self.close(t, torch_private.get("torch.autograd.grad_mode._exit_inference_mode"))


@handles(torch.inference_mode)
def _inference_mode(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = [*args, *kwargs.values()]
    if given and given[0].realize().pytype() is not bool:  # a decorator without parentheses, of what is no function too
        return t.call(InferenceModeValue(True), given, {})
    return InferenceModeValue(*known(t, "inference_mode", *given) or [True])


@wraps(torch.inference_mode)
def _wrap_inference_mode(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, torch.inference_mode))
    t.guard(ConstIs(AttrSource(source, "mode"), obj.mode))
    return InferenceModeValue(obj.mode, source)


# -- autocast ------------------------------------------------------------------------------------------------------


def autocast_exit_state(manager: torch.autocast) -> torch.autocast:
    """`manager`, or one for the state of autocast that untraced code has set in its block."""
    device = manager.device
    now = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled()
    if now == (manager._enabled, manager.fast_dtype, manager._cache_enabled):
        return manager
    return torch.autocast(device, dtype=now[1], enabled=now[0], cache_enabled=now[2])


class AutocastValue(GuardedValue):
    """torch.autocast and its spellings for one device; `settings` are what `_enter_autocast` takes."""

    exit_state = staticmethod(autocast_exit_state)

    def __init__(self, manager: Any, source: Source | None = None) -> None:
        self.settings = (manager.device, manager.fast_dtype, manager._enabled, manager._cache_enabled)
        super().__init__(torch.autocast, self.settings, source)
        self.spelled = type(manager)

    def pytype(self) -> type:
        return self.spelled

    def enter(self, t: Tracer) -> Value:
        torch_private.need("autocast in compiled code")
        self.open(t, torch_private.get("torch.amp.autocast_mode._enter_autocast"), *self.settings)
        return self

    def leave(self, t: Tracer) -> None:
        self.close(t, torch_private.get("torch.amp.autocast_mode._exit_autocast"))

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        facts = dict(zip(("device", "fast_dtype", "_enabled", "_cache_enabled"), self.settings, strict=True))
        return t.make(facts[name]) if name in facts else super().tp_getattro(t, name)


def autocast_opened(t: Tracer) -> set[str]:
    """The devices whose autocast the trace has set, by a manager that is still open."""
    return {manager.settings[0] for manager in entered_managers(t) if isinstance(manager, AutocastValue)}


_AUTOCASTS: Final = tuple(dict.fromkeys((
    torch.autocast, torch.cuda.amp.autocast_mode.autocast, torch.cpu.amp.autocast_mode.autocast)))


_AUTOCAST_ARGS: Final = ("device_type", "dtype", "enabled", "cache_enabled")


def _guard_defaults(t: Tracer, manager: torch.autocast, given: dict[str, Any]) -> None:
    """The process's setting, where the program has none: read through the trace, which guards it."""
    if given.get("dtype") is None:
        t.call(t.make(torch.get_autocast_dtype), [t.make(manager.device)], {})
    if given.get("cache_enabled") is None:
        t.call(t.make(torch.is_autocast_cache_enabled), [], {})


def _autocast_class(cls: Any) -> None:
    @handles(cls)
    def make(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        known(t, "autocast", *args, **kwargs)
        given = {name: value.as_constant() for name, value in kwargs.items()}
        try:
            manager = cls(*[value.as_constant() for value in args], **given)
        except Exception as error:  # all arguments are known: the program raises the same
            t.raise_(type(error), *error.args)
        if cls is torch.autocast:
            in_order = [value.as_constant() for value in args]
            _guard_defaults(t, manager, dict(zip(_AUTOCAST_ARGS, in_order, strict=False)) | given)
        return AutocastValue(manager)

    @wraps(cls)
    def wrap(t: Tracer, obj: Any, source: Source) -> Value:
        t.guard(TypeIs(source, cls))
        for name in ("device", "fast_dtype", "_enabled", "_cache_enabled"):
            t.guard(ConstIs(AttrSource(source, name), getattr(obj, name)))
        return AutocastValue(obj, source)


for _cls in _AUTOCASTS:
    _autocast_class(_cls)


# -- the default device --------------------------------------------------------------------------------------------


class DeviceValue(ContextValue):
    """`with torch.device(...)`: factory functions in the block get the device (torchfn.py reads `default_device`)."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(torch.device, (str(device),))
        self.device = device

    def enter(self, t: Tracer) -> Value:
        _devices(t).append(self.device)
        return t.make(self.device)

    def leave(self, t: Tracer) -> None:
        _devices(t).pop()


def manager_of(value: Value) -> Value:
    """The manager that `with value:` enters: a device is a plain constant anywhere else."""
    if issubclass(value.pytype(), torch.device) and value.is_constant():
        return DeviceValue(value.as_constant())
    return value


def _devices(t: Tracer) -> list[torch.device]:
    stack: list[torch.device] = t.new_source_state("default device").setdefault("stack", [])
    return stack


def default_device(t: Tracer) -> torch.device | None:
    """The device of the innermost traced `with torch.device(...)`."""
    stack = _devices(t)
    return stack[-1] if stack else None


@handles(torch.device.__dict__["__enter__"])
def _enter_device(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ContextMethodValue(DeviceValue(args[0].as_constant()), "__enter__").tp_call(t, [], {})


@handles(torch.device.__dict__["__exit__"])
def _exit_device(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    open_ones = [manager for manager in entered_managers(t) if isinstance(manager, DeviceValue)]
    manager = open_ones[-1] if open_ones else DeviceValue(args[0].as_constant())
    return ContextMethodValue(manager, "__exit__").tp_call(t, [], {})


# -- attention kernels ---------------------------------------------------------------------------------------------


_set_kernels: Final = torch_private.optional("torch.nn.attention._sdpa_kernel")
_kernels_now: Final = torch_private.optional("torch.nn.attention._cur_sdpa_kernel_backends")
_set_kernel_order: Final = torch_private.get_or("torch._C._set_sdp_priority_order", lambda order: None)
_kernel_order: Final = torch_private.get_or("torch._C._get_sdp_priority_order", list)


def set_attention_kernels(names: Sequence[str], priority: Sequence[int] | None) -> None:
    """Allow just these kernels of scaled_dot_product_attention. Called from graphs, so its arguments are plain."""
    kernels = [getattr(torch.nn.attention.SDPBackend, name) for name in names]
    _set_kernels(kernels, False)
    if priority is not None:
        _set_kernel_order(list(priority))


set_attention_kernels.changes_state = True  # type: ignore[attr-defined]  # for backends (graph/facts.py)
_KERNEL_SWITCHES: Final = ("cudnn", "flash", "mem_efficient", "math", "overrideable")


def attention_kernels() -> tuple[tuple[bool, ...], list[int]]:
    """Which kernels of scaled_dot_product_attention are allowed now, and in which order."""
    allowed = tuple(getattr(torch._C, f"_get_{name}_sdp_enabled")() for name in _KERNEL_SWITCHES)
    return allowed, _kernel_order()


def restore_attention_kernels(state: tuple[tuple[bool, ...], list[int]]) -> None:
    """As they were when `attention_kernels` was read."""
    if attention_kernels() == state:
        return
    for name, enabled in zip(_KERNEL_SWITCHES, state[0], strict=True):
        getattr(torch._C, f"_set_sdp_use_{name}")(enabled)
    _set_kernel_order(state[1])


@wraps(torch.nn.attention.SDPBackend)
def _wrap_kernel(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(ConstIs(source, obj))
    return ConstantValue(obj, source)


class AttentionKernels(contextlib.ContextDecorator):
    """`sdpa_kernel` as an object whose arguments can be read: what a resume function enters again."""

    def __init__(self, kernels: tuple[str, ...], set_priority: bool) -> None:
        self.kernels = kernels
        self.set_priority = set_priority
        backends = [getattr(torch.nn.attention.SDPBackend, name) for name in kernels]
        self._manager = torch.nn.attention.sdpa_kernel(backends, set_priority)

    def _recreate_cm(self) -> AttentionKernels:
        return AttentionKernels(self.kernels, self.set_priority)

    def __enter__(self) -> Any:
        return self._manager.__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        self._manager.__exit__(*exc_info)


class AttentionKernelsValue(ContextValue):
    """torch.nn.attention.sdpa_kernel."""

    def __init__(self, kernels: list[Any], set_priority: bool, source: Source | None = None) -> None:
        super().__init__(contextlib._GeneratorContextManager, (kernels, set_priority), source)
        self.kernels = kernels
        self.set_priority = set_priority
        self.previous: list[tuple[list[str], list[int]]] = []

    def enter(self, t: Tracer) -> Value:
        torch_private.need("sdpa_kernel")
        allowed = [kernel.name for kernel in _kernels_now()]
        self.previous.append((allowed, list(_kernel_order())))
        order = [int(kernel) for kernel in self.kernels] if self.set_priority else []
        rest = [number for number in self.previous[-1][1] if number not in order]
        t.emit(set_attention_kernels, [[kernel.name for kernel in self.kernels], order + rest if order else None])
        return t.call(t.make(dict), [], None)

    def leave(self, t: Tracer) -> None:
        t.emit(set_attention_kernels, list(self.previous.pop()))

    def clone(self, t: Tracer) -> Value:
        return AttentionKernelsValue(self.kernels, self.set_priority)

    def push_manager(self, cg: Rebuilder) -> None:
        cg.call(AttentionKernels, tuple(kernel.name for kernel in self.kernels), self.set_priority)


@wraps(AttentionKernels)
def _wrap_attention_kernels(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, AttentionKernels))
    t.guard(ConstIs(AttrSource(source, "kernels"), obj.kernels))
    t.guard(ConstIs(AttrSource(source, "set_priority"), obj.set_priority))
    return AttentionKernelsValue([getattr(torch.nn.attention.SDPBackend, name) for name in obj.kernels], obj.set_priority,
                                 source)


@handles(torch.nn.attention.sdpa_kernel)
def _sdpa_kernel(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("backends", "set_priority"), args, strict=False)) | kwargs
    backends = given["backends"]
    items = [backends] if backends.is_constant() else protocol.unpack(t, backends)
    kernels = list(dict.fromkeys(known(t, "sdpa_kernel", *items)))
    priority = "set_priority" in given and protocol.truth(t, given["set_priority"])
    return AttentionKernelsValue(kernels, priority)


# -- saved tensors -------------------------------------------------------------------------------------------------


#: Where torch does not say, there may be some.
_saved_tensors_hooks: Final = torch_private.get_or(
    "torch._C._autograd._top_saved_tensors_default_hooks", lambda ignore_disabled: True)


def saved_tensors_hooks_are_active() -> bool:
    return _saved_tensors_hooks(True) is not None


def hidden_from_saved_tensor_hooks() -> contextlib.AbstractContextManager[None]:
    """Disables the user's saved-tensor hooks: autograd saves fake tensors meanwhile, which they must not see."""
    if _saved_tensors_hooks(False) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


# -- managers without an effect on the graph -----------------------------------------------------------------------


class PassThroughValue(ContextValue):
    """A manager that changes nothing a graph can see: nullcontext, profiler ranges."""

    def __init__(self, cls: Any, arguments: tuple[Any, ...], result: Value | None = None) -> None:
        super().__init__(cls, arguments)
        self.result = result
        self.leaves_what_was_open = cls is contextlib.nullcontext

    def enter(self, t: Tracer) -> Value:
        if self.cls is contextlib.nullcontext:
            return self.result if self.result is not None else t.make(None)
        return self

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "enter_result":
            return self.result if self.result is not None else t.make(None)
        return super().tp_getattro(t, name)

    def push_manager(self, cg: Rebuilder) -> None:
        if self.result is None:
            cg.call(self.cls, *self.arguments)
        else:
            cg.call(self.cls, self.result)


@handles(contextlib.nullcontext)
def _nullcontext(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = [*args, *kwargs.values()]
    return PassThroughValue(contextlib.nullcontext, (), given[0] if given else None)


@handles(torch.fx.traceback.annotate)
def _annotate(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Notes on the nodes of graphs that torch makes, of which nothing is seen when the program runs."""
    return PassThroughValue(contextlib.nullcontext, ())


@wraps(contextlib.nullcontext)
def _wrap_nullcontext(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, contextlib.nullcontext))
    manager = PassThroughValue(contextlib.nullcontext, (), t.wrap(obj.enter_result, AttrSource(source, "enter_result")))
    manager.source = source
    return manager


class RecordFunctionValue(PassThroughValue):
    """A profiler's range. Around a graph break it is entered again only where a profiler would see it: entering it costs more
    than the break."""

    def push_manager(self, cg: Rebuilder) -> None:
        cg.call(seen_by_profilers, *self.arguments)

    def rebuild(self, cg: Rebuilder) -> None:
        super().push_manager(cg)


_UNSEEN: Final = contextlib.nullcontext()

#: Where torch does not say, there may be one.
_profiler_enabled: Final = torch_private.get_or("torch._C._autograd._profiler_enabled", lambda: True)


def seen_by_profilers(name: str, args: str | None = None) -> contextlib.AbstractContextManager[Any]:
    """The range, while there is a profiler."""
    return torch.profiler.record_function(name, args) if _profiler_enabled() else _UNSEEN


@handles(torch.profiler.record_function)
def _record_function(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return RecordFunctionValue(torch.profiler.record_function, tuple(known(t, "record_function", *args, **kwargs)))


@wraps(torch.profiler.record_function)
def _wrap_record_function(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, torch.profiler.record_function))
    t.guard(ConstIs(AttrSource(source, "name"), obj.name))
    t.guard(ConstIs(AttrSource(source, "args"), obj.args))
    made = RecordFunctionValue(torch.profiler.record_function, (obj.name, obj.args))
    made.source = source
    return made


class WithoutTorchFunction(ContextValue):
    """`__torch_function__` of arguments, or that of modes too, is not called inside."""

    def enter(self, t: Tracer) -> Value:
        overrides.disabled_by(t).append(self.cls)
        return t.make(None)

    def leave(self, t: Tracer) -> None:
        overrides.disabled_by(t).remove(self.cls)


def _without_torch_function(cls: Any) -> None:
    @handles(cls)
    def make(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return WithoutTorchFunction(cls)


for _off in (torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction):
    _without_torch_function(_off)


# -- managers that are not traced ----------------------------------------------------------------------------------


def _refuse(cls: Any, why: str) -> None:
    @handles(cls)
    def refuse(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        t.break_("context-unsupported", value=getattr(cls, "__qualname__", str(cls)), type=type(cls).__name__, why=why)


for _manager, _why in (
    (torch.autograd.set_detect_anomaly, "it changes how the autograd engine runs"),
    (torch.autograd.detect_anomaly, "it changes how the autograd engine runs"),
    (torch.autograd.profiler.profile, "it measures the running program"),
    (torch.profiler.profile, "it measures the running program"),
    (torch.autograd.set_multithreading_enabled, "it changes how the autograd engine runs"),
):
    _refuse(_manager, _why)


# -- their methods, called on the class ----------------------------------------------------------------------------


def _method_of_class(fn: Any, name: str) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        manager = args[0].realize() if args else None
        if isinstance(manager, ContextValue):
            return ContextMethodValue(manager, name).tp_call(t, args[1:], kwargs)
        return pass_on(t, fn, args, kwargs)


def methods_of_class(cls: type) -> None:
    """`cls.__enter__(manager)` and `cls.__exit__(manager, ...)` are traced, as contextlib.ExitStack calls them."""
    for name in ("__enter__", "__exit__"):
        if name in cls.__dict__:
            _method_of_class(cls.__dict__[name], name)


for _cls in (torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode, *_AUTOCASTS, AttentionKernels,
             contextlib.nullcontext, torch.profiler.record_function):
    methods_of_class(_cls)
