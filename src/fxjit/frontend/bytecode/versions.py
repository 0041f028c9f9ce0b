"""The per-Python-version facts of bytecode, as data: one frozen `Version`, chosen once for the running interpreter.

The only file that looks at `sys.version_info`. Spellings that differ between Pythons are rows of `normalize.py`;
here is what remains: where NULL stands in a call, how keyword names travel, cache sizes, what jumps skip."""

from __future__ import annotations

import dis
import opcode
import sys
import typing
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Version:
    """The bytecode facts of one Python release."""

    name: str
    null_below: bool
    """A call is [NULL, callable, args...] or [method, self, args...]; else [callable, NULL, args...]."""
    keywords_on_stack: bool
    """Keyword names are a tuple on the stack (CALL_KW); else KW_NAMES stands before CALL."""
    has_precall: bool
    """PRECALL stands before CALL."""
    attr_has_method_bit: bool
    """LOAD_ATTR carries the method bit; else LOAD_METHOD is an opcode."""
    compare_shift: int
    """COMPARE_OP: the operator is `arg >> compare_shift`."""
    compare_bool_bit: int
    """COMPARE_OP: the bit of `arg` that asks for an exact bool; 0 where there is none."""
    loop_end: tuple[str, ...]
    """The instructions at the target of FOR_ITER that an exhausted loop jumps over."""
    jump_tests_bool: bool
    """POP_JUMP_IF_TRUE/FALSE want an exact bool (TO_BOOL goes before)."""
    directed_jumps: bool
    """Conditional jumps say their direction: POP_JUMP_FORWARD_IF_TRUE."""
    send_leaves_receiver: bool
    """A finished SEND leaves [receiver, value] for END_SEND; else [value]."""
    function_attributes: bool
    """MAKE_FUNCTION takes the code only; SET_FUNCTION_ATTRIBUTE adds the rest."""
    inlines_comprehensions: bool
    """Comprehensions run in the frame of their function (LOAD_FAST_AND_CLEAR)."""
    close_gives_result: bool
    """`generator.close()` gives what the body returned."""
    locals_are_kept: bool
    """`locals()` of a function is one dict a frame, which keeps what `exec` puts there; else each call makes one."""
    class_call_runs_init: bool
    """A CALL that was specialised for a class runs `__init__` itself: the frame hook does not see that frame, and an exception
    that comes out of it looks for its handler one unit before the CALL. CALL_KW is never specialised."""
    with_exit_below: int
    """How many stack entries stand between __exit__ and the top when WITH_EXCEPT_START runs: lasti, previous, exc; before
    them, from 3.14 on, the manager: __exit__ is a function of its class there."""
    subscript_is_operator: bool = False
    """`a[b]` is BINARY_OP with an operator of its own; else BINARY_SUBSCR."""
    call_ex_has_keywords: bool = False
    """CALL_FUNCTION_EX always takes an entry for keyword arguments, NULL where there are none; else its argument says so."""


_VERSIONS = {
    (3, 11): Version(
        "3.11",
        null_below=True,
        keywords_on_stack=False,
        has_precall=True,
        attr_has_method_bit=False,
        compare_shift=0,
        compare_bool_bit=0,
        loop_end=(),
        jump_tests_bool=False,
        directed_jumps=True,
        send_leaves_receiver=False,
        function_attributes=False,
        inlines_comprehensions=False,
        close_gives_result=False,
        locals_are_kept=True,
        class_call_runs_init=False,
        with_exit_below=3,
    ),
    (3, 12): Version(
        "3.12",
        null_below=True,
        keywords_on_stack=False,
        has_precall=False,
        attr_has_method_bit=True,
        compare_shift=4,
        compare_bool_bit=0,
        loop_end=("END_FOR",),
        jump_tests_bool=False,
        directed_jumps=False,
        send_leaves_receiver=True,
        function_attributes=False,
        inlines_comprehensions=True,
        close_gives_result=False,
        locals_are_kept=True,
        class_call_runs_init=False,
        with_exit_below=3,
    ),
    (3, 13): Version(
        "3.13",
        null_below=False,
        keywords_on_stack=True,
        has_precall=False,
        attr_has_method_bit=True,
        compare_shift=5,
        compare_bool_bit=16,
        loop_end=("END_FOR", "POP_TOP"),
        jump_tests_bool=True,
        directed_jumps=False,
        send_leaves_receiver=True,
        function_attributes=True,
        inlines_comprehensions=True,
        close_gives_result=True,
        locals_are_kept=False,
        class_call_runs_init=True,
        with_exit_below=3,
    ),
    # From CPython's documentation of `dis`, its table of magic numbers and the headers of 3.14. It has not been run: what is
    # left to write is in `normalize.UNREAD`, and pythons.py refuses it until then.
    (3, 14): Version(
        "3.14",
        null_below=False,
        keywords_on_stack=True,
        has_precall=False,
        attr_has_method_bit=True,
        compare_shift=5,
        compare_bool_bit=16,
        loop_end=("END_FOR", "POP_ITER"),
        jump_tests_bool=True,
        directed_jumps=False,
        send_leaves_receiver=True,
        function_attributes=True,
        inlines_comprehensions=True,
        close_gives_result=True,
        locals_are_kept=False,
        class_call_runs_init=True,
        with_exit_below=4,
        subscript_is_operator=True,
        call_ex_has_keywords=True,
    ),
}


def _cache_sizes() -> tuple[int, ...]:
    """Code units of inline cache behind each opcode: a list until 3.12, a dict by name from 3.13."""
    entries = opcode._inline_cache_entries  # type: ignore[attr-defined]  # no public name before 3.13's dis.Instruction
    if isinstance(entries, dict):
        return tuple(entries.get(dis.opname[number], 0) for number in range(256))
    return tuple(entries[:256])


VERSION = _VERSIONS[sys.version_info[:2]]  # fxjit/__init__.py refuses the others
CACHES = _cache_sizes()
OPNAMES: tuple[str, ...] = tuple(dis.opname[:256])
OPCODES: dict[str, int] = dict(dis.opmap)
EXTENDED_ARG: int = OPCODES["EXTENDED_ARG"]
CACHE: int = OPCODES["CACHE"]
HAVE_ARGUMENT: frozenset[int] = frozenset(
    getattr(dis, "hasarg", None) or range(dis.HAVE_ARGUMENT, 256)  # `hasarg` is new in 3.12
)
JUMPS: frozenset[int] = frozenset(number for number in dis.hasjrel if number < 256)
BACKWARD: frozenset[int] = frozenset(number for number in JUMPS if "BACKWARD" in OPNAMES[number])
BINARY_OPERATORS: tuple[str, ...] = tuple(
    symbol for _, symbol in opcode._nb_ops  # type: ignore[attr-defined]  # no public name before 3.14
)
COMPARISONS: tuple[str, ...] = tuple(dis.cmp_op)
CONSTANT_OPS: frozenset[int] = frozenset(dis.hasconst)
NAME_OPS: frozenset[int] = frozenset(dis.hasname)
SLOT_OPS: frozenset[int] = frozenset(dis.haslocal) | frozenset(dis.hasfree)
NAME_SHIFT: dict[str, int] = {
    "LOAD_GLOBAL": 1,
    "LOAD_ATTR": 1 if VERSION.attr_has_method_bit else 0,
    "LOAD_SUPER_ATTR": 2,
}
"""Opcodes whose argument holds the index of a name above some flag bits."""
ALIAS_TYPES: tuple[type, ...] = (typing.TypeAliasType,) if hasattr(typing, "TypeAliasType") else ()
"""What a `type` statement makes, from 3.12 on."""
