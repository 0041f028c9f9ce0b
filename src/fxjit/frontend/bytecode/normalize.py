"""Each Python's opcodes in one canonical vocabulary: `decode` looks every native instruction up here.

A row says what a native opcode is called and how its argument reads. Nothing here changes the stack: superinstructions
are split into halves, spellings are unified, NULLs stay where CPython puts them. `CANONICAL` is the vocabulary that
the interpreter handles; names outside it are opcodes that never reach a frame we may touch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import NamedTuple

from .versions import BINARY_OPERATORS, COMPARISONS, OPCODES, VERSION

CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX"})
JUMPS_IF = frozenset({"POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"})
JUMPS_OR_POP = frozenset({"JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP"})
LEAVES = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"})
"""Instructions after which control never goes on to the next one."""

CANONICAL: frozenset[str] = frozenset(
    """
    NOP POP_TOP PUSH_NULL COPY SWAP END_FOR END_SEND
    LOAD_CONST LOAD_FAST STORE_FAST DELETE_FAST LOAD_FAST_AND_CLEAR
    LOAD_CLOSURE LOAD_DEREF STORE_DEREF DELETE_DEREF MAKE_CELL COPY_FREE_VARS
    LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS LOAD_LOCALS
    LOAD_GLOBAL STORE_GLOBAL DELETE_GLOBAL LOAD_NAME STORE_NAME DELETE_NAME
    LOAD_ATTR LOAD_METHOD LOAD_SUPER_ATTR STORE_ATTR DELETE_ATTR
    BINARY_SUBSCR STORE_SUBSCR DELETE_SUBSCR BINARY_SLICE STORE_SLICE
    UNARY_NEGATIVE UNARY_NOT UNARY_INVERT UNARY_POSITIVE TO_BOOL BINARY_OP COMPARE_OP IS_OP CONTAINS_OP
    CALL CALL_KW CALL_FUNCTION_EX CALL_INTRINSIC_1 CALL_INTRINSIC_2
    LIST_TO_TUPLE ASYNC_GEN_WRAP PREP_RERAISE_STAR PRINT_EXPR IMPORT_STAR
    JUMP POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP GET_ITER FOR_ITER RETURN_VALUE RETURN_CONST
    BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP BUILD_CONST_KEY_MAP BUILD_STRING BUILD_SLICE
    LIST_APPEND LIST_EXTEND SET_ADD SET_UPDATE MAP_ADD DICT_UPDATE DICT_MERGE UNPACK_SEQUENCE UNPACK_EX
    FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC CONVERT_VALUE
    MAKE_FUNCTION SET_FUNCTION_ATTRIBUTE LOAD_BUILD_CLASS
    LOAD_ASSERTION_ERROR RAISE_VARARGS RERAISE PUSH_EXC_INFO POP_EXCEPT CHECK_EXC_MATCH CHECK_EG_MATCH
    BEFORE_WITH WITH_EXCEPT_START
    GET_LEN MATCH_CLASS MATCH_KEYS MATCH_MAPPING MATCH_SEQUENCE
    IMPORT_NAME IMPORT_FROM SETUP_ANNOTATIONS
    RETURN_GENERATOR YIELD_VALUE SEND GET_YIELD_FROM_ITER GET_AWAITABLE CLEANUP_THROW
    GET_AITER GET_ANEXT END_ASYNC_FOR BEFORE_ASYNC_WITH EXIT_INIT_CHECK INTERPRETER_EXIT
    """.split()  # noqa: SIM905 - a list of names reads better as text
)

_RENAMED = {
    "RESUME": "NOP",
    "PRECALL": "NOP",
    "KW_NAMES": "NOP",
    "LOAD_FAST_CHECK": "LOAD_FAST",
    "LOAD_FAST_BORROW": "LOAD_FAST",
    "LOAD_SMALL_INT": "LOAD_CONST",
    "POP_ITER": "POP_TOP",
    "NOT_TAKEN": "NOP",
    "JUMP_FORWARD": "JUMP",
    "JUMP_BACKWARD": "JUMP",
    "JUMP_BACKWARD_NO_INTERRUPT": "JUMP",
    **{
        f"POP_JUMP_{way}_IF_{what}": f"POP_JUMP_IF_{what}"
        for way in ("FORWARD", "BACKWARD")
        for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")
    },
}

_SPLIT = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}

UNREAD: dict[str, str] = {
    "LOAD_SPECIAL": "one of __enter__, __exit__, __aenter__ and __aexit__ of a class: [manager] -> [function, manager]",
    "LOAD_COMMON_CONSTANT": "AssertionError, NotImplementedError, tuple, all or any: [] -> [constant]",
    "BUILD_INTERPOLATION": "a replacement field of a t-string: [value, text, format spec if arg & 1] -> [interpolation]",
    "BUILD_TEMPLATE": "a t-string: [strings, interpolations] -> [template]",
}
"""Opcodes of 3.14 that nothing here reads yet, and their effect on the stack. They are new instructions, not new spellings:
LOAD_SPECIAL takes the place of BEFORE_WITH and BEFORE_ASYNC_WITH."""

_INTRINSICS_1 = (
    "INVALID",
    "PRINT",
    "IMPORT_STAR",
    "STOPITERATION_ERROR",
    "ASYNC_GEN_WRAP",
    "UNARY_POSITIVE",
    "LIST_TO_TUPLE",
    "TYPEVAR",
    "PARAMSPEC",
    "TYPEVARTUPLE",
    "SUBSCRIPT_GENERIC",
    "TYPEALIAS",
)
_INTRINSICS_2 = (
    "INVALID",
    "PREP_RERAISE_STAR",
    "TYPEVAR_WITH_BOUND",
    "TYPEVAR_WITH_CONSTRAINTS",
    "SET_FUNCTION_TYPE_PARAMS",
    "SET_TYPEPARAM_DEFAULT",
)
_OWN_OPCODE = frozenset({"ASYNC_GEN_WRAP", "UNARY_POSITIVE", "LIST_TO_TUPLE", "PREP_RERAISE_STAR"})
"""Intrinsics that were opcodes on 3.11, with the same effect on the stack."""

_CONVERSIONS = (None, "s", "r", "a")
_FUNCTION_PARTS = {1: "defaults", 2: "kwdefaults", 4: "annotations", 8: "closure"}


class Canonical(NamedTuple):
    """The canonical form of one native instruction, or of one half of a superinstruction."""

    opname: str
    argval: object
    flag: bool = False
    native: str | None = None
    """The native opcode of a half; None: the instruction's own."""
    native_arg: int | None = None


def _name(code: CodeType, arg: int) -> object:
    return code.co_names[arg]


def _local(code: CodeType, arg: int) -> object:
    # Slots are locals, then cells that are no arguments, then free variables: CPython keeps that order to itself.
    name: str = code._varname_from_oparg(arg)  # type: ignore[attr-defined]  # not in the stubs
    if name in code.co_freevars and arg < len({*code.co_varnames, *code.co_cellvars}):
        return own_slot(code, name)
    return name


def own_slot(code: CodeType, name: str) -> str:
    """The name of a local's or a cell's slot, which no other slot has: a comprehension that runs inline may have a variable
    with the name of a free variable of its function."""
    return f"{name}.inlined" if name in code.co_freevars else name


def _constant(code: CodeType, arg: int) -> object:
    return code.co_consts[arg]


def _number(code: CodeType, arg: int) -> object:
    return arg


_ARGVALS: dict[str, Callable[[CodeType, int], object]] = {
    **dict.fromkeys(
        ("STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "STORE_NAME", "DELETE_NAME", "LOAD_METHOD", "STORE_ATTR",
         "DELETE_ATTR", "IMPORT_NAME", "IMPORT_FROM", "LOAD_FROM_DICT_OR_GLOBALS"),
        _name,
    ),
    **dict.fromkeys(
        ("LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR", "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF",
         "DELETE_DEREF", "MAKE_CELL", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"),
        _local,
    ),
    "LOAD_CONST": _constant,
    "RETURN_CONST": _constant,
    "KW_NAMES": _constant,
    "BINARY_OP": lambda code, arg: BINARY_OPERATORS[arg],
    "UNPACK_EX": lambda code, arg: (arg & 0xFF, arg >> 8),
    "FORMAT_VALUE": lambda code, arg: (_CONVERSIONS[arg & 3], bool(arg & 4)),
    "CONVERT_VALUE": lambda code, arg: _CONVERSIONS[arg],
    "SET_FUNCTION_ATTRIBUTE": lambda code, arg: _FUNCTION_PARTS[arg],
    "MAKE_FUNCTION": lambda code, arg: tuple(part for bit, part in _FUNCTION_PARTS.items() if arg & bit),
    "CALL_INTRINSIC_1": lambda code, arg: _INTRINSICS_1[arg],
    "CALL_INTRINSIC_2": lambda code, arg: _INTRINSICS_2[arg],
}  # fmt: skip


def canonical(code: CodeType, native: str, arg: int) -> Iterator[Canonical]:
    """The canonical form of `native` with `arg`: one instruction, or the two halves of a superinstruction."""
    if native in _SPLIT:
        first, second = _SPLIT[native]
        yield _plain(code, first, arg >> 4)._replace(native=first, native_arg=arg >> 4)
        yield _plain(code, second, arg & 15)._replace(native=second, native_arg=arg & 15)
        return
    yield _plain(code, native, arg)


def _plain(code: CodeType, native: str, arg: int) -> Canonical:
    opname = _RENAMED.get(native, native)
    if opname == "LOAD_GLOBAL":
        return Canonical(opname, code.co_names[arg >> 1], bool(arg & 1))
    if opname == "LOAD_ATTR":
        if not VERSION.attr_has_method_bit:
            return Canonical(opname, code.co_names[arg])
        return Canonical("LOAD_METHOD" if arg & 1 else opname, code.co_names[arg >> 1])
    if opname == "LOAD_SUPER_ATTR":
        return Canonical(opname, (code.co_names[arg >> 2], bool(arg & 1), bool(arg & 2)))
    if opname == "COMPARE_OP":
        to_bool = bool(arg & VERSION.compare_bool_bit)
        return Canonical(opname, COMPARISONS[arg >> VERSION.compare_shift], to_bool)
    if opname in ("IS_OP", "CONTAINS_OP", "CALL_FUNCTION_EX"):
        return Canonical(opname, arg, bool(arg & 1))
    if native == "LOAD_SMALL_INT":
        return Canonical(opname, arg)
    argval = _ARGVALS.get(native if opname == "NOP" else opname, _number)(code, arg)
    if opname == "BINARY_OP" and argval == "[]":
        return Canonical("BINARY_SUBSCR", argval)
    if opname in ("CALL_INTRINSIC_1", "CALL_INTRINSIC_2") and argval in _OWN_OPCODE:
        return Canonical(str(argval), argval)
    if opname == "LOAD_FAST" and VERSION.function_attributes and _is_cell(code, arg):
        return Canonical("LOAD_CLOSURE", argval)
    return Canonical(opname, argval)


def _is_cell(code: CodeType, arg: int) -> bool:
    """Whether slot `arg` is one that only ever holds a cell (3.13 loads those by LOAD_FAST)."""
    return arg >= len(code.co_varnames) or code.co_varnames[arg] in code.co_cellvars


def canonical_name(native: str) -> str:
    """The canonical name of a native opcode; for a superinstruction, of its first half."""
    return _SPLIT[native][0] if native in _SPLIT else _RENAMED.get(native, native)


def native_opcodes() -> dict[str, str]:
    """Every opcode that the running Python's compiler can leave in a code object -> its canonical name. The completeness tests
    walk it."""
    skipped = {"CACHE", "EXTENDED_ARG", "RESERVED", "ENTER_EXECUTOR", "INTERPRETER_EXIT"}
    pseudo = {"JUMP", "JUMP_NO_INTERRUPT", "LOAD_SUPER_METHOD", "LOAD_ZERO_SUPER_ATTR", "LOAD_ZERO_SUPER_METHOD"}
    return {name: canonical_name(name) for name, number in OPCODES.items()
            if number < 256 and name not in skipped | pseudo and not name.startswith("INSTRUMENTED_")}
