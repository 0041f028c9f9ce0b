"""`torch.Generator`s on the CPU that are not torch's own: what is drawn from one without looking at a tensor is drawn before
the graph runs, as with Python's generators (rng.py), and is an input of the graph.

Torch's default generators break: operators of the graph draw from them too. So do functions that are given a tensor beside the
generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fxjit.frontend.rng_steps import StepResult
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.contexts import default_device
from fxjit.frontend.values.random_values import random_value, step
from fxjit.frontend.values.rng import RngMethodValue, RngValue, generator_argument, known_arguments, refuse, seed_arguments
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import ConstIs, IdIs, NotSameObject, TypeIs
from fxjit.guards.source import AttrSource, ConstSource, RandomSource, Source

_CPU: Final = torch.device("cpu")
#: Methods that are steps, with whether one gives a number (the others give the generator).
_METHODS: Final = {"manual_seed": False, "seed": True, "initial_seed": True}


class TorchRngValue(RngValue):
    """A generator of the program's own, found outside or made by a step."""

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in _METHODS:
            return RngMethodValue(self, name)
        return t.make(_CPU) if name == "device" else super().tp_getattro(t, name)


def _call_method(t: Tracer, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    label, generator = f"Generator.{name}", args[0] if args else None
    if not isinstance(generator, TorchRngValue):
        refuse(t, label)
    given, named = seed_arguments(t, label, args[1:], kwargs)
    if not all(type(arg) is int or isinstance(arg, Source) for arg in (*given, *named.values())):
        refuse(t, label)  # what it says of others, it says when it runs
    at = step(t, getattr(torch.Generator, name), [generator_argument(t, generator, _copy), *given], named, may_fail=False)
    return random_value(t, at) if _METHODS[name] else generator


def _handles_method(name: str) -> None:
    @handles(getattr(torch.Generator, name))
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return _call_method(t, name, args, kwargs)


for _name in _METHODS:
    _handles_method(_name)


def _copy(generator: torch.Generator) -> torch.Generator:
    with _disable_current_modes():
        made = torch.Generator(generator.device)
        made.set_state(generator.get_state())
        return made


@wraps(torch.Generator)
def _wrap_generator(t: Tracer, obj: torch.Generator, source: Source) -> Value:
    if obj is torch.default_generator or obj.device != _CPU:
        t.guard(IdIs(source, obj))
        return RngValue(obj, source)
    t.guard(TypeIs(source, torch.Generator))
    t.guard(ConstIs(AttrSource(source, "device"), _CPU))
    t.guard(NotSameObject((source, ConstSource(torch.default_generator, "torch.default_generator"))))
    return TorchRngValue(obj, source)


@handles(torch.Generator)
def _make_generator(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given, named = known_arguments(t, "torch.Generator", args, kwargs)
    wanted = [*given, *named.values()]
    if len(wanted) > 1 or set(named) - {"device"} or any(each not in ("cpu", _CPU) for each in wanted):
        refuse(t, "torch.Generator")
    at = step(t, torch.Generator, given, named, may_fail=False)
    return TorchRngValue(t.rng_steps.example(at), RandomSource(at))


# -- drawing -------------------------------------------------------------------------------------------------------

#: What makes the result another one than a new tensor that the generator fills.
_NOT_DRAWN: Final = ("out", "requires_grad", "names", "layout", "pin_memory")


def sample(t: Tracer, fn: Callable[..., Any], args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value | None:
    """`fn(*args, **kwargs)`, a function of torch's that is given a generator, as a step; None where it runs as it stands."""
    named = dict(kwargs)
    generator = named.pop("generator").realize()
    if not isinstance(generator, TorchRngValue) or overrides.entered_transforms(t) or overrides.innermost(t) is not None:
        return None
    if torch.is_inference_mode_enabled() or any(_is_set(named.get(name)) for name in _NOT_DRAWN):
        return None
    device = named.get("device", t.make(None))
    if not _is_set(device):
        named["device"] = t.make(default_device(t) or torch.get_default_device())
    given, options = known_arguments(t, fn.__name__, args, named)
    values = (*given, *options.values())
    if torch.device(options["device"]) != _CPU or any(isinstance(each, (StepResult, torch.Tensor)) for each in values):
        return None
    varies = any(isinstance(each, Source) for each in values)
    examples = {key: t.rng_steps.example_of(each) for key, each in options.items()}
    try:
        with _disable_current_modes():
            example = fn(*map(t.rng_steps.example_of, given), generator=torch.Generator(), **examples)
        shape = _shape(t, fn, args, named) if varies else ()
    except Exception:  # which the running program is to raise
        return None
    if type(example) is not torch.Tensor:
        return None
    # Drawn before anything of the frame happens: a default dtype that it sets is not in force by then.
    options["dtype"] = example.dtype
    at = step(t, sampled, [fn, generator_argument(t, generator, _copy), *given], options, may_fail=varies)
    return t.random_tensor(t.rng_steps.example(at), RandomSource(at), shape)


def _shape(t: Tracer, fn: Callable[..., Any], args: Sequence[Value], named: Mapping[str, Value]) -> Sequence[Any]:
    """The shape of what `fn` draws, with the sizes that vary as symbols."""
    def number(value: Value) -> Any:
        value = value.realize()
        if isinstance(value, (TupleValue, ListValue)):
            return [number(each) for each in value.items]
        return value.sym if isinstance(value, SymValue) else value.as_constant()

    options = {key: number(each) for key, each in named.items()} | {"device": "meta"}
    with _disable_current_modes():
        return fn(*map(number, args), **options).shape  # type: ignore[no-any-return]  # a tensor's


def _is_set(value: Value | None) -> bool:
    return value is not None and not (value.is_constant() and value.as_constant() in (None, False))


def sampled(fn: Callable[..., torch.Tensor], generator: torch.Generator, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A step: what `fn` draws."""
    with _disable_current_modes():
        return fn(*args, generator=generator, **kwargs)
