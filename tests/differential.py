"""`check`: a function run eagerly and compiled, on copies of the same arguments, twice each; results, types and what
became of the arguments must be the same."""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import fxjit


@dataclasses.dataclass
class Failure:
    """How a call failed."""

    cls: type
    text: str


def check(fn: Callable[..., Any], *args: Any, fullgraph: bool = True, calls: int = 2) -> Any:
    """Compare; gives the compiled function's first result."""
    compiled = fxjit.compile(fn, fullgraph=fullgraph, backend="eager")
    before = fxjit.counters["frames"]["ok"]
    first = None
    for turn in range(calls):
        theirs, mine = copy.deepcopy(args), copy.deepcopy(args)
        expected = outcome(fn, theirs)
        raises = isinstance(expected, Failure)
        with fxjit.config.patch(compile_tensorless_frames=True, allow_empty_graphs=True):
            actual = outcome(compiled, mine) if raises else compiled(*mine)
        same(expected, actual, "result")
        same(theirs, mine, "arguments")
        first = actual if turn == 0 else first
    assert fxjit.counters["frames"]["ok"] > before, "no frame was compiled"
    return first


def outcome(fn: Callable[..., Any], args: Any) -> Any:
    """What a call gives: its result, or the exception's type and text."""
    try:
        return fn(*args)
    except fxjit.errors.FxjitError:
        raise
    except Exception as error:
        return Failure(type(error), str(error))


def _is_plain_object(a: Any) -> bool:
    return type(a).__eq__ is object.__eq__ and hasattr(a, "__dict__")


def same(a: Any, b: Any, where: str) -> None:
    """Equal in type and contents; tensors by value and metadata."""
    assert type(a) is type(b), f"{where}: {type(a)} and {type(b)}"
    if isinstance(a, enum.Enum):
        assert a is b, where
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad, where
        torch.testing.assert_close(a, b, equal_nan=True)
    elif isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b, where, strict=True)
    elif isinstance(a, (list, tuple)) or type(a).__name__ == "deque":
        assert len(a) == len(b), f"{where}: lengths {len(a)} and {len(b)}"
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{i}]")
    elif isinstance(a, Mapping):
        assert list(map(repr, a)) == list(map(repr, b)), f"{where}: keys {list(a)} and {list(b)}"
        for (k, x), y in zip(a.items(), b.values(), strict=True):
            same(x, y, f"{where}[{k!r}]")
    elif dataclasses.is_dataclass(a) or type(a) is types.SimpleNamespace or _is_plain_object(a):
        same(vars(a), vars(b), where)
    elif type(a) in (float, complex) and a != a:
        assert b != b, where
    elif hasattr(a, "__next__"):
        same(list(a), list(b), where)
    else:
        assert a == b, f"{where}: {a!r} and {b!r}"
