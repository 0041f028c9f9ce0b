"""Generators whose function is traced: each has a frame of its own that runs while the next item is requested.

RETURN_GENERATOR makes them; FOR_ITER and `next` advance them through `tp_iternext`, SEND and `yield from` through
`resume`. One that nobody has started can be made again by calling its function; one in the middle of its body cannot,
which resumability.check_generators sees to.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from fxjit.frontend.bytecode.versions import VERSION
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Raised, Rebuilder, Value
from fxjit.frontend.values.calls import ORIGINALS
from fxjit.frontend.values.exceptions import ExceptionValue, make_exception

if TYPE_CHECKING:
    from fxjit.frontend.interp.machine import Machine
    from fxjit.frontend.tracer import Tracer


#: Where handlers begin that the compiler puts around a generator's body since 3.12: they run none of the user's code.
_AROUND_THE_BODY = ("CALL_INTRINSIC_1", "CLEANUP_THROW")


class GeneratorValue(Value):
    """A generator made while tracing, or one that has not begun before (given_generators.py)."""

    def __init__(self, t: Tracer, machine: Machine) -> None:
        super().__init__(None)
        self.machine = machine
        self.started = False
        self.finished = False
        self.running = False
        #: What was called to make it: (function, args, kwargs).
        self.made_by: tuple[Value, list[Value], dict[str, Value]] | None = None
        #: What the body returned.
        self.returned: Value | None = None
        self.created_step, self.created_index, self.created_at = t.here()
        machine.generator = self
        t.new_source_state("generators").setdefault("all", []).append(self)

    @property
    def is_suspended(self) -> bool:
        """Whether it stands in the middle of its body."""
        return self.started and not self.finished

    def why_before(self) -> tuple[str, dict[str, object]]:
        """The reason for a break before it is made."""
        return "call-generator", {"function": self.describe(), "kind": "generator"}

    def has_cleanup(self) -> bool:
        """Whether CPython would run code of the body when the suspended generator goes; somebody else may go on with one that
        existed before."""
        if self.source is not None:
            return True
        code, index = self.machine.code, self.machine.index
        handler = code.handler_at(index)
        if handler is None:
            return False
        return not self._passes_by(handler.target)

    def _passes_by(self, index: int) -> bool:
        """Whether GeneratorExit runs through the handler at `index` as through `except IndexError:`, which it is not."""
        instructions, namespace = self.machine.code.instructions, self.machine.globals
        if instructions[index].opname in _AROUND_THE_BODY:
            return True
        if self._ends_handler(index):
            return self._leaves_handler(index)
        if instructions[index].opname != "PUSH_EXC_INFO":
            return False
        index += 1
        while instructions[index].opname == "LOAD_GLOBAL" and instructions[index + 1].opname == "CHECK_EXC_MATCH":
            name, jump = str(instructions[index].argval), instructions[index + 2]
            cls = namespace.namespace.get(name, namespace.builtins.get(name))
            if jump.opname != "POP_JUMP_IF_FALSE" or jump.target is None or name in namespace.written:
                return False
            if not isinstance(cls, type) or issubclass(GeneratorExit, cls):
                return False
            index = jump.target
        if instructions[index].opname != "RERAISE":
            return False
        outer = self.machine.code.handler_at(index)
        return outer is not None and self._ends_handler(outer.target) and self._leaves_handler(outer.target)

    def _ends_handler(self, index: int) -> bool:
        """Whether an exception comes to `index` that was raised in an `except` block: it goes on, once the name of the one that
        was caught is deleted, if it has one."""
        opnames = [instruction.opname for instruction in self.machine.code.instructions[index : index + 4]]
        name_goes = opnames[0] == "LOAD_CONST" and opnames[1] == "STORE_FAST" and opnames[2:] == ["DELETE_FAST", "RERAISE"]
        return name_goes or opnames[:3] == ["COPY", "POP_EXCEPT", "RERAISE"]

    def _leaves_handler(self, index: int) -> bool:
        around = self.machine.code.handler_at(index)
        return around is None or self._passes_by(around.target)

    def pytype(self) -> type:
        return types.GeneratorType

    def describe(self) -> str:
        return f"generator `{self.machine.code.code.co_qualname}`"

    # -- running the body ----------------------------------------------------------------------------------------

    def resume(self, t: Tracer, sent: Value | None = None, exc: Value | None = None) -> tuple[bool, Value]:
        """Run to the next `yield` with `sent` as its value, or with `exc` raised at it: (False, item), or (True, what the body
        returned)."""
        if self.running:
            t.raise_(ValueError, "generator already executing")
        self._leave_beginning(t)
        if self.finished or (exc is not None and not self.started):
            self.finished = True
            if exc is not None:
                raise Raised(exc)
            return True, t.make(None)
        machine = self.machine
        machine.parent = machine.t.frame
        self.running = True
        try:
            left = self._run(t, sent if sent is not None else t.make(None), exc)
        except Raised as raised:
            self.finished = True
            if issubclass(raised.value.pytype(), StopIteration):
                raise Raised(stop_iteration_error(t, raised.value)) from raised
            raise
        finally:
            self.running = False
            machine.parent = None
        if machine.suspended:
            return False, left
        self.finished = True
        self.returned = left
        return True, left

    def _leave_beginning(self, t: Tracer) -> None:
        if not self.started and not self.finished:
            t.effects.mutate(self)

    def _run(self, t: Tracer, sent: Value, exc: Value | None) -> Value:
        machine = self.machine
        machine.suspended = False
        if exc is None:
            machine.stack.append(sent)
            self.started = True
            return machine.run()
        inner = self._delegate()
        if inner is not None:
            yielded, thrown = self._throw_into(t, inner, exc)
            if yielded is not None:
                return yielded
            exc = thrown
        if exc is not None and not machine.unwind(exc):
            raise Raised(exc)
        return machine.run()

    def _delegate(self) -> Value | None:
        """The subiterator of the `yield from` at which the body is suspended."""
        machine = self.machine
        if not self.started or machine.instructions[machine.index - 1].opname != "SEND":
            return None
        return machine.stack[-1]

    def _throw_into(self, t: Tracer, inner: Value, exc: Value) -> tuple[Value | None, Value | None]:
        """Throw into the generator that `yield from` waits for: (what it yields, None), or (None, what is raised here); neither
        when it finished, and the body goes on behind the `yield from`."""
        machine = self.machine
        if not isinstance(inner, GeneratorValue):
            return None, exc
        try:
            if issubclass(exc.pytype(), GeneratorExit):
                inner.meth_close(t)
                return None, exc
            done, value = inner.resume(t, exc=exc)
        except Raised as raised:
            return None, raised.value
        if not done:
            machine.suspended = True
            return value, None
        if not VERSION.send_leaves_receiver:
            machine.stack.pop()
        machine.stack.append(value)
        target = machine.instructions[machine.index - 1].target
        assert target is not None, "SEND jumps"
        machine.pc = target
        return None, None

    # -- as an object --------------------------------------------------------------------------------------------

    def tp_iter(self, t: Tracer) -> Value:
        return self

    def tp_iternext(self, t: Tracer) -> Value | None:
        done, item = self.resume(t)
        return None if done else item

    def meth___next__(self, t: Tracer) -> Value:
        return self.meth_send(t, t.make(None))

    def meth_send(self, t: Tracer, value: Value) -> Value:
        if not self.started and not (value.is_constant() and value.as_constant() is None):
            t.raise_(TypeError, "can't send non-None value to a just-started generator")
        finished_before = self.finished
        done, item = self.resume(t, value)
        if not done:
            return item
        if finished_before or (item.is_constant() and item.as_constant() is None):
            t.raise_(StopIteration)
        t.raise_(StopIteration, item)

    def meth_throw(self, t: Tracer, kind: Value, value: Value | None = None, traceback: Value | None = None) -> Value:
        exc = value if value is not None and issubclass(value.pytype(), BaseException) else None
        if exc is None:
            if issubclass(kind.pytype(), BaseException):
                exc = kind
            else:
                given = value is not None and not (value.is_constant() and value.as_constant() is None)
                exc = t.call(kind, [value] if given and value is not None else [], None)
        done, item = self.resume(t, exc=exc)
        if not done:
            return item
        if item.is_constant() and item.as_constant() is None:
            t.raise_(StopIteration)
        t.raise_(StopIteration, item)

    def meth_close(self, t: Tracer) -> Value:
        if not self.is_suspended:
            self._leave_beginning(t)
            self.finished = True
            return t.make(None)
        try:
            done, result = self.resume(t, exc=make_exception(t, GeneratorExit, []))
        except Raised as raised:
            if issubclass(raised.value.pytype(), (GeneratorExit, StopIteration)):
                return t.make(None)
            raise
        if not done:
            t.raise_(RuntimeError, "generator ignored GeneratorExit")
        return result if VERSION.close_gives_result else t.make(None)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in ("__name__", "__qualname__"):
            if self.made_by is not None:
                return protocol.getattr_(t, self.made_by[0], name)
            return t.make(getattr(self.machine.code.code, "co" + name.rstrip("_")[1:]))
        if name == "gi_running":
            return t.make(self.running)
        if name == "gi_suspended":
            return t.make(self.is_suspended)
        return super().tp_getattro(t, name)

    def tp_hash(self, t: Tracer) -> Value:
        t.break_("value-slot", slot="hash", type="generator")

    def write_back(self, cg: Rebuilder) -> None:
        cg.asm.call_const(close, 1)
        cg.asm.pop()

    def rebuild(self, cg: Rebuilder) -> None:
        if self.finished or self.made_by is None:
            cg.call(finished_generator)
            return
        fn, args, kwargs = self.made_by
        original = ORIGINALS.get(getattr(fn, "fn", None))  # takewhile, starmap...: of their own kind, as others see them
        cg.call(call_with_names, tuple(kwargs), fn if original is None else original, *args, *kwargs.values())


def stop_iteration_error(t: Tracer, exc: Value) -> Value:
    """A StopIteration that leaves a generator's body becomes a RuntimeError (PEP 479)."""
    error = make_exception(t, RuntimeError, ["generator raised StopIteration"])
    assert isinstance(error, ExceptionValue)
    error.cause = error.context = exc
    error.suppress = True
    return error


def close(generator: types.GeneratorType[Any, Any, Any]) -> None:
    """Run-time helper of new bytecode: the generator, which has not begun, is as if it was exhausted."""
    generator.close()


def finished_generator() -> Any:
    """Run-time helper of new bytecode: an exhausted generator."""
    made: Any = (item for item in [0][:0])
    next(made, None)
    return made


def call_with_names(names: tuple[str, ...], fn: Any, *args: Any) -> Any:
    """Run-time helper of new bytecode: makes a generator that has not started."""
    split = len(args) - len(names)
    return fn(*args[:split], **dict(zip(names, args[split:], strict=True)))
