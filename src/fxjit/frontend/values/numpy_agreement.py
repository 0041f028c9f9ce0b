"""Whether a counterpart in torch._numpy may stand in for an operation of NumPy: both are called on stand-ins of the very shapes
and types, and must agree in types, shapes, numbers and in which results share memory with which arguments.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
import torch.fx

from fxjit import torch_private
from fxjit.frontend.values.numpy_operator import shown_as
from fxjit.homes import module_of

tnp: Any = torch_private.optional("torch._numpy")
#: Python's types that NumPy takes for types of its own.
NUMBERS: Final = (bool, int, float, complex)
#: Functions whose results have no numbers to compare.
_UNINITIALISED: Final = frozenset({"empty", "empty_like", "ndarray"})
#: A result that NumPy copies where its counterpart gives a view.
COPY: Final = object()
#: A result that is a view of an argument, or read-only, in NumPy only.
VIEW: Final = object()
#: A result that shares memory with an argument in both.
SHARED: Final = object()


class Traced(Protocol):
    """An array or scalar of numpy_.py."""

    tensor: Any

    def stand_in(self) -> Any:
        """Something like it, to try NumPy on."""

    def facts(self) -> Any:
        """What decides on the stand-in, as a key; None: what it is like is not told by a key."""


class Operation:
    """The called operation: NumPy's own callable, and its counterpart in the graph (None: there is none). `sized`: shapes and
    types of the arguments say what shapes and types the result has. `target`: what the graph calls for the counterpart."""

    def __init__(self, name: str, real: Callable[..., Any], counterpart: Callable[..., Any] | None, sized: bool = False,
                 target: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.real = real
        self.sized = sized
        self.target = _node_target(name, counterpart) if counterpart is not None else target


def _node_target(name: str, counterpart: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a graph calls; FX wants one with a name and a module."""
    def call(*args: Any, **kwargs: Any) -> Any:
        return _unwrapped(counterpart(*_wrapped(args), **_wrapped(kwargs)))

    call.is_opaque = True  # type: ignore[attr-defined]  # it may write to an array: seen when it runs (fxjit.schemas)
    call.__name__ = call.__qualname__ = "numpy_" + name.replace(".", "_")
    call.shown_as = shown_as(name)  # type: ignore[attr-defined]  # functions carry what messages call them
    # What backends/store/fingerprints.py knows it by in another process.
    call.stands_for = f"{module_of(counterpart)}.{counterpart.__qualname__} {name}, NumPy {np.__version__}"  # type: ignore[attr-defined]  # functions carry what they stand for
    return call


def _wrapped(value: Any) -> Any:
    """Tensors as torch._numpy's arrays, torch's types as its own."""
    if isinstance(value, torch.Tensor):
        return tnp.ndarray(value)
    if isinstance(value, torch.dtype):
        return tnp.dtype(numpy_dtype(value).name)
    return _mapped(_wrapped, value)


def in_graph(value: Any) -> Any:
    """Types and numbers of NumPy as those that a graph can write down."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, (np.generic, *NUMBERS))):
        return torch.from_numpy(np.empty(0, value)).dtype
    return _mapped(in_graph, value)


def _mapped(fn: Callable[[Any], Any], value: Any) -> Any:
    """A container's items through `fn`; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(fn, value))
    if isinstance(value, dict):
        return {key: fn(item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(fn(value.start), fn(value.stop), fn(value.step))
    return value


def _unwrapped(result: Any) -> Any:
    if isinstance(result, tnp.ndarray):
        return result.tensor
    if isinstance(result, (list, tuple)):
        return tuple(map(_unwrapped, result))
    return result


# -- do they agree? ------------------------------------------------------------------------------------------------


class Differs(Exception):
    """The counterpart does not do what NumPy does, and how; `final`: NumPy itself has no answer to give while tracing."""

    def __init__(self, why: str, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What a counterpart agrees on with NumPy."""

    #: NumPy's result for stand-ins of the arguments.
    example: Any
    #: By the ids of its parts: the argument that it is, COPY, VIEW or SHARED.
    relation: dict[int, Any]
    #: By the ids of its parts: the argument that is its `base`, or None where it has none; for others it is not known.
    bases: dict[int, Any]


def agreed(what: Operation, args: list[Any], kwargs: dict[str, Any], arrays: Mapping[Any, Traced]) -> Agreement:
    """What the counterpart and NumPy agree on for stand-ins of the arguments. Raises Differs. A call like one that was tried
    before in this process, as every round of an unrolled loop has, is not tried again."""
    key = _key(what, args, kwargs, arrays)
    found = _TRIED.get(key) if key is not None else None
    if found is None:
        try:
            found = _kept(_agreed(what, args, kwargs, arrays), list(arrays))
        except Differs as why:
            found = why
        if key is not None:
            if len(_TRIED) >= _MOST_TRIED:
                _TRIED.clear()
            _TRIED[key] = found
    if isinstance(found, Differs):
        raise Differs(str(found), found.final)
    nodes = list(arrays)
    relation, bases = ({part: nodes[kind] if isinstance(kind, int) else kind for part, kind in facts.items()}
                       for facts in (found.relation, found.bases))
    return Agreement(found.example, relation, bases)


#: What came of calls, by what decides on it.
_TRIED: Final[dict[Any, Agreement | Differs]] = {}
_MOST_TRIED: Final = 4096


class _NotComparable(Exception):
    """An argument that is no plain value."""


def _key(what: Operation, args: list[Any], kwargs: dict[str, Any], arrays: Mapping[Any, Traced]) -> Any:
    """What decides whether the counterpart agrees, as a key; None where that is not known."""
    indices = {node: index for index, node in enumerate(arrays)}

    def plain(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            if value in indices:
                return "array", indices[value]
            return "number", plain(filled(value, {}))
        if isinstance(value, (list, tuple)):
            return type(value), tuple(map(plain, value))
        if isinstance(value, dict):
            return "dict", tuple((name, plain(item)) for name, item in value.items())
        if isinstance(value, slice):
            return "slice", plain(value.start), plain(value.stop), plain(value.step)
        if isinstance(value, (float, complex, np.generic)):
            return type(value), repr(value)  # zeros have signs, and NaN is nothing
        if isinstance(value, (bool, int, str, type(None), type(Ellipsis), type, np.dtype, torch.dtype)):
            return type(value), value
        raise _NotComparable

    facts = [array.facts() for array in arrays.values()]
    if None in facts:
        return None
    try:
        return what, plain(args), plain(kwargs), tuple(facts), tnp.dtype(None).name
    except _NotComparable:
        return None


def _kept(agreement: Agreement, nodes: list[Any]) -> Agreement:
    """The agreement without memory for elements, and with the places of arguments instead of nodes."""
    relation: dict[int, Any] = {}
    bases: dict[int, Any] = {}

    def part(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and any(isinstance(item, (np.ndarray, np.generic)) for item in value):
            items = [made.setdefault(id(item), part(item)) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        made_of = np.lib.stride_tricks.as_strided(np.empty(1, value.dtype), value.shape, value.strides) if isinstance(
            value, np.ndarray) else value
        for kept, facts in ((relation, agreement.relation), (bases, agreement.bases)):
            if id(value) in facts:
                kind = facts[id(value)]
                kept[id(made_of)] = nodes.index(kind) if isinstance(kind, torch.fx.Node) else kind
        return made_of

    made: dict[int, Any] = {}
    return Agreement(part(agreement.example), relation, bases)


def _agreed(what: Operation, args: list[Any], kwargs: dict[str, Any], arrays: Mapping[Any, Traced]) -> Agreement:
    examples = taken({node: array.stand_in() for node, array in arrays.items()},
                     lambda given: what.real(*filled(args, given), **filled(kwargs, given)))
    try:
        real, theirs, ours, tensors = _tried(what, args, kwargs, examples)
    except _NumPyRaises as error:  # of stand-ins: the real numbers may raise something else, or nothing
        raise Differs(f"NumPy raises {error}", final=True) from None
    except Exception as error:  # torch._numpy refuses in ways of its own
        raise Differs(f"it raises {type(error).__name__}: {error}") from None
    uninitialised = what.name in _UNINITIALISED
    why = _difference(real, theirs, uninitialised)
    for node, array in ours.items():
        why = why or _difference(array, tensors[node], False)
    why = why or _difference_below_zero(what, args, kwargs, examples) or _hidden_refusal(what, args, kwargs, examples)
    if why is not None:
        raise Differs(why)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading flags may warn
        relation = _relation(real, theirs, ours, tensors) if next(_arrays_in(real), None) is not None else {}
    if VIEW in relation.values() and any(array.tensor.fake.requires_grad for array in arrays.values()):
        raise Differs("its result is a copy, and NumPy's is a view of an argument", final=True)
    return Agreement(real, relation, _bases(real, ours))


def taken(examples: dict[Any, Any], call: Callable[[dict[Any, Any]], Any]) -> dict[Any, Any]:
    """Stand-ins that NumPy takes: these, or with smaller integers, which are indices, or positive definite matrices."""
    for change in (lambda example: example, _smaller, np.zeros_like, _definite):
        made = {node: change(example) if isinstance(example, np.ndarray) else example for node, example in examples.items()}
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                call({node: np.array(example) if isinstance(example, np.ndarray) else example
                      for node, example in made.items()})
            except Exception:
                continue
        return made
    return examples


def _smaller(example: Any) -> Any:
    return (example % 2).astype(example.dtype) if example.dtype.kind in "iu" else example


def _definite(example: Any) -> Any:
    """A positive definite matrix of the same shape and type, where it can be one."""
    if example.ndim < 2 or example.shape[-1] != example.shape[-2] or example.dtype.kind not in "fc":
        return example
    return (example @ np.swapaxes(example, -1, -2).conj() + np.eye(example.shape[-1])).astype(example.dtype)


class _NumPyRaises(Exception):
    """NumPy's own error for stand-ins."""


def _tried(what: Operation, args: list[Any], kwargs: dict[str, Any],
           examples: Mapping[Any, Any], of_numpy: bool = True) -> tuple[Any, Any, dict[Any, Any], dict[Any, Any]]:
    """Results of NumPy and of the counterpart for copies of `examples`, and the copies that each was given. A stand-in that
    refuses to be written to (ViewRecipe) is no copy: it has the strides of a view."""
    assert what.target is not None
    with np.errstate(all="ignore"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        ours = {node: np.array(example) if isinstance(example, np.ndarray) and example.flags.writeable else example
                for node, example in examples.items()}
        try:
            real = what.real(*filled(args, ours), **filled(kwargs, ours)) if of_numpy else None
        except Exception as error:  # whatever the function raises for these
            raise _NumPyRaises(f"{type(error).__name__}: {error}") from None
        tensors = {node: torch.from_numpy(np.array(example)) for node, example in examples.items()}
        theirs = what.target(*filled(in_graph(args), tensors), **filled(in_graph(kwargs), tensors))
    return real, theirs, ours, tensors


def _difference_below_zero(what: Operation, args: list[Any], kwargs: dict[str, Any], examples: Mapping[Any, Any]) -> str | None:
    """How the counterpart differs for numbers of which every other one is negative; None where NumPy has no answer."""
    signed = {node: _alternating(example) for node, example in examples.items()}
    if what.name in _UNINITIALISED or not any(signed[node] is not example for node, example in examples.items()):
        return None
    try:
        real, theirs, ours, tensors = _tried(what, args, kwargs, signed)
    except _NumPyRaises:
        return None
    except Exception as error:  # torch._numpy refuses in ways of its own
        return f"it raises {type(error).__name__}: {error}"
    written = (_difference(array, tensors[node], False) for node, array in ours.items())
    return _difference(real, theirs, False) or next((why for why in written if why), None)


def _hidden_refusal(what: Operation, args: list[Any], kwargs: dict[str, Any], examples: Mapping[Any, Any]) -> str | None:
    """Whether NumPy refuses integers below zero (exponents of integers) of which the counterpart gives something."""
    signed = {node: _alternating(example, "i") for node, example in examples.items()}
    if what.name in _UNINITIALISED or not any(signed[node] is not example for node, example in examples.items()):
        return None
    try:
        _tried(what, args, kwargs, signed)
    except _NumPyRaises:
        try:
            _tried(what, args, kwargs, signed, of_numpy=False)
        except Exception:  # it refuses them, too
            return None
        return "NumPy refuses numbers below zero"
    except Exception:  # of numbers that it may not be meant for
        return None
    return None


def _alternating(example: Any, kinds: str = "fc") -> Any:
    if example.dtype.kind not in kinds or not example.size:
        return example
    if np.ndim(example) == 0:
        return np.array(-example) if isinstance(example, np.ndarray) else -example
    made = np.array(example)
    made.reshape(-1)[::2] *= -1  # np.array gives memory without gaps
    if not example.flags.writeable:
        made.flags.writeable = False
    return made


def filled(arguments: Any, by_node: Mapping[Any, Any]) -> Any:
    """Arguments of a node with stand-ins in the nodes' places."""
    def number_or_array(node: torch.fx.Node) -> Any:
        if node in by_node:
            return by_node[node]
        number = node.meta["example_value"]
        return number.node.hint if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)) else copy.copy(number)

    return torch.fx.map_arg(arguments, number_or_array)


def _difference(real: Any, theirs: Any, uninitialised: bool) -> str | None:
    """How the counterpart's result differs from NumPy's; None where it does not."""
    if isinstance(real, (np.ndarray, np.generic)):
        if not isinstance(theirs, torch.Tensor):
            return f"it gives {type(theirs).__name__}, not {type(real).__name__}"
        found = theirs.detach().resolve_conj().resolve_neg().numpy()
        if real.shape == () and found.size == 1:
            found = found.reshape(())  # one number is one number
        if found.dtype != real.dtype or found.shape != real.shape:
            return f"it gives {found.dtype}{list(found.shape)}, not {real.dtype}{list(real.shape)}"
        exact = real.dtype.kind in "iub"
        same = np.array_equal(found, real) if exact else np.allclose(found, real, rtol=1e-3, atol=1e-4, equal_nan=True)
        return None if uninitialised or same else "it gives other numbers"
    if isinstance(real, (list, tuple)):
        if not isinstance(theirs, (list, tuple)) or len(real) != len(theirs):
            return "it gives another structure"
        if any(isinstance(other, torch.Tensor) and next(_arrays_in(one), None) is None for one, other in
               zip(real, theirs, strict=True)):
            return "it gives an array in the place of a number"
        pairs = zip(real, theirs, strict=True)
        return next((why for one, other in pairs if (why := _difference(one, other, uninitialised))), None)
    return None


def _relation(real: Any, theirs: Any, arrays: Mapping[Any, Any], tensors: Mapping[Any, Any]) -> dict[int, Any]:
    """By the ids of results: the argument that it is, COPY where it shares memory with one in the counterpart only, and VIEW
    where it does in NumPy only, or is read-only, or several elements are one in memory (a number that was spread): a view
    that the graph has as a copy, or one of such a view."""
    found: dict[int, Any] = {}
    for one, other in zip(_arrays_in(real), _arrays_in(theirs), strict=True):
        for node, array in arrays.items():
            shares = other.untyped_storage().data_ptr() == tensors[node].untyped_storage().data_ptr()
            if one is array and isinstance(one, np.ndarray):
                found[id(one)] = node
            elif other.numel() and shares and not np.may_share_memory(one, array):
                found[id(one)] = COPY
            elif other.numel() and np.may_share_memory(one, array) and (not shares or _is_no_tensor(one)):
                found[id(one)] = VIEW
            elif shares and isinstance(one, np.ndarray) and np.may_share_memory(one, array):
                found.setdefault(id(one), SHARED)
        if isinstance(one, np.ndarray) and other.numel() and _is_no_tensor(one):
            found.setdefault(id(one), VIEW)
    return found


def _bases(real: Any, arrays: Mapping[Any, Any]) -> dict[int, Any]:
    """By the ids of results: the argument that `base` is, None where there is none."""
    found: dict[int, Any] = {}
    for one in _arrays_in(real):
        base = one.base
        if base is None:
            found[id(one)] = None
        for node, array in arrays.items():
            if base is not None and (base is array or base is getattr(array, "base", None)):
                found[id(one)] = node
    return found


def _is_no_tensor(array: Any) -> bool:
    """Whether it is read-only, or has elements that are one in memory."""
    repeats = any(stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True))
    return not array.flags.writeable or repeats


def _arrays_in(result: Any) -> Iterator[Any]:
    if isinstance(result, (np.ndarray, np.generic, torch.Tensor)):
        yield result
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _arrays_in(item)


# -- stand-ins -----------------------------------------------------------------------------------------------------


def stand_in(fake: torch.Tensor, scalar: bool) -> Any:
    """An array like the one behind `fake`, whose numbers are of no special kind: positive, all different, no pattern."""
    dtype = numpy_dtype(fake.dtype)
    shape = hints(fake.shape)
    fractions = (np.arange(1, int(np.prod(shape, dtype=np.int64)) + 1, dtype=np.float64) * 0.6180339887498949) % 1.0
    numbers = fractions > 0.5 if dtype.kind == "b" else fractions * 3 + 1 if dtype.kind in "iu" else fractions + 0.5
    made = numbers.reshape(shape).astype(dtype)
    if scalar:
        return made[()]
    strides = hints(fake.stride())
    if made.size and all(stride > 0 or size == 1 for size, stride in zip(shape, strides, strict=True)):
        return torch.empty_strided(shape, strides, dtype=fake.dtype, device="cpu").copy_(torch.from_numpy(made)).numpy()
    return made


def hints(numbers: Sequence[Any]) -> tuple[int, ...]:
    """Sizes or strides in this call."""
    return tuple(number if isinstance(number, int) else int(number.node.hint) for number in numbers)


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's name of a type of numbers."""
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
