"""`yield`, `yield from`, and the start of a generator's body."""

from __future__ import annotations

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.bytecode.versions import VERSION
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.generators import GeneratorValue, stop_iteration_error
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Raised, Value
from fxjit.frontend.values.exceptions import ExceptionValue


@op("RETURN_GENERATOR")
def return_generator(m: Machine, i: Instruction) -> Value:
    return GeneratorValue(m.t, m)


@op("YIELD_VALUE")
def yield_value(m: Machine, i: Instruction) -> Value:
    m.suspended = True
    return m.stack.pop()


@op("GET_YIELD_FROM_ITER")
def get_yield_from_iter(m: Machine, i: Instruction) -> None:
    if not isinstance(m.stack[-1], GeneratorValue):
        m.stack[-1] = protocol.iter_(m.t, m.stack[-1])


def _advance(m: Machine, receiver: Value, sent: Value) -> tuple[bool, Value]:
    """Send to what `yield from` waits for: (finished, item or result)."""
    t = m.t
    if isinstance(receiver, GeneratorValue):
        return receiver.resume(t, sent)
    try:
        if sent.is_constant() and sent.as_constant() is None:
            item = receiver.tp_iternext(t)
            return (True, t.make(None)) if item is None else (False, item.realize())
        return False, protocol.call_method(t, receiver, "send", sent)
    except Raised as raised:
        if issubclass(raised.value.pytype(), StopIteration):
            return True, stop_iteration_value(m, raised.value)
        raise


def stop_iteration_value(m: Machine, exc: Value) -> Value:
    """`StopIteration.value`."""
    args = exc.args if isinstance(exc, ExceptionValue) else []
    return args[0].realize() if args else m.t.make(None)


@op("SEND")
def send(m: Machine, i: Instruction) -> None:
    stack = m.stack
    sent = stack.pop()
    done, value = _advance(m, stack[-1], sent)
    if not done:
        stack.append(value)
        return
    if VERSION.send_leaves_receiver:
        stack.append(value)
    else:
        stack[-1] = value
    assert i.target is not None
    m.pc = i.target


@op("CLEANUP_THROW")
def cleanup_throw(m: Machine, i: Instruction) -> None:
    """[receiver, last sent, exception]: a StopIteration thrown through `yield from` is its result."""
    exc = m.stack.pop()
    if not issubclass(exc.pytype(), StopIteration):
        raise Raised(exc)
    m.stack[-2:] = [m.t.make(None), stop_iteration_value(m, exc)]


@op("CALL_INTRINSIC_1")
def call_intrinsic_1(m: Machine, i: Instruction) -> None:
    if i.argval != "STOPITERATION_ERROR":
        _class_body_intrinsic(m, i)
    exc = m.stack[-1]
    if issubclass(exc.pytype(), StopIteration):
        m.stack[-1] = stop_iteration_error(m.t, exc)


@op("CALL_INTRINSIC_2")
def call_intrinsic_2(m: Machine, i: Instruction) -> None:
    _class_body_intrinsic(m, i)


def _class_body_intrinsic(m: Machine, i: Instruction) -> None:
    m.t.break_("opcode-unsupported", opname=f"{i.opname} {i.argval}", why="it belongs to type parameters, which are not traced")
