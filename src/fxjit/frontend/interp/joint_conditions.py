"""Joint conditions: `if a and b`, `bool(a or b)` of data, as one branch and not as one for each of `a` and `b`.

Where the branch on `a` would break the graph, what is tested next is traced first. If that had no effects and its operators
have a result for all numbers, nobody can tell whether it was computed, and the graph gives the truth of both. Otherwise the
trace starts again and breaks at `a`.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Final

import torch
import torch.fx

from fxjit._C import safe_point
from fxjit.errors import BreakGraph, RestartTrace, leave_trace
from fxjit.frontend.bytecode.instruction import CallSpec, Code, Instruction
from fxjit.frontend.bytecode.normalize import JUMPS_OR_POP
from fxjit.frontend.interp.dispatch import HANDLERS
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import given_numbers, overrides, protocol, tensor_methods
from fxjit.frontend.values.base import NULL, NotConstant, Raised, Value
from fxjit.frontend.values.numpy_ import ArrayValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.schemas import may_raise_on, overloads_of, tensors_of, uses_rng
from fxjit.torch_private import MissingName

_READING: Final = frozenset({
    "NOP", "POP_TOP", "PUSH_NULL", "COPY", "SWAP", "LOAD_CONST", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR",
    "LOAD_METHOD", "BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "IS_OP", "CONTAINS_OP", "UNARY_NEGATIVE", "UNARY_INVERT",
    "TO_BOOL", "KW_NAMES", "PRECALL", "CALL", "CALL_KW",
})
_JUMPS: Final = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"})
#: Of a condition that eager may not come to: more than that is too much to compute for nothing.
_MOST_OPERATORS: Final = 24


def run(m: Machine, i: Instruction, value: Value) -> bool:
    """Of the conditional jump `i` on `value`, which it has taken off the stack: go on to where the next condition is known,
    too, and leave the joint one there. False: there is none, and nothing was done."""
    t = m.t
    end = _end(m.code, i)
    if end is None or t.ends.at_stake or (m.code.code, i.index) in t.break_points.apart or not _is_unknown(t, value):
        return False
    below = m.stack if i.opname in JUMPS_OR_POP else m.stack[:-1]
    is_tested = end != i.target or _is_tested(m.code, end, below[-2:])
    if not is_tested and not _is_bool(value):
        return False
    joint = _joint(m, i, value, end, is_tested)
    if joint is None:
        alone = partial(t.break_points.apart.add, (m.code.code, i.index))
        leave_trace(RestartTrace("what is tested next is for eager code alone", action=alone))
    m.stack.append(joint)
    return True


def _joint(m: Machine, i: Instruction, first: Value, end: int, is_tested: bool) -> Value | None:
    """The condition at `end`, of which nothing but its truth is asked if `is_tested`; None where the first has to be tested
    alone."""
    t = m.t
    graph = _tensor(first).node.graph
    before = set(graph.nodes)
    try:
        with t.effects.confined() as is_confined, t.only_reading("a condition"):
            _run_to(m, end)
            has_effects = not is_confined()
    except (BreakGraph, Raised, NotConstant, MissingName):
        return None
    calls = [each for each in graph.nodes if each not in before and each.op.startswith("call")]
    if has_effects or len(calls) > _MOST_OPERATORS or not all(map(_is_total, calls)):
        return None
    second = m.stack.pop().realize()
    # What the first skips the second for, and the truth of the second that leads to the same place.
    skips = "_TRUE" in i.opname
    last = m.instructions[end]
    decides = skips if end == i.target else ("_TRUE" in last.opname) is (last.target == i.target)
    if not is_tested:
        return protocol.binary(t, "|" if decides else "&", first, second) if _is_bool(second) else None
    if not _is_unknown(t, second):
        if not second.is_constant():
            return None
        is_decided = bool(second.as_constant()) is decides
        return t.make(decides) if is_decided else _truth(t, first, skips is decides)
    if _tensor(first).fake.device != _tensor(second).fake.device:
        return None
    either = torch.logical_or if decides else torch.logical_and
    return t.emit(either, [_truth(t, first, skips is decides), _truth(t, second, True)])


def _end(code: Code, i: Instruction) -> int | None:
    """Where the condition that follows this jump is tested as well: at a jump that leads to the same place, or, of `a or b` as
    a value, at that place."""
    known: dict[int, int | None] = code.facts.setdefault("joint", {})
    if i.index not in known:
        known[i.index] = _find_end(code, i)
    return known[i.index]


def _find_end(code: Code, i: Instruction) -> int | None:
    keeps_value = i.opname in JUMPS_OR_POP or (
        code.instructions[i.index + 1].opname == "POP_TOP" and _is_copied(code, i.index))
    for at in range(i.index + 1, len(code.instructions)):
        each = code.instructions[at]
        if keeps_value and at == i.target:
            return at
        if each.opname in _JUMPS and not keeps_value:
            return at if i.target in (each.target, at + 1) else None
        if each.opname in _JUMPS | JUMPS_OR_POP:
            if each.target != i.target:
                return None
        elif not _only_reads(each) or code.handler_at(at) != code.handler_at(i.index):
            return None
    return None


def _only_reads(instruction: Instruction) -> bool:
    """Whether it changes no variable and no object of itself, and nothing further down on the stack."""
    in_place = instruction.opname == "BINARY_OP" and str(instruction.argval).endswith("=")
    return instruction.opname in _READING and not in_place


def _is_copied(code: Code, at: int) -> bool:
    """Whether what is tested at `at` stays on the stack: CPython 3.12 has no other way to write `a or b`."""
    while code.instructions[at - 1].opname in ("TO_BOOL", "NOP"):
        at -= 1
    before = code.instructions[at - 1]
    return before.opname == "COPY" and before.arg == 1


def _run_to(m: Machine, end: int) -> None:
    t = m.t
    while m.pc != end:
        safe_point()
        m.steps = t.steps
        t.steps += 1
        m.index = m.pc
        m.pc += 1
        instruction = m.instructions[m.index]
        HANDLERS[instruction.opname](m, instruction)


def _is_tested(code: Code, at: int, called: list[Value]) -> bool:
    """Whether the value on the stack is asked for its truth, and that is all; `called` is below it, if it is the argument of a
    call."""
    while code.instructions[at].opname == "NOP":
        at += 1
    instruction = code.instructions[at]
    if instruction.opname in ("UNARY_NOT", "TO_BOOL", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"):
        return True
    spec = instruction.argval
    if instruction.opname != "CALL" or not isinstance(spec, CallSpec) or spec.nargs != 1 or spec.kwnames:
        return False
    functions = [each for each in called if each is not NULL]
    return len(functions) == 1 and functions[0].is_constant() and functions[0].as_constant() is bool


def _is_unknown(t: Tracer, value: Value) -> bool:
    """Whether the truth of `value` is that of a number in the graph."""
    if isinstance(value, ArrayValue):
        value = value.tensor
    elif not isinstance(value, TensorValue) or value.cls is not torch.Tensor:
        return False
    numel, fake = value.fake.numel(), value.fake
    if not isinstance(numel, int) or numel != 1 or fake.layout is not torch.strided:
        return False
    if overrides.entered_transforms(t) or overrides.innermost(t) is not None or tensor_methods.known_item(value) is not None:
        return False
    return given_numbers.truth_in(t, value) is None


def _is_bool(value: Value) -> bool:
    """Whether it is a bool of NumPy's: there are two of them, and no way to tell one that was made from another."""
    return isinstance(value, ArrayValue) and value.scalar and value.tensor.fake.dtype is torch.bool


def _tensor(value: Value) -> TensorValue:
    tensor = value.tensor if isinstance(value, ArrayValue) else value
    assert isinstance(tensor, TensorValue)
    return tensor


def _truth(t: Tracer, value: Value, wanted: bool) -> Value:
    """Whether `bool(value)` is `wanted`."""
    tensor = _tensor(value)
    if wanted and tensor.fake.dtype is torch.bool and not tensor.fake.dim():
        return tensor
    return t.emit("all", [t.emit(torch.ne if wanted else torch.eq, [tensor, 0])])


def _is_total(node: torch.fx.Node) -> bool:
    """Whether the operator has a result for all numbers, and does nothing else."""
    if uses_rng(node):
        return False
    if not node.all_input_nodes:
        return node.target in (torch.tensor, torch.as_tensor, torch.scalar_tensor)
    if node.target is operator.getitem:
        return isinstance(node.args[0], torch.fx.Node) and len(node.all_input_nodes) == 1
    overloads = overloads_of(node.target)
    if getattr(node.target, "__module__", None) == "_operator":
        name = node.target.__name__  # type: ignore[union-attr]  # a function
        overloads = overloads_of(name.strip("_")) or overloads_of(f"__{name.strip('_')}__")
    given = [list(tensors_of(each)) for each in node.all_input_nodes]
    return bool(overloads) and not any(may_raise_on(each, given) for each in overloads)
