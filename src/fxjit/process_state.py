"""State of the process that compiled code depends on only where the backend made it so: a matrix product that calls a BLAS by
itself is what torch computes as long as float32 is multiplied in full.

Backends call `query` for it while they compile; pipeline.py guards the entry by what was queried (`queried`), so that entries
of which no code depends on it are not checked for it. How each is compared again is in guards/ambient.py.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import torch

from fxjit import torch_private

#: torch's names of backend and operator, in the order of `_process_state.c`'s number.
_PRODUCTS = ("mkldnn.matmul", "mkldnn.conv", "cuda.matmul")
_REDUCED = {"tf32": 2, "bf16": 3}  # at::Float32Precision's numbers; all else is full precision

#: Functions under `functools.lru_cache` whose cache compiled code looks at: eager's numbers come of real calls.
counted: Final[weakref.WeakSet[Any]] = weakref.WeakSet()

_queried: ContextVar[set[str] | None] = ContextVar("queried", default=None)


def query(name: str) -> Any:
    """The present value of the state `name`, by a backend: the entry that is being compiled holds for this value alone."""
    names = _queried.get()
    if names is not None:
        names.add(name)
    return QUERYABLE[name]()


@contextmanager
def queried() -> Iterator[set[str]]:
    """Gives the names that backends query inside."""
    names: set[str] = set()
    token = _queried.set(names)
    try:
        yield names
    finally:
        _queried.reset(token)


class ResultOf:
    """What a function gave whose results are constants of the process: another process can ask it again."""

    __slots__ = ("args", "function", "kwargs", "result")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.function, self.args, self.kwargs, self.result = function, args, kwargs, result

    def __str__(self) -> str:
        return f"the result of {self.function.__qualname__}"


_bound: ContextVar[set[str | ResultOf] | None] = ContextVar("bound", default=None)


def bind(why: str | ResultOf) -> None:
    """What is being compiled took something for a constant that is one in this process alone, and that no guard names."""
    reasons = _bound.get()
    if reasons is not None:
        reasons.add(why)


def bound_by() -> frozenset[str | ResultOf]:
    """The reasons so far."""
    return frozenset(_bound.get() or ())


@contextmanager
def bound() -> Iterator[set[str | ResultOf]]:
    """Gives the reasons why what is compiled inside holds in this process alone."""
    reasons: set[str | ResultOf] = set()
    token = _bound.set(reasons)
    try:
        yield reasons
    finally:
        _bound.reset(token)


def read_precision() -> str:
    """The precision that float32 operands of products are rounded to, where it is set: "mkldnn.matmul=bf16
    cuda.matmul=tf32"."""
    get: Any = torch._C._get_fp32_precision_getter  # type: ignore[attr-defined]  # not in the stubs
    found = [(product, get(*product.split("."))) for product in _PRODUCTS]
    return " ".join(f"{product}={name}" for product, name in found if name in _REDUCED)


def float32_code(precision: str) -> int:
    """The same as the number that `_process_state.c` reads."""
    names = dict(each.split("=") for each in precision.split())
    return sum(_REDUCED[names[product]] << 2 * place for place, product in enumerate(_PRODUCTS) if product in names)


def float32_code_now() -> int:
    """The code of the present setting for the C side, which compares it."""
    return float32_code(read_precision())


def distributed_dispatch() -> tuple[Any, ...] | None:
    """What decides which operators on distributed tensors do what, beside their placements: whether plain tensors count as
    replicated, and the operators with handlers of their own (`loss_parallel` adds some). None where the program has none."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None:
        return None
    dispatcher = torch_private.get_or("torch.distributed.tensor.DTensor._op_dispatcher", None)
    if dispatcher is None:
        return None
    return (dispatcher._allow_implicit_replication, *(op.name() for op in dispatcher._custom_op_handlers))


#: Each state that a backend may query, and how it is read.
QUERYABLE: dict[str, Callable[[], Any]] = {
    "float32_precision": read_precision,
}
#: Each state that the trace of distributed tensors reads, beside their placements.
OF_WRAPPERS: dict[str, Callable[[], Any]] = {"distributed_dispatch": distributed_dispatch}
