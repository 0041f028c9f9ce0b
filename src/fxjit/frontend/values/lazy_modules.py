"""Modules that take the shapes of their parameters from their first input: they get them before they are traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from fxjit.errors import RestartAfter, SkipFrameSignal
from fxjit.frontend.values.base import Tracer, Value
from fxjit.frontend.values.tensor import TensorValue

infer_parameters: Final[Any] = LazyModuleMixin._infer_parameters


class UntouchedTracer(Tracer, Protocol):
    """The trace as this file sees it."""

    @property
    def uses_rng(self) -> bool:
        """Whether anything in the graph so far uses a generator of random numbers."""


def settle(t: UntouchedTracer, module: Any, args: Sequence[Value]) -> None:
    """Called where `module` is about to be called: starts the trace again with its parameters made, if they are not.

    Making them draws random numbers, which must not come before others that the frame draws first: there this call of the
    frame runs as it stands, and the next one is traced."""
    if not isinstance(module, LazyModuleMixin) or not module.has_uninitialized_params():  # type: ignore[misc]  # typed for modules that are both
        return
    torchs = type(module).initialize_parameters.__module__.startswith("torch.nn.modules.")
    fake = args[0].fake if len(args) == 1 and isinstance(args[0], TensorValue) else None
    if not torchs or t.uses_rng or fake is None or not all(isinstance(size, int) for size in fake.shape):
        raise _not_now(module)
    given = torch.empty(fake.shape, dtype=fake.dtype, device="meta")

    def make_parameters() -> None:
        try:
            infer_parameters(module, module, (given,))
        except Exception as error:  # an input that does not fit, say: the program will see
            raise _not_now(module) from error

    raise RestartAfter(make_parameters, "a lazy module got its parameters")


def _not_now(module: Any) -> SkipFrameSignal:
    return SkipFrameSignal("skip-lazy-module", {"module": type(module).__name__})
