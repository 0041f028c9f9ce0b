"""The counterpart of a call of NumPy as the functions of torch that it calls: nodes of the graph like those of any torch code.

numpy_calls.py would otherwise make one node of the counterpart in torch._numpy as it is, whose Python (what its decorators
make of arguments, types and casts) then runs again at each stage of the backend and, with a backend that calls the graph as
it is, at each call.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from fxjit import schemas
from fxjit.errors import TraceSignal, leave_trace
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.sequence import SequenceValue, TupleValue
from fxjit.frontend.values.tensor import TENSOR_ATTRIBUTES, TensorValue

#: What may stand in a node's arguments beside tensors: what is the same in every call of the graph.
_CONSTANTS: Final = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
                     type(Ellipsis))


class _NotRecordable(Exception):
    """The counterpart writes to a tensor, takes a size that varies, or gives something else than tensors and constants."""


def recorded(t: Tracer, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
             tensors: Mapping[Any, TensorValue]) -> Value | None:
    """The result of `target(*args, **kwargs)`, with a node for each of its calls of torch; None if it has to be a node itself.
    `tensors` has the values of the nodes among the arguments."""
    recorder = _Recorder(t)
    signal: TraceSignal | None = None
    with t.capture_subgraph("numpy") as nodes:
        try:
            given, named = (recorder.fakes(each, tensors) for each in (tuple(args), dict(kwargs)))
            with recorder:
                made = target(*given, **named)
            if recorder.failed is None:
                return recorder.value(made)
            raise recorder.failed
        except TraceSignal as found:
            signal = found
        except Exception:  # torch._numpy refuses fakes in ways of its own; the node may take them
            pass
    recorder.failed = None  # its traceback holds the recorder
    t.discard(nodes)
    try:
        if signal is not None:
            leave_trace(signal)
    finally:
        del signal  # a cycle with its traceback
    return None


class _Recorder(TorchFunctionMode):
    """Makes a node of each function of torch that is called, and gives the caller the node's fake tensor."""

    def __init__(self, t: Tracer) -> None:
        super().__init__()
        self._t = t
        self._values: dict[int, TensorValue] = {}
        self._default_dtype = torch.get_default_dtype()
        #: The first failure, whatever the counterpart makes of it.
        self.failed: Exception | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self._called(func, args, kwargs or {})
        except Exception as error:  # kept, and raised again
            self.failed = self.failed or error
            raise

    def _called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func.__name__ == "__get__":
            name = func.__self__.__name__
            if name not in TENSOR_ATTRIBUTES:
                return func(*args, **kwargs)
            return self.fake(self._t.emit(getattr, [self._argument(args[0]), name]))
        if not _gives_tensors(func):
            with self._t.fake_execution():
                return func(*args, **kwargs)
        target = _target(func)
        if target is None or kwargs.get("out") is not None:
            raise _NotRecordable
        if torch.get_default_dtype() is not self._default_dtype:  # torch._numpy sets it around what it makes of numbers
            if func is not torch.as_tensor or len(args) != 1 or kwargs:
                raise _NotRecordable
            with self._t.fake_execution():
                kwargs = {"dtype": func(*args).dtype}
        return self.fake(self._t.emit(target, [self._argument(arg) for arg in args],
                                      {name: self._argument(arg) for name, arg in kwargs.items()}))

    # -- between values and what the counterpart sees of them ------------------------------------------------------

    def fakes(self, given: Any, tensors: Mapping[Any, TensorValue]) -> Any:
        """A node's arguments with fake tensors in the places of nodes."""
        def fake(node: torch.fx.Node) -> Any:
            if node not in tensors:
                raise _NotRecordable
            return self.fake(tensors[node])

        return torch.fx.map_arg(given, fake)

    def fake(self, value: Value) -> Any:
        """What the counterpart is given for a value."""
        value = value.realize()
        if isinstance(value, TensorValue):
            self._values[id(value.fake)] = value
            return value.fake
        if isinstance(value, SequenceValue):
            items = [self.fake(item) for item in value.items]
            return items if value.pytype() is list else value.pytype()(items)
        if value.is_constant():
            return value.as_constant()
        raise _NotRecordable

    def _argument(self, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            if id(given) not in self._values:
                raise _NotRecordable
            return self._values[id(given)]
        if isinstance(given, (list, tuple)):
            return [self._argument(item) for item in given] if isinstance(given, list) else tuple(map(self._argument, given))
        if isinstance(given, slice):
            parts = given.start, given.stop, given.step
            if all(isinstance(part, _CONSTANTS) for part in parts):
                return given
        if isinstance(given, _CONSTANTS):
            return given
        raise _NotRecordable

    def value(self, made: Any) -> Value:
        """The value of what the counterpart gave."""
        if isinstance(made, (list, tuple)):
            return TupleValue([self.value(item) for item in made])
        found = self._argument(made)
        return found if isinstance(found, Value) else self._t.make(found)


@functools.cache
def _gives_tensors(func: Any) -> bool:
    """Whether a function of torch gives tensors; what an operator gives is declared."""
    overloads = schemas.overloads_of(func)
    return not overloads or any("Tensor" in str(each.type) for overload in overloads for each in overload._schema.returns)


@functools.cache
def _target(func: Any) -> Callable[..., Any] | str | None:
    """What a node that calls the function has as its target; None for one that writes, or of unknown effects."""
    name = str(func.__name__)
    if (name.startswith("__i") and name != "__invert__") or name == "__setitem__" or schemas.is_in_place_name(name):
        return None
    if getattr(torch.Tensor, name, None) is func:
        found: Callable[..., Any] | str = getattr(operator, name, name) if name.startswith("__") else name
        return found
    return func if schemas.is_known(func) else None  # type: ignore[no-any-return]  # a function of torch
