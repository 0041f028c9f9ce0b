"""Values that only the interpreter puts on the value stack: what an open `with` leaves there, and what a handler does.

They lie below machine.py, which looks for them where a frame is to be resumed, and below the opcodes that push them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fxjit import config
from fxjit.frontend.bytecode.versions import VERSION
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NULL, Rebuilder, Value
from fxjit.frontend.values.deferred_numbers import TensorRequiringGrad
from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.frontend.values.tensor_methods import TensorMethodValue
from fxjit.homes import package_of

#: Modules whose managers may stay entered over a graph break whatever `config.resume_in_try` says; a generator-based
#: manager is contextlib's.
_OF_KNOWN_MODULES = frozenset({"torch", "contextlib"})


class WithExitValue(Value):
    """`manager.__exit__`, bound, of a `with` that is open."""

    def __init__(self, manager: Value, exit_: Value, step: int, index: int) -> None:
        super().__init__(None)
        self.manager = manager
        self.exit = exit_
        #: When the frame came to BEFORE_WITH, and where that is.
        self.step = step
        self.index = index

    @property
    def resumable(self) -> bool:
        """Whether the block can be left and entered again with nothing to be seen of it."""
        return bool(getattr(self.manager, "resumable", False))

    @property
    def can_be_kept(self) -> bool:
        """Whether a frame that breaks inside may enter it for real, and leave it entered to the resume function."""
        return (config.resume_in_try or bool(getattr(self.manager, "can_be_kept", False))
                or package_of(self.manager.pytype()) in _OF_KNOWN_MODULES)

    def pytype(self) -> type:
        return self.exit.pytype()

    def describe(self) -> str:
        return f"`__exit__` of {self.manager.describe()}"

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return t.call(self.exit, args, kwargs)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        return protocol.getattr_(t, self.exit, name)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push(self.exit)


class PreviousExceptionValue(Value):
    """The stack entry under an exception that is being handled: the one that was handled before it, or None."""

    def __init__(self, before: Value | None, handling: Value) -> None:
        super().__init__(None)
        self.before = before
        self.handling = handling
        #: Until POP_EXCEPT took (a copy of) it.
        self.in_force = True

    def pytype(self) -> type:
        return type(None) if self.before is None else self.before.pytype()

    def rebuild(self, cg: Rebuilder) -> None:
        """Placeholder: it is not read once POP_EXCEPT took its copy."""
        cg.push_const(None)


def leave_history_inside(t: Tracer, stack: list[Value]) -> None:
    """Before a break at `float(tensor)` or `tensor.item()`, where the tensor requires a gradient for the sake of leaves inside
    the graph: its number is all that is wanted, and the leaves stay there."""
    nulls = 0 if VERSION.null_below else 1
    # How many arguments lie above a function and its NULL.
    count = next((count for count in (0, 1) if stack[-2 - count: len(stack) - count][nulls:][:1] == [NULL]), None)
    if count is None:
        return
    at = len(stack) - count - 1 - nulls
    fn = stack[at].realize()
    if isinstance(fn, TensorMethodValue) and not count:
        if fn.name == "item" and t.requires_grad_inside(fn.tensor):
            stack[at] = TensorMethodValue(_apart(t, fn.tensor), "item", fn.raw)
    elif count and fn.is_constant() and fn.as_constant() in (int, float, bool):
        tensor = stack[-1].realize()
        if isinstance(tensor, GraphTensor) and t.requires_grad_inside(tensor):
            stack[-1] = TensorRequiringGrad(_apart(t, tensor))


def _apart(t: Tracer, tensor: GraphTensor) -> GraphTensor:
    """A tensor with the same number, and no history."""
    made = t.emit("clone", [t.emit("detach", [tensor])])
    assert isinstance(made, GraphTensor)
    return made
