"""Jumps, loops and returns. A jump on a data-dependent condition breaks in `protocol.truth`; in the root frame the machine
makes that a break point with two resume functions."""

from __future__ import annotations

import torch

from fxjit.frontend.bytecode.flow import is_exceptional
from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.interp import joint_conditions, lifetimes
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.values import protocol, tensor_methods
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.deferred_numbers import DeferredNumber
from fxjit.frontend.values.numpy_ import ArrayValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor import TensorValue


@op("JUMP")
def jump(m: Machine, i: Instruction) -> None:
    assert i.target is not None
    m.jump(i.target)


def _speculated(m: Machine, i: Instruction, value: Value) -> bool | None:
    """What is taken for granted of `bool(value)` before a conditional jump. Where one side only raises, or warns, and the
    condition is data-dependent, the other side is speculated on and the graph checks it."""
    if isinstance(value, ArrayValue):
        value = value.tensor
    is_unknown = (tensor_methods.known_item(value) is None if isinstance(value, TensorValue)
                  else isinstance(value, DeferredNumber) or (isinstance(value, SymValue) and value.depends_on_data()))
    if is_unknown:
        if_true = is_exceptional(m.code, i.target if i.opname == "POP_JUMP_IF_TRUE" else i.index + 1)
        if_false = is_exceptional(m.code, i.index + 1 if i.opname == "POP_JUMP_IF_TRUE" else i.target)
        if if_true is not if_false:
            tensor = _as_tensor(m, value)
            if tensor is not None and m.t.speculate(tensor, if_false):
                return if_false
    return None


def _jump_if(m: Machine, i: Instruction, wanted: bool) -> None:
    value = m.stack.pop().realize()
    truth = _speculated(m, i, value)
    if truth is None:
        if joint_conditions.run(m, i, value):
            return
        truth = _truth(m, value)
    if truth is wanted:
        m.jump(i.target)  # type: ignore[arg-type]  # a jump has a target


def _jump_or_pop(m: Machine, i: Instruction, wanted: bool) -> None:
    value = m.stack.pop().realize()
    if joint_conditions.run(m, i, value):
        return
    if _truth(m, value) is wanted:
        m.stack.append(value)
        m.jump(i.target)  # type: ignore[arg-type]  # a jump has a target


def _as_tensor(m: Machine, value: Value) -> TensorValue | None:
    """The number as a tensor of the graph; None where the graph does not have it."""
    if isinstance(value, DeferredNumber):
        made = value.in_graph()
    else:
        made = value if isinstance(value, TensorValue) else m.t.emit(torch.scalar_tensor, [value])
    assert made is None or isinstance(made, TensorValue)
    return made


def _truth(m: Machine, value: Value) -> bool:
    if isinstance(value, DeferredNumber):
        value.decide()
    return protocol.truth(m.t, value)


@op("POP_JUMP_IF_TRUE")
def pop_jump_if_true(m: Machine, i: Instruction) -> None:
    _jump_if(m, i, True)


@op("POP_JUMP_IF_FALSE")
def pop_jump_if_false(m: Machine, i: Instruction) -> None:
    _jump_if(m, i, False)


def _is_none(value: Value) -> bool:
    return value.is_constant() and value.as_constant() is None


@op("POP_JUMP_IF_NONE")
def pop_jump_if_none(m: Machine, i: Instruction) -> None:
    if _is_none(m.stack.pop()):
        m.jump(i.target)  # type: ignore[arg-type]  # a jump has a target


@op("POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(m: Machine, i: Instruction) -> None:
    if not _is_none(m.stack.pop()):
        m.jump(i.target)  # type: ignore[arg-type]  # a jump has a target


@op("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(m: Machine, i: Instruction) -> None:
    _jump_or_pop(m, i, True)


@op("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(m: Machine, i: Instruction) -> None:
    _jump_or_pop(m, i, False)


@op("GET_ITER")
def get_iter(m: Machine, i: Instruction) -> None:
    m.stack[-1] = protocol.iter_(m.t, m.stack[-1])


@op("FOR_ITER")
def for_iter(m: Machine, i: Instruction) -> None:
    item = protocol.next_(m.t, m.stack[-1])
    if item is not None:
        m.stack.append(item)
    else:
        m.stack.pop()
        m.jump(i.target)  # type: ignore[arg-type]  # a jump has a target


@op("RETURN_VALUE")
def return_value(m: Machine, i: Instruction) -> Value:
    _let_go(m)
    return m.stack.pop()


@op("RETURN_CONST")
def return_const(m: Machine, i: Instruction) -> Value:
    _let_go(m)
    return m.t.make(i.argval)


def _let_go(m: Machine) -> None:
    """Frees the objects of a function that was called, when it ends."""
    if m.parent is None:
        return
    ending = lifetimes.ending(m, m.locals)
    if ending:
        m.t.break_("object-let-go", value=m.locals[ending[0]].describe())


