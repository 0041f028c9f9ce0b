"""`np.errstate`: what NumPy does about division by zero and its like, inside a block.

torch says nothing of these. Where a node of the graph is NumPy itself (numpy_operator.py), it runs under the state of its
block.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.contexts import ContextValue, known

#: What a node may be silent about: `raise`, `call` and `print` would be seen.
_QUIET: Final = frozenset({"ignore", "warn"})

Settings = tuple[tuple[str, str], ...]


def errstate(settings: Settings) -> np.errstate:
    """The manager with these settings, for new bytecode."""
    return np.errstate(**dict(settings))  # type: ignore[arg-type]  # its literals


class ErrstateValue(ContextValue):
    """`np.errstate(divide="ignore")`."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(np.errstate)
        self.settings = settings

    def enter(self, t: Tracer) -> Value:
        _entered(t).append(self.settings)
        return t.make(None)

    def leave(self, t: Tracer) -> None:
        _entered(t).pop()

    def push_manager(self, cg: Rebuilder) -> None:
        cg.call(errstate, self.settings)


@handles(np.errstate)
def _make(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    settings = tuple(zip(kwargs, known(t, "np.errstate", *kwargs.values()), strict=True))
    if args or any(setting not in _QUIET for _, setting in settings):
        t.break_("numpy-function", function="numpy.errstate (with errors that are raised, called or printed)")
    return ErrstateValue(settings)


def settings_now(t: Tracer) -> Settings:
    """The settings of the blocks that are entered, the inner ones last."""
    return tuple(each for settings in _entered(t) for each in settings)


def _entered(t: Tracer) -> list[Any]:
    found: list[Any] = t.new_source_state("np.errstate").setdefault("entered", [])
    return found
