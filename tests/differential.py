"""A function run eagerly and compiled must come to the same: `assert_same_as_eager`, and the comparison it is made of."""

from __future__ import annotations

import copy
import dataclasses
import enum
import random
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

import fxjit
from fxjit.testing import EagerAndRecordGraphs

#: By how much numbers may differ: one number for every dtype, or (relative, absolute) for each; other dtypes are exact.
Tolerance = float | Mapping[torch.dtype, tuple[float, float]]
#: Kernels of fxjit's own, which add in another order.
KERNELS = {
    torch.float32: (1.3e-5, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.float16: (1e-2, 2e-3),
    torch.bfloat16: (2e-2, 2e-2),
}


def scaled(by: float) -> Tolerance:
    return {dtype: (rtol * by, atol * by) for dtype, (rtol, atol) in KERNELS.items()}


@dataclasses.dataclass
class Failure:
    """How a call failed."""

    cls: type
    text: str
    args: tuple[Any, ...]


@dataclasses.dataclass
class Observed:
    """All that one call came to."""

    result: Any
    arguments: Sequence[Any]
    gradients: list[Any]
    generators: tuple[Any, ...]
    modes: tuple[Any, ...]
    state: Any


def assert_same_as_eager(
    fn: Callable[..., Any],
    *args: Any,
    fullgraph: bool = True,
    calls: int = 2,
    backend: Any = "eager",
    rtol: Tolerance | None = None,
    graphs: int | list[int] | None = None,
    breaks: int | None = None,
    skips: bool = True,
    make: Callable[[], Sequence[Any]] | None = None,
    **observed: Any,
) -> Any:
    """`fn` on copies of the same arguments, eagerly and compiled, several times each: every call comes to the same (see
    `assert_same_call`, which takes what is `observed`). Gives the compiled function's first result.

    `backend`: one, or a tuple of them, one after the other. `make`: makes the arguments, where a copy is none (functions).
    `graphs`: how many the eager backend is given, or the number of operators in each. `breaks`: how many were counted. `skips`:
    whether frames may run as they stand."""
    if isinstance(backend, tuple):
        results = [
            assert_same_as_eager(
                fn, *args, fullgraph=fullgraph, calls=calls, backend=each, rtol=rtol, breaks=breaks, skips=skips, make=make,
                **observed,
            )
            for each in backend
        ]  # fmt: skip
        return results[0]
    recorder = EagerAndRecordGraphs()
    if graphs is not None:
        assert backend == "eager", "the eager backend counts graphs"
        backend = recorder
    fxjit.reset()
    fxjit.counters.clear()
    fn, mine = [copy.deepcopy(fn) if isinstance(fn, torch.nn.Module) else fn for _ in range(2)]
    compiled = fxjit.compile(mine, fullgraph=fullgraph, backend=backend)
    if rtol is None:
        rtol = 1.3e-6 if isinstance(backend, str) and backend != "eager" else 0.0
    with fxjit.config.patch(compile_tensorless_frames=True, allow_empty_graphs=True):
        results = [
            assert_same_call(fn, compiled, *args, seed=call, rtol=rtol, make=make, **observed) for call in range(calls)
        ]
    assert fxjit.counters["frames"]["ok"], "no frame was compiled"
    assert skips or not fxjit.counters["skip"], dict(fxjit.counters["skip"])
    if graphs is not None:
        operators = [sum(node.op in ("call_function", "call_method") for node in each.graph.nodes) for each in recorder.graphs]
        found = len(operators) if isinstance(graphs, int) else operators
        assert found == graphs, (found, dict(fxjit.counters["graph_break"]))
        assert isinstance(graphs, int) or not fxjit.counters["recompiles"]
    if breaks is not None:
        assert sum(fxjit.counters["graph_break"].values()) == breaks
    return results[0]


def assert_same_call(
    fn: Callable[..., Any],
    compiled: Callable[..., Any],
    *args: Any,
    seed: int = 0,
    rtol: Tolerance = 0.0,
    make: Callable[[], Sequence[Any]] | None = None,
    strides: bool = True,
    tracebacks: bool = False,
    state: Callable[[], Any] | None = None,
) -> Any:
    """One call of each, on copies of the arguments, comes to the same: what it returns or raises (with `tracebacks`: and the
    lines that the exceptions came through), what became of the arguments, which of all these are one object or share memory,
    gradients, random generators, grad mode and its like, and what `state` gives afterwards. Numbers agree to the bit, or to
    `rtol` where other kernels computed them; without `strides`, those of dimensions that have no second element are anybody's.
    Gives the compiled function's result."""
    before = modes()
    make = make or (lambda: copy.deepcopy(args))
    expected = observe(fn, make(), seed, tracebacks, state)
    assert expected.modes == before, "the test itself changes grad mode or its like"
    actual = observe(compiled, make(), seed, tracebacks, state, raises=isinstance(expected.result, Failure))
    comparison = Comparison(rtol, strides)
    for field in dataclasses.fields(Observed):
        comparison.same(getattr(expected, field.name), getattr(actual, field.name), field.name)
    return actual.result


def observe(
    fn: Callable[..., Any], args: Sequence[Any], seed: int, tracebacks: bool, state: Any, raises: bool = True
) -> Observed:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    if tracebacks:
        result = outcome_with_tracebacks(fn, *args)
    else:
        result = outcome(fn, args) if raises else fn(*args)
    seen = state() if state is not None else None
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    return Observed(result, args, gradients(fn, result, args), generators, modes(), seen)


def modes() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip


def gradients(fn: Callable[..., Any], result: Any, args: Sequence[Any]) -> list[Any]:
    """What differentiating the results leaves in the leaves that were reached from the function and its arguments; and the
    buffers of modules among them."""
    found: list[Any] = []
    outputs = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
    if outputs:
        failed = outcome(torch.autograd.backward, (outputs, [torch.ones_like(each) for each in outputs]))
        found.append(failed)
    for each in tree_leaves([*args, getattr(fn, "_orig_mod", fn)]):
        for tensor in _tensors_of(each):
            found.append(tensor.grad if tensor.is_leaf and tensor.requires_grad else None)
        if isinstance(each, torch.nn.Module):
            found.append(dict(each.named_buffers()))
    return found


def _tensors_of(each: Any) -> Iterator[torch.Tensor]:
    if isinstance(each, torch.Tensor):
        yield each
    elif isinstance(each, torch.nn.Module):
        yield from each.parameters()


def number_of_breaks() -> int:
    """Graph breaks since the counters were last reset."""
    return sum(fxjit.counters["graph_break"].values())


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


def assert_same(a: Any, b: Any, where: str = "result", rtol: Tolerance = 0.0) -> None:
    """Equal in type and contents, all the way down; tensors in their numbers and facts; objects that occur twice in one occur
    twice in the other. `rtol`: by how much numbers of tensors and arrays may differ, where kernels other than eager's computed
    them."""
    Comparison(rtol).same(a, b, where)


class Comparison:
    """Compares two structures: contents, and which objects and memory are the same ones."""

    def __init__(self, rtol: Tolerance = 0.0, strides: bool = True) -> None:
        self._rtol, self._strides = rtol, strides
        self._met: dict[tuple[int, Any], tuple[Any, Any]] = {}

    def same(self, a: Any, b: Any, where: str) -> None:
        assert type(a) is type(b), f"{where}: {type(a)} and {type(b)} ({a!r} and {b!r})"
        if self._once(a, b, where) or a is b:
            return
        if isinstance(a, torch.Tensor):
            self._tensors(a, b, where)
        elif isinstance(a, (np.ndarray, np.generic)):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), where
            rtol = self._rtol if isinstance(self._rtol, float) else 0.0
            if rtol:
                np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=where)
            else:
                np.testing.assert_array_equal(a, b, where)
        elif isinstance(a, (list, tuple)) or type(a).__name__ == "deque":
            assert len(a) == len(b), f"{where}: lengths {len(a)} and {len(b)}"
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                self.same(x, y, f"{where}[{i}]")
        elif isinstance(a, Mapping):
            assert list(map(repr, a)) == list(map(repr, b)), f"{where}: keys {list(a)} and {list(b)}"
            for (k, x), y in zip(a.items(), b.values(), strict=True):
                self.same(x, y, f"{where}[{k!r}]")
        elif dataclasses.is_dataclass(a) or type(a) is types.SimpleNamespace or _is_plain_object(a):
            self.same(vars(a), vars(b), where)
        elif type(a) in (float, complex) and a != a:
            assert b != b, where
        elif isinstance(a, torch.Generator):
            assert a.device == b.device and torch.equal(a.get_state(), b.get_state()), f"{where}: states of generators"
        elif hasattr(a, "__next__"):
            self.same(list(a), list(b), where)
        else:
            assert not isinstance(a, enum.Enum), f"{where}: {a!r} and {b!r} are two"
            assert a == b, f"{where}: {a!r} and {b!r}"

    def _once(self, a: Any, b: Any, where: str) -> bool:
        """Whether these two were compared before; objects that can change must then have been each other's."""
        if not isinstance(a, (torch.Tensor, np.ndarray, list, dict, set)) and not _is_plain_object(a):
            return False
        pair = a, b
        met, other = self._met.setdefault((0, id(a)), pair), self._met.setdefault((1, id(b)), pair)
        assert met[1] is b and other[0] is a, f"{where}: one object there and two here, or two there and one here"
        return met is not pair

    def _tensors(self, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
        facts, others = tensor_facts(a, self._strides), tensor_facts(b, self._strides)
        assert facts == others, f"{where}: {facts} and {others}"
        if is_traceable_wrapper_subclass(a):
            self._wrappers(a, b, where)
            return
        if a.device.type == "meta":
            return
        mine, theirs = _storage(a), _storage(b)
        if mine and theirs:
            met = self._met.setdefault((2, mine), (a, theirs)), self._met.setdefault((3, theirs), (b, mine))
            assert met[0][1] == theirs and met[1][1] == mine, f"{where}: memory is shared with others than in eager"
        rtol, atol = (self._rtol,) * 2 if isinstance(self._rtol, float) else self._rtol.get(a.dtype, (0.0, 0.0))
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"{where}: {text}")

    def _wrappers(self, a: Any, b: Any, where: str) -> None:
        """Tensors of a wrapper subclass: made of the same, with the same metadata."""
        (attrs, metadata), (others, other_metadata) = a.__tensor_flatten__(), b.__tensor_flatten__()
        assert list(attrs) == list(others) and metadata == other_metadata, where
        for attr in attrs:
            self.same(getattr(a, attr), getattr(b, attr), f"{where}.{attr}")


def tensor_facts(tensor: torch.Tensor, strides: bool = True) -> tuple[Any, ...]:
    layout: Any = tensor.layout
    if layout is torch.strided:
        layout = tensor.stride()
        if not strides:
            layout = [stride for size, stride in zip(tensor.shape, layout) if size > 1] if tensor.numel() else None
    return tensor.dtype, tensor.device, tuple(tensor.shape), layout, tensor.requires_grad, tensor.is_inference()


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a layout or a subclass without memory of its own
        return 0


def _is_plain_object(a: Any) -> bool:
    return type(a).__eq__ is object.__eq__ and hasattr(a, "__dict__")
