"""`OptimizedModule`: what `compile` returns for an nn.Module.

It is a module with the original as its only child, `_orig_mod`: parameters, buffers, `train()`, hooks and `state_dict`
(whose names begin with `_orig_mod.`, as torch.compile's do) are the original's, attributes are read from it and written
to it, and calling it calls the original with a region around.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any

import torch
import torch.nn.modules.module as _torch_module
from torch import nn
from torch.nn.parameter import is_lazy

from . import _C, torch_private
from .artifact import METHODS
from .options import RegionOptions
from .regions import code_of, compiled_function, disabled_function, inlining, is_of_another_trace, note_options, on_miss
from .skips import Verdict, function_verdict, is_librarys, marks

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OWN_ATTRIBUTES = frozenset({"_orig_mod", "options", "frozen", "reason", "forward", "_called", "_modules", "training"})


class OptimizedModule(nn.Module):
    """`module` compiled with `options`; options None: disabled; frozen: nothing new is compiled."""

    _orig_mod: nn.Module

    def __init__(
        self, module: nn.Module, options: RegionOptions | None, *, frozen: bool = False, reason: str | None = None
    ) -> None:
        super().__init__()
        # A module that is compiled twice is compiled once: what counts is said last.
        self._modules["_orig_mod"] = module._orig_mod if isinstance(module, OptimizedModule) else module
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "frozen", frozen)
        object.__setattr__(self, "reason", reason)
        self._follow_class()

    def _follow_class(self) -> None:
        """`forward` calls what the original's class has for `__call__` now."""
        object.__setattr__(self, "_called", type(self._orig_mod).__call__)
        object.__setattr__(self, "forward", self._make_forward())

    def _make_forward(self) -> Any:
        module = self._orig_mod
        options: RegionOptions | None = self.options  # type: ignore[assignment]  # nn.Module types every attribute
        if options is None:
            disabled = _C.DisabledFunction(module.__call__)
            marks.set_disabled(disabled, module.__call__, True, self.reason)  # type: ignore[arg-type]  # not only functions
            return disabled
        own_frame = inlining(module, _alike(module), _kept_as(module)) if _needs_own_frame(module) else None
        compiled = _C.CompiledFunction(own_frame or module.__call__, _C.Region(options, None if self.frozen else on_miss))
        marks.set_compiled(compiled, module.__call__)
        for entered in (module.forward, own_frame):
            if entered is not None:
                note_options(entered, options)
        return compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # In C for calls from outside (frontend/_modules.c), as long as no `if` below changes anything.
        called: Any = type(self._modules["_orig_mod"]).__call__
        if called is not self._called and not is_of_another_trace(called, self._called):
            self._follow_class()
        if not (self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks):
            # Straight to the dicts: an attribute that is not there costs more than a small graph.
            if "_initialize_hook" in self._modules["_orig_mod"].__dict__:  # type: ignore[union-attr]  # there always
                return self._call_lazy(args, kwargs)
            # Hooks on all modules of the process are run by the original, once.
            return self.forward(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def _call_lazy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The parameters of a lazy module are made at its first call, which is not for tracing."""
        module: Any = self._orig_mod
        if module.has_uninitialized_params():
            module._infer_parameters(module, args, kwargs)
        return self.forward(*args, **kwargs)

    @property  # type: ignore[misc]  # what isinstance reads where type(self) is not the class
    def __class__(self) -> type:  # type: ignore[override]  # an attribute in object
        """Libraries that unwrap compiled modules (Lightning, accelerate) look for torch's class of them."""
        eval_frame = sys.modules.get("torch._dynamo.eval_frame")
        return getattr(eval_frame, "OptimizedModule", None) or type(self)

    def _become(self, cls: type) -> None:
        """`self.__class__ = cls`, of a class that was made of what `self.__class__` was, as `fully_shard` does: the same class
        is made of this one."""
        told = self.__class__
        bases = tuple(type(self) if base is told else base for base in cls.__bases__)
        own = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
        object.__dict__["__class__"].__set__(self, type(cls)(cls.__name__, bases, own))

    @property
    def dynamo_ctx(self) -> Callable[[Any], Any]:
        """Compiles a function, a method of the original's or a module with what this module was compiled with, as torch's
        attribute of this name does."""
        return functools.partial(_compiled_alike, self.options, self.frozen, self.reason)  # type: ignore[arg-type]  # see above


    @property
    def training(self) -> bool:  # type: ignore[override]  # an attribute in nn.Module
        module = self.__dict__.get("_modules", {}).get("_orig_mod")
        return True if module is None else module.training

    @training.setter
    def training(self, value: bool) -> None:
        module = self.__dict__.get("_modules", {}).get("_orig_mod")
        if module is not None:
            module.training = value

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self.__dict__["_modules"]["_orig_mod"]
        try:
            return getattr(self._orig_mod, name)
        except AttributeError:
            if name not in METHODS or self.options is None:
                raise
        return functools.partial(METHODS[name], self)  # the original has none of its own

    def __setattr__(self, name: str, value: Any) -> None:
        modules = self.__dict__.get("_modules")
        if name == "__class__" and self.__class__ in value.__mro__:
            self._become(value)
        elif name == "training":
            OptimizedModule.training.fset(self, value)  # type: ignore[attr-defined]  # a property
        elif modules is None or "_orig_mod" not in modules or name in _OWN_ATTRIBUTES:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN_ATTRIBUTES:
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})

    # Containers: Python looks these up on the class, where `__getattr__` has no say.
    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]  # a TypeError where the original has no length

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __getitem__(self, key: Any) -> Any:
        return self._orig_mod[key]  # type: ignore[index]  # modules that are containers can

    def __iter__(self) -> Any:
        return iter(self._orig_mod)  # type: ignore[call-overload]  # see above

    def __contains__(self, key: Any) -> bool:
        return key in self._orig_mod  # type: ignore[operator]  # see above

    def __copy__(self) -> OptimizedModule:
        """A copy of the original, compiled in the same way: two whose attributes are their own."""
        made, (module, *rest) = self.__reduce_ex__(2)
        return made(copy.copy(module), *rest)  # type: ignore[no-any-return]  # `_rebuild`

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        hooks = {name: dict(self.__dict__[name]) for name in _HOOKS if self.__dict__.get(name)}
        return _rebuild, (self._orig_mod, self.options, self.frozen, self.reason, hooks)


_C.know_modules(nn.Module, vars(_torch_module), torch_private.get("torch._C._get_tracing_state"), OptimizedModule)


def _compiled_alike(options: RegionOptions | None, frozen: bool, reason: str | None, fn: Any) -> Any:
    if isinstance(fn, nn.Module):
        return OptimizedModule(fn, options, frozen=frozen, reason=reason)
    return disabled_function(fn, reason) if options is None else compiled_function(options, fn, frozen=frozen)


def _rebuild(module: nn.Module, options: Any, frozen: bool, reason: str | None, hooks: dict[str, Any]) -> OptimizedModule:
    made = OptimizedModule(module, options, frozen=frozen, reason=reason)
    for name, own in hooks.items():
        made.__dict__[name].update(own)
    return made


def _needs_own_frame(module: nn.Module) -> bool:
    """Whether the call has to start in a frame of ours: hooks are to be traced too, or `forward` is torch's own."""
    hooks = [hook for owner, prefix in ((module, ""), (_torch_module, "_global")) for kind in _HOOKS
             for hook in (getattr(owner, prefix + kind, None) or {}).values()]
    if hooks and not any(map(_is_never_traced, hooks)):
        return True
    forward = getattr(module.forward, "__func__", module.forward)
    code = getattr(forward, "__code__", None)
    return code is not None and is_librarys(code, forward.__globals__)


def _is_never_traced(hook: Any) -> bool:
    """Whether the graph would break at this hook (FSDP2's, disabled ones): then the hooks run as they are, and `forward` alone
    is compiled, without a break."""
    fn = getattr(hook, "__func__", hook)
    if isinstance(fn, _C.DisabledFunction):
        return True
    return isinstance(fn, FunctionType) and function_verdict(fn)[0] is Verdict.SKIP


def _alike(module: nn.Module) -> Hashable:
    """What equal blocks of a model have in common: classes, hooks' code, sizes of parameters and buffers.

    Blocks with one such description share entries as the blocks of a user's class do, whose `forward` has one code object.
    Guards decide what fits; the description only keeps modules that have little in common from using up one limit of entries.
    """
    parts: list[Hashable] = []
    for name, part in module.named_modules():
        hooks = tuple(code_of(hook) for kind in _HOOKS for hook in getattr(part, kind, {}).values())
        tensors = (*part._parameters.items(), *part._buffers.items())
        sizes = tuple((key, tuple(value.shape), value.dtype) for key, value in tensors if _has_shape(value))
        parts.append((name, type(part), hooks, sizes))
    return tuple(parts)


def _kept_as(module: nn.Module, *more: str) -> Hashable:
    """What modules have in common that share entries also when the one before is gone: of torch's classes alone, all that is
    described above, with the numbers and texts that the modules hold, of which each makes another program. None for others."""
    parts = list(module.modules())
    hooks = any(getattr(part, kind, None) for part in parts for kind in _HOOKS)
    if hooks or any(type(part).__module__.partition(".")[0] != "torch" for part in parts):
        return None
    facts = tuple((name, repr(value)) for part in parts for name, value in vars(part).items() if _is_plain(value))
    return (*more, _alike(module), facts)


def _is_plain(value: object) -> bool:
    return type(value) in (bool, int, float, str) or (type(value) is tuple and all(map(_is_plain, value)))


def _has_shape(value: torch.Tensor | None) -> bool:
    return value is not None and not is_lazy(value)


def compile_in_place(module: nn.Module, options: RegionOptions) -> None:
    """`nn.Module.compile()` under the drop-in: the module keeps its identity, and calling it runs compiled."""
    compiled = OptimizedModule(module, options)
    torch.nn.Module.__setattr__(module, "_compiled_call_impl", _inner_call(module, compiled))


def _inner_call(module: nn.Module, compiled: OptimizedModule) -> Any:
    """`_compiled_call_impl` must not go through `module.__call__`, which would look for `_compiled_call_impl` again."""
    alike, kept_as = ("_call_impl", _alike(module)), _kept_as(module, "_call_impl")
    target = inlining(module._call_impl, alike, kept_as) if _needs_own_frame(module) else module._call_impl
    region: _C.Region = compiled.__dict__["forward"].region
    return _C.CompiledFunction(target, region)
