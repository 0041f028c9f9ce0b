"""A function run eagerly and compiled must come to the same: `assert_same_as_eager`, and the comparison it is made of."""

from __future__ import annotations

import copy
import dataclasses
import enum
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import fxjit


@dataclasses.dataclass
class Failure:
    """How a call failed."""

    cls: type
    text: str
    args: tuple[Any, ...]


def assert_same_as_eager(
    fn: Callable[..., Any], *args: Any, fullgraph: bool = True, calls: int = 2, backend: Any = "eager", rtol: float = 0.0
) -> Any:
    """`fn` on copies of the same arguments, eagerly and compiled, several times each: what it returns or raises and what became
    of the arguments are the same, to the bit (or to `rtol`, where another backend computes). Gives the compiled function's
    first result."""
    fxjit.reset()
    compiled = fxjit.compile(fn, fullgraph=fullgraph, backend=backend)
    first = None
    for call in range(calls):
        theirs, mine = copy.deepcopy(args), copy.deepcopy(args)
        expected = outcome(fn, theirs)
        raises = isinstance(expected, Failure)
        with fxjit.config.patch(compile_tensorless_frames=True, allow_empty_graphs=True):
            actual = outcome(compiled, mine) if raises else compiled(*mine)
        assert_same(expected, actual, rtol=rtol)
        assert_same(theirs, mine, "arguments", rtol)
        first = actual if call == 0 else first
    assert fxjit.counters["frames"]["ok"], "no frame was compiled"
    return first


def outcome(fn: Callable[..., Any], args: Any) -> Any:
    """What a call gives: its result, or a `Failure`. Errors of fxjit's own are raised."""
    try:
        return fn(*args)
    except fxjit.errors.FxjitError:
        raise
    except Exception as error:  # noqa: BLE001 - an exception is an outcome
        return Failure(type(error), str(error), error.args)


def outcome_with_tracebacks(fn: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """What a call gives: its result, or each exception of the chain with the lines that it came through."""
    try:
        return ("returned", fn(*args))
    except Exception as error:  # noqa: BLE001 - an exception is an outcome
        chain: list[Any] = []
        each: BaseException | None = error
        while each is not None:
            frames = [(frame.name, frame.lineno) for frame in traceback.extract_tb(each.__traceback__)]
            own = outcome_with_tracebacks.__name__
            chain.append((type(each), str(each), [frame for frame in frames if frame[0] != own], each.__suppress_context__))
            each = each.__cause__ or each.__context__
        return ("raised", chain)


def assert_same(a: Any, b: Any, where: str = "result", rtol: float = 0.0) -> None:
    """Equal in type and contents, all the way down; tensors in their numbers and in what can be asked of them. `rtol`: by how
    much numbers of tensors and arrays may differ, where kernels other than eager's computed them."""
    assert type(a) is type(b), f"{where}: {type(a)} and {type(b)} ({a!r} and {b!r})"
    if a is b:
        return
    if isinstance(a, torch.Tensor):
        assert tensor_facts(a) == tensor_facts(b), where
        if is_traceable_wrapper_subclass(a):
            assert_same_wrappers(a, b, where, rtol)
        elif a.device.type != "meta":
            torch.testing.assert_close(a, b, rtol=rtol, atol=rtol, equal_nan=True)
    elif isinstance(a, (np.ndarray, np.generic)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        if rtol:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=where)
        else:
            np.testing.assert_array_equal(a, b, where)
    elif isinstance(a, (list, tuple)) or type(a).__name__ == "deque":
        assert len(a) == len(b), f"{where}: lengths {len(a)} and {len(b)}"
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{i}]", rtol)
    elif isinstance(a, Mapping):
        assert list(map(repr, a)) == list(map(repr, b)), f"{where}: keys {list(a)} and {list(b)}"
        for (k, x), y in zip(a.items(), b.values(), strict=True):
            assert_same(x, y, f"{where}[{k!r}]", rtol)
    elif dataclasses.is_dataclass(a) or type(a) is types.SimpleNamespace or _is_plain_object(a):
        assert_same(vars(a), vars(b), where, rtol)
    elif type(a) in (float, complex) and a != a:
        assert b != b, where
    elif hasattr(a, "__next__"):
        assert_same(list(a), list(b), where, rtol)
    else:
        assert not isinstance(a, enum.Enum), f"{where}: {a!r} and {b!r} are two"
        assert a == b, f"{where}: {a!r} and {b!r}"


def assert_same_wrappers(a: Any, b: Any, where: str, rtol: float = 0.0) -> None:
    """Tensors of a wrapper subclass, made of the same and with the same metadata."""
    (attrs, metadata), (others, other_metadata) = a.__tensor_flatten__(), b.__tensor_flatten__()
    assert list(attrs) == list(others) and metadata == other_metadata, where
    for attr in attrs:
        assert_same(getattr(a, attr), getattr(b, attr), f"{where}.{attr}", rtol)


def tensor_facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    layout = tensor.stride() if tensor.layout is torch.strided else tensor.layout
    return tensor.dtype, tensor.device, tuple(tensor.shape), layout, tensor.requires_grad, tensor.is_inference()


def _is_plain_object(a: Any) -> bool:
    return type(a).__eq__ is object.__eq__ and hasattr(a, "__dict__")
