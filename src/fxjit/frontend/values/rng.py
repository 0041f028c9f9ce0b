"""Random numbers that Python itself draws: `random.Random` objects and the module's functions.

Torch's random operators are nodes like any other (their order is kept). What a Python generator gives is known only
at run time, so drawing from one breaks the graph.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch

from fxjit.frontend.callables.table import handles
from fxjit.frontend.values.base import Tracer, Value
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import IdIs
from fxjit.guards.source import Source


class GeneratorValue(Value):
    """A `random.Random` or `torch.Generator`: it can be passed on; drawing from it or asking its state breaks."""

    def __init__(self, obj: object, source: Source) -> None:
        super().__init__(source)
        self.obj = obj

    def pytype(self) -> type:
        return type(self.obj)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(type(self.obj))
        t.break_("call-rng-state", function=f"{type(self.obj).__name__}.{name}")

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        t.raise_(TypeError, f"'{type(self.obj).__name__}' object is not callable")


@wraps(random.Random, torch.Generator)
def _wrap_generator(t: Tracer, obj: object, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return GeneratorValue(obj, source)


def _refuse(name: str) -> None:
    @handles(getattr(random, name))
    def refuse(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        t.break_("call-rng-state", function=f"random.{name}")


for _name in ("random", "uniform", "randint", "randrange", "choice", "choices", "shuffle", "sample", "gauss",
              "normalvariate", "getrandbits", "seed", "getstate", "setstate"):
    _refuse(_name)
