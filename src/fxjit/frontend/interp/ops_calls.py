"""Calls: the arguments come off the stack in this Python's layout and go to `Tracer.call`."""

from __future__ import annotations

from typing import Any

from fxjit.frontend.bytecode.instruction import CallSpec, Instruction
from fxjit.frontend.bytecode.versions import VERSION
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.interp.ops_build import called_name, is_iterable
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NULL, Value


def _pop_callable(m: Machine, args: list[Value]) -> Value:
    """Take callable and self-or-NULL off the stack; a self becomes the first argument."""
    above, below = m.stack.pop(), m.stack.pop()
    if VERSION.null_below:
        if below is NULL:
            return above
        args.insert(0, above)
        return below
    if above is not NULL:
        args.insert(0, above)
    return below


def _call(m: Machine, nargs: int, names: tuple[str, ...]) -> None:
    stack = m.stack
    args = stack[len(stack) - nargs :]
    del stack[len(stack) - nargs :]
    fn = _pop_callable(m, args)
    m.t.caller = m
    if not names:
        stack.append(m.t.call(fn, args, None))
        return
    split = len(args) - len(names)
    stack.append(m.t.call(fn, args[:split], dict(zip(names, args[split:], strict=True))))


@op("CALL")
def call(m: Machine, i: Instruction) -> None:
    spec: Any = i.argval
    assert isinstance(spec, CallSpec)
    _call(m, spec.nargs, spec.kwnames)


@op("CALL_KW")
def call_kw(m: Machine, i: Instruction) -> None:
    spec: Any = i.argval
    names = m.stack.pop().as_constant()
    _call(m, spec.nargs if isinstance(spec, CallSpec) else spec, names)


@op("CALL_FUNCTION_EX")
def call_function_ex(m: Machine, i: Instruction) -> None:
    kwargs: dict[str, Value] = {}
    mapping = m.stack.pop() if i.flag else None
    given = m.stack.pop()
    args: list[Value] = []
    fn = _pop_callable(m, args)
    if not is_iterable(given):
        m.t.raise_(TypeError, f"{called_name(fn)} argument after * must be an iterable, not {given.pytype().__name__}")
    args += protocol.unpack_hinted(m.t, given)
    if mapping is not None:
        kwargs = keyword_arguments(m, fn, mapping)
    m.t.caller = m
    m.stack.append(m.t.call(fn, args, kwargs))


def keyword_arguments(m: Machine, fn: Value, mapping: Value) -> dict[str, Value]:
    """`**mapping` as keyword arguments."""
    t = m.t
    keys = protocol.unpack_fast(t, protocol.call_method(t, mapping, "keys"))
    found: dict[str, Value] = {}
    for key in keys:
        if not key.is_constant() or not isinstance(key.as_constant(), str):
            t.raise_(TypeError, "keywords must be strings")
        found[key.as_constant()] = protocol.getitem(t, mapping, key)
    return found
