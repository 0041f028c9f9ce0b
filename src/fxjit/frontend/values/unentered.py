"""Context managers that are not traced, and that do nothing before they are entered: making one is put off, so that the graph
breaks once, where the block begins.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.calls import handles


class UnenteredValue(Value):
    """`make(*args, **kwargs)`, a manager that new bytecode makes; whatever else is done with one ends the graph."""

    def __init__(self, make: Callable[..., Any], args: Sequence[Value], kwargs: Mapping[str, Value], why: str) -> None:
        super().__init__(None)
        self.make: Final = make
        self.args: Final = tuple(args)
        self.kwargs: Final = dict(kwargs)
        self.why: Final = why

    def pytype(self) -> type:
        return self.make if isinstance(self.make, type) else contextlib._GeneratorContextManager

    def describe(self) -> str:
        return f"`{self.make.__qualname__}(...)`"

    def _refuse(self, t: Tracer) -> NoReturn:
        t.break_("context-unsupported", value=self.make.__qualname__, type=type(self.make).__name__, why=self.why)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        self._refuse(t)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        self._refuse(t)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        self._refuse(t)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.asm.begin_call(self.make)
        for argument in (*self.args, *self.kwargs.values()):
            cg.push(argument)
        cg.asm.call(len(self.args) + len(self.kwargs), tuple(self.kwargs))


def _put_off(make: Any, why: str) -> None:
    @handles(make)
    def made(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        value = UnenteredValue(make, [arg.realize() for arg in args], kwargs, why)
        try:
            inspect.signature(make).bind(*args, **kwargs)
        except TypeError:
            value._refuse(t)
        return value


for _make, _why in (
    (torch.autograd.graph.saved_tensors_hooks, "what autograd saves is decided by the compiled graph"),
    (torch.autograd.graph.save_on_cpu, "what autograd saves is decided by the compiled graph"),
    (torch.autograd.graph.disable_saved_tensors_hooks, "what autograd saves is decided by the compiled graph"),
    (torch.random.fork_rng, "it saves and restores the state of generators"),
    (warnings.catch_warnings, "it changes the filters of warnings"),
):
    _put_off(_make, _why)
