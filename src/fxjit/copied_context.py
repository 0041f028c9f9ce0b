"""The program's context (PEP 567) left as it was: what a compile does runs in a copy of it.

torch keeps its settings (`torch._functorch.config`), and notes about them, in context variables: what is set once stays, and a
long program would find a few more with every graph. Python's `decimal`, which sympy uses, makes its context where it is first
asked for.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_copied_context(fn: Callable[P, T]) -> Callable[P, T]:
    """The function, which runs in a copy of its caller's context."""
    @functools.wraps(fn)
    def run(*args: P.args, **keywords: P.kwargs) -> T:
        return contextvars.copy_context().run(fn, *args, **keywords)

    return run
