"""`fxjit::numpy`: NumPy's own function as an operator of the graph, for calls that torch._numpy has no counterpart of.

numpy_calls.py decides which calls may be one. NumPy must be able to say of the shapes and types of the arrays alone what the
results are: the operator is called on stand-ins for that, and on the arrays' memory when the graph runs. Arrays that NumPy
writes to are written by the graph: the operator works on copies and gives them back.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch


@dataclasses.dataclass(frozen=True)
class Slot:
    """The place of an array among the arguments of a call."""

    index: int


@dataclasses.dataclass(frozen=True)
class NumPyCall:
    """One call of a function of NumPy: its constant arguments, and Slots in the places of arrays."""

    name: str
    real: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: For each array: whether it is a NumPy scalar.
    scalars: tuple[bool, ...]
    #: What the blocks of `np.errstate` around it set.
    errors: tuple[tuple[str, str], ...] = ()

    def key(self) -> str:
        """What tells calls apart that are not the same."""
        return f"{self.name} {self.args!r} {self.kwargs!r} {self.scalars!r} {self.errors!r}"

    def __call__(self, *arrays: Any) -> Any:
        """NumPy's own result."""
        def filled(value: Any) -> Any:
            if isinstance(value, Slot):
                return arrays[value.index]
            if isinstance(value, (list, tuple)):
                return type(value)(map(filled, value))
            if isinstance(value, slice):
                return slice(filled(value.start), filled(value.stop), filled(value.step))
            return value

        with np.errstate(**dict(self.errors)):  # type: ignore[arg-type]  # its literals
            return self.real(*map(filled, self.args), **{name: filled(value) for name, value in self.kwargs.items()})


_Facts = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class _Promise:
    """A call, and the types, shapes and strides of what it gives for arrays of one layout."""

    call: NumPyCall
    results: list[_Facts]


#: The calls that graphs of this process make, by a text for each: an operator's arguments are tensors and plain values.
_CALLS: Final[dict[str, _Promise]] = {}


def node_target(call: NumPyCall, arrays: Sequence[Any]) -> Callable[..., Any]:
    """What a graph calls with the tensors of arrays like these, which NumPy is tried on. Raises what NumPy raises."""
    given = [np.array(array) if isinstance(array, np.ndarray) else array for array in arrays]
    result = call(*given)
    structure = _structure_of(result, given)
    written = [0] if result is None else [-1 - at for at in _flat(structure) if at < 0]
    key = f"{call.key()} {[(each.dtype, each.shape, each.strides) for each in map(np.asarray, arrays)]}"
    _CALLS[key] = _Promise(call, [_facts(torch.from_numpy(each)) for each in _results(call, arrays, written)])

    def run(*tensors: torch.Tensor) -> Any:
        found = torch.ops.fxjit.numpy.default(list(tensors), written, key)
        for index, content in zip(written, found[len(found) - len(written):], strict=True):
            tensors[index].copy_(content)

        def part(at: Any) -> Any:
            if isinstance(at, tuple):
                return tuple(map(part, at))
            return None if at is None else tensors[-1 - at] if at < 0 else found[at]

        return part(structure)

    run.is_opaque = True  # type: ignore[attr-defined]  # it may write to an array: seen when it runs (fxjit.schemas)
    run.__name__ = run.__qualname__ = "numpy_" + "".join(each if each.isalnum() else "_" for each in call.name)
    run.shown_as = shown_as(call.name)  # type: ignore[attr-defined]  # functions carry what messages call them
    return run


def shown_as(name: str) -> str:
    """How messages call an operation: as the program does, if by the name of an operator."""
    return f"numpy.{name}" if hasattr(np, name.partition(".")[0]) else f"operator.{name}"


def _structure_of(result: Any, arrays: Sequence[Any]) -> Any:
    """A result with numbers in the places of its arrays: from 0 on of new ones, below zero of arguments (-1 is the first)."""
    fresh = itertools.count()

    def part(value: Any) -> Any:
        if isinstance(value, (np.ndarray, np.generic)):
            same = [index for index, array in enumerate(arrays) if array is value and isinstance(value, np.ndarray)]
            return -1 - same[0] if same else next(fresh)
        return tuple(map(part, value)) if isinstance(value, (list, tuple)) else None

    return part(result)


def _flat(structure: Any) -> Iterator[int]:
    """The numbers in a structure."""
    if isinstance(structure, tuple):
        for item in structure:
            yield from _flat(item)
    elif structure is not None:
        yield structure


def _leaves(result: Any) -> Iterator[Any]:
    """The arrays and scalars in a result."""
    if isinstance(result, (np.ndarray, np.generic)):
        yield result
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _leaves(item)


def _results(call: NumPyCall, arrays: Sequence[Any], written: Sequence[int]) -> list[np.ndarray[Any, Any]]:
    """The new arrays of the result, then what became of those that were written to, in layouts that tensors can have."""
    given = [np.array(array) if index in written else array[()] if scalar else array
             for index, (array, scalar) in enumerate(zip(arrays, call.scalars, strict=True))]
    found = [np.asarray(each) for each in _leaves(call(*given)) if not any(each is array for array in given)]
    return [_as_new(each, given) for each in (*found, *(given[index] for index in written))]


def _as_new(array: np.ndarray[Any, Any], arguments: Sequence[Any]) -> np.ndarray[Any, Any]:
    """The array, or a copy where no tensor can have its layout or it is a view of an argument."""
    fits = array.flags.writeable and all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    shared = any(array is not other and np.may_share_memory(array, other) for other in arguments)
    return array if fits and not shared else array.copy()


def _run(tensors: list[torch.Tensor], written: list[int], key: str) -> list[torch.Tensor]:
    promise = _CALLS[key]
    arrays = [tensor.detach().resolve_conj().resolve_neg().numpy() for tensor in tensors]
    made = [torch.from_numpy(each) for each in _results(promise.call, arrays, written)]
    if [each.shape for each in made] != [torch.Size(shape) for _, shape, _ in promise.results]:
        raise RuntimeError(f"numpy.{promise.call.name} gave other shapes than it gave while tracing")  # the call runs eagerly
    return made


def _fake(tensors: list[torch.Tensor], written: list[int], key: str) -> list[torch.Tensor]:
    return [torch.empty_strided(shape, strides, dtype=dtype, device="cpu") for dtype, shape, strides in _CALLS[key].results]


def _facts(tensor: torch.Tensor) -> _Facts:
    return tensor.dtype, tuple(tensor.shape), tensor.stride()


_library = torch.library.Library("fxjit", "FRAGMENT")
_library.define("numpy(Tensor[] arrays, int[] written, str call) -> Tensor[]")
_library.impl("numpy", _run, "CompositeExplicitAutograd")
torch.library.register_fake("fxjit::numpy", _fake, lib=_library)
