"""Operators: each is a call of values/protocol."""

from __future__ import annotations

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.bytecode.normalize import JUMPS_IF, JUMPS_OR_POP
from fxjit.frontend.interp import masked_stores
from fxjit.frontend.interp.dispatch import Handler, op
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.values import deferred_numbers, protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.ranges import SliceValue

_JUMPS = JUMPS_IF | JUMPS_OR_POP


def _unary(name: str) -> Handler:
    def handler(m: Machine, i: Instruction) -> None:
        m.stack[-1] = protocol.unary(m.t, name, m.stack[-1])

    return handler


for _opname, _name in {"UNARY_NEGATIVE": "neg", "UNARY_POSITIVE": "pos", "UNARY_INVERT": "invert"}.items():
    op(_opname)(_unary(_name))


@op("UNARY_NOT")
def unary_not(m: Machine, i: Instruction) -> None:
    value = m.stack[-1].realize()
    later = deferred_numbers.truth(m.t, value, negated=True)
    m.stack[-1] = protocol.not_(m.t, value) if later is None else later


@op("BINARY_OP")
def binary_op(m: Machine, i: Instruction) -> None:
    stack = m.stack
    right = stack.pop()
    symbol = i.argval
    assert isinstance(symbol, str)
    if symbol[-1] == "=":
        stack[-1] = protocol.inplace(m.t, symbol[:-1], stack[-1], right)
    else:
        stack[-1] = protocol.binary(m.t, symbol, stack[-1], right)


@op("COMPARE_OP")
def compare_op(m: Machine, i: Instruction) -> None:
    stack = m.stack
    right = stack.pop()
    assert isinstance(i.argval, str)
    result = protocol.compare(m.t, i.argval, stack[-1], right)
    stack[-1] = _as_bool(m, result) if i.flag else result


@op("TO_BOOL")
def to_bool(m: Machine, i: Instruction) -> None:
    m.stack[-1] = _as_bool(m, m.stack[-1])


def _as_bool(m: Machine, value: Value) -> Value:
    """An exact bool, known while tracing. Before a conditional jump a value that is only known at run time stays as it is:
    the jump breaks there, with both ways open."""
    if not value.is_constant() and m.instructions[m.pc].opname in _JUMPS:
        return value
    later = deferred_numbers.truth(m.t, value.realize())
    return m.t.make(protocol.truth(m.t, value)) if later is None else later


@op("IS_OP")
def is_op(m: Machine, i: Instruction) -> None:
    right = m.stack.pop()
    m.stack[-1] = m.t.make(protocol.is_(m.t, m.stack[-1], right) is not i.flag)


@op("CONTAINS_OP")
def contains_op(m: Machine, i: Instruction) -> None:
    container = m.stack.pop()
    m.stack[-1] = m.t.make(protocol.contains(m.t, container, m.stack[-1]) is not i.flag)


@op("BINARY_SUBSCR")
def binary_subscr(m: Machine, i: Instruction) -> None:
    key = m.stack.pop()
    if masked_stores.run(m, m.stack[-1], key):
        m.stack.pop()
    else:
        m.stack[-1] = protocol.getitem(m.t, m.stack[-1], key)


@op("STORE_SUBSCR")
def store_subscr(m: Machine, i: Instruction) -> None:
    stack = m.stack
    key, container, value = stack.pop(), stack.pop(), stack.pop()
    protocol.setitem(m.t, container, key, value)


@op("DELETE_SUBSCR")
def delete_subscr(m: Machine, i: Instruction) -> None:
    key, container = m.stack.pop(), m.stack.pop()
    protocol.delitem(m.t, container, key)


@op("BINARY_SLICE")
def binary_slice(m: Machine, i: Instruction) -> None:
    stack = m.stack
    stop, start = stack.pop(), stack.pop()
    stack[-1] = protocol.getitem(m.t, stack[-1], make_slice(m, [start, stop]))


@op("STORE_SLICE")
def store_slice(m: Machine, i: Instruction) -> None:
    stack = m.stack
    stop, start, container, value = stack.pop(), stack.pop(), stack.pop(), stack.pop()
    protocol.setitem(m.t, container, make_slice(m, [start, stop]), value)


def make_slice(m: Machine, parts: list[Value]) -> Value:
    """A slice object of two or three parts."""
    return SliceValue(parts[0], parts[1], parts[2] if len(parts) == 3 else m.t.make(None))
