"""`match`: patterns of sequences, mappings and classes."""

from __future__ import annotations

from typing import Final

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.exceptions import class_of
from fxjit.frontend.values.sequence import TupleValue

# Flags of a type, https://docs.python.org/3/c-api/typeobj.html#c.Py_TPFLAGS_MAPPING
_SEQUENCE: Final = 1 << 5
_MAPPING: Final = 1 << 6
_MATCH_SELF: Final = 1 << 22


@op("GET_LEN")
def get_len(m: Machine, i: Instruction) -> None:
    m.stack.append(protocol.length(m.t, m.stack[-1]))


@op("MATCH_SEQUENCE")
def match_sequence(m: Machine, i: Instruction) -> None:
    m.stack.append(m.t.make(bool(m.stack[-1].pytype().__flags__ & _SEQUENCE)))


@op("MATCH_MAPPING")
def match_mapping(m: Machine, i: Instruction) -> None:
    m.stack.append(m.t.make(bool(m.stack[-1].pytype().__flags__ & _MAPPING)))


@op("MATCH_KEYS")
def match_keys(m: Machine, i: Instruction) -> None:
    """[subject, keys] and on top the values of those keys, or None where one is missing."""
    t, subject = m.t, m.stack[-2]
    keys = protocol.unpack(t, m.stack[-1])
    values: list[Value] = []
    for key in keys:
        if not protocol.contains(t, subject, key):
            m.stack.append(t.make(None))
            return
        values.append(protocol.getitem(t, subject, key))
    m.stack.append(TupleValue(values))


@op("MATCH_CLASS")
def match_class(m: Machine, i: Instruction) -> None:
    """[subject, class, keyword names] -> the attributes that the pattern names, or None where it does not match."""
    t, count = m.t, i.arg
    assert count is not None
    names = [name.as_constant() for name in protocol.unpack(t, m.stack.pop())]
    pattern, subject = m.stack.pop(), m.stack.pop()
    cls = class_of(pattern)
    if cls is None:
        t.raise_(TypeError, "called match pattern must be a class")
    if not protocol.truth(t, t.call(t.make(isinstance), [subject, pattern], None)):
        m.stack.append(t.make(None))
        return
    found: list[Value] = []
    if count:
        match_args = protocol.getattr_or_none(t, pattern, "__match_args__")
        if match_args is None and cls.__flags__ & _MATCH_SELF:
            _too_many(m, cls, 1, count)
            found.append(subject)
        else:
            known = [] if match_args is None else [item.as_constant() for item in protocol.unpack(t, match_args)]
            _too_many(m, cls, len(known), count)
            names = known[:count] + names
    for name in names:
        value = protocol.getattr_or_none(t, subject, name)
        if value is None:
            m.stack.append(t.make(None))
            return
        found.append(value)
    m.stack.append(TupleValue(found))


def _too_many(m: Machine, cls: type, allowed: int, given: int) -> None:
    if given > allowed:
        plural = "" if allowed == 1 else "s"
        m.t.raise_(TypeError, f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({given} given)")


