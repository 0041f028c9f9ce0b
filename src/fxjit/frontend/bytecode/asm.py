"""Asm: bytecode is written through it. Sources load themselves with it (it satisfies `guards.source.Loader`), values
rebuild themselves with it, `resume` writes whole code objects with it and copies original instructions.

Every method emits for the running Python. `finish` gives the code object. Constants may be any objects: they are told
apart by identity, never hashed, compared or copied; not later either, when somebody hashes the code object."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType
from typing import Any

from .assemble import NOWHERE, Emitted, Guarding, Label, assemble
from .instruction import CallSpec, Instruction, Positions
from .versions import (
    BINARY_OPERATORS,
    CONSTANT_OPS,
    HAVE_ARGUMENT,
    JUMPS,
    NAME_OPS,
    NAME_SHIFT,
    OPCODES,
    SLOT_OPS,
    VERSION,
)

_VARARGS_FLAGS = 0x04 | 0x08
_CALLS_ALONE = frozenset({"PRECALL", "KW_NAMES"})


class Held:
    """Stands in a code object's constants for an object that must not be hashed or compared."""

    __slots__ = ("obj",)

    def __init__(self, obj: object) -> None:
        self.obj = obj


_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), CodeType})


def is_plain(obj: object) -> bool:
    """Whether `obj` can be a constant itself: hashing it runs no code of the user's, and the code object's constructor,
    which interns strings inside frozensets, leaves it the object it is."""
    kind = type(obj)
    if kind in _ATOMS:
        return True
    if kind is tuple:
        return all(is_plain(item) for item in obj)  # type: ignore[attr-defined]  # a tuple
    return kind.__hash__ is object.__hash__ or isinstance(obj, BuiltinFunctionType) or kind is type


class Asm:
    """One code object under construction. `argnames` are its parameters, all positional."""

    def __init__(self, argnames: Sequence[str], freevars: Sequence[str] = (), cellvars: Sequence[str] = ()) -> None:
        self.argnames = tuple(argnames)
        self.freevars = tuple(freevars)
        self.cellvars = tuple(cellvars)
        self._varnames: dict[str, None] = dict.fromkeys(argnames)
        self._instructions: list[Emitted] = []
        self._positions: Positions = NOWHERE
        self._handler: Guarding | None = None
        self._constants: list[object] = [None]
        self._constant_at: dict[int, int] = {id(None): 0}
        self._held: dict[int, Held] = {}
        self._names: dict[str, int] = {}
        self._temps = 0
        #: Sources that several others start from, with the local that keeps each once it was loaded.
        self._shared: dict[Any, str | None] = {}

    # -- the basis -------------------------------------------------------------------------------------------------

    def emit(self, opname: str, arg: int = 0, *, label: Label | None = None, slot: str | None = None) -> None:
        """A native instruction, as it is."""
        if opname == "CALL" and VERSION.class_call_runs_init and self.count:
            if self._instructions[-1].handler is not self._handler:
                self.emit("NOP")  # one unit before, under the CALL's own handler
        self._instructions.append(
            Emitted(OPCODES[opname], arg, self._positions, label=label, slot=slot, handler=self._handler)
        )

    @property
    def count(self) -> int:
        """How many native instructions there are so far."""
        return len(self._instructions)

    def line(self, line: int | None) -> None:
        """Places the following instructions on this line."""
        self._positions = Positions(line, line, None, None)

    def at(self, positions: Positions) -> None:
        """Gives the following instructions these positions."""
        self._positions = positions

    def label(self) -> Label:
        """A label, to be placed later."""
        return Label()

    def place(self, label: Label) -> None:
        """The label stands before what follows."""
        assert label.at < 0, "a label stands in one place"
        label.at = len(self._instructions)

    def guarding(self, target: Label, push_lasti: bool = True, depth: int | None = None) -> Guarding:
        """A handler for `under`; `depth` None: the stack depth where it begins."""
        return Guarding(target, push_lasti, depth)

    @contextmanager
    def under(self, guarding: Guarding | None) -> Iterator[None]:
        """Puts the instructions emitted in the block under this handler alone."""
        outer, self._handler = self._handler, guarding
        yield
        self._handler = outer

    def fresh_local(self, prefix: str) -> str:
        """A fresh name for a local; one that the user's code cannot contain."""
        self._temps += 1
        name = f".{prefix}{self._temps}"
        self._varnames[name] = None
        return name

    def prologue(self) -> None:
        """The first instructions of every code object."""
        if self.freevars:
            self.emit("COPY_FREE_VARS", len(self.freevars))
        self.emit("RESUME")

    # -- loading and storing ---------------------------------------------------------------------------------------

    def _constant(self, obj: object) -> int:
        at = self._constant_at.get(id(obj))
        if at is None:
            at = self._constant_at[id(obj)] = len(self._constants)
            self._constants.append(obj)
        return at

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _slot(self, opname: str, name: str) -> None:
        if name not in self.freevars and name not in self.cellvars:
            self._varnames.setdefault(name)
        self.emit(opname, slot=name)

    def load_const(self, obj: object) -> None:
        if is_plain(obj):
            self.emit("LOAD_CONST", self._constant(obj))
        else:
            self.emit("LOAD_CONST", self._constant(self._held_by(obj)))
            self.load_attr("obj")

    def held(self) -> list[object]:
        """The objects among the constants that are no plain ones."""
        return [each.obj for each in self._held.values()]

    def _held_by(self, obj: object) -> Held:
        held = self._held.get(id(obj))
        if held is None:
            held = self._held[id(obj)] = Held(obj)
        return held

    def load_local(self, name: str) -> None:
        self._slot("LOAD_FAST", name)

    def load_local_checked(self, name: str) -> None:
        """The same of a local that may be unbound, which raises UnboundLocalError."""
        self._slot("LOAD_FAST_CHECK" if "LOAD_FAST_CHECK" in OPCODES else "LOAD_FAST", name)

    def store_local(self, name: str) -> None:
        """NULL may be stored: the local is unbound then."""
        self._slot("STORE_FAST", name)

    def delete_local(self, name: str) -> None:
        """The local must be bound."""
        self._slot("DELETE_FAST", name)

    def take_local(self, name: str) -> None:
        """Load a bound local and unbind it."""
        self.load_local(name)
        self.delete_local(name)

    def move_to_cell(self, local: str, name: str) -> None:
        """Makes `name` the variable whose cell is in the local, which is unbound then."""
        if name not in self.cellvars:
            self.cellvars += (name,)
        self.emit("MAKE_CELL", slot=name)  # or the slot is taken for a local's, which holds a cell
        self.take_local(local)
        self._slot("STORE_FAST", name)

    def load_deref(self, name: str) -> None:
        """The contents of a free variable's cell."""
        self.emit("LOAD_DEREF", slot=name)

    def store_deref(self, name: str) -> None:
        self.emit("STORE_DEREF", slot=name)

    def load_cell(self, name: str) -> None:
        """The cell of a free variable itself."""
        self.emit("LOAD_CLOSURE" if OPCODES["LOAD_CLOSURE"] < 256 else "LOAD_FAST", slot=name)

    def load_closure(self) -> None:
        """The tuple of the free variables' cells."""
        for name in self.freevars:
            self.load_cell(name)
        self.build_tuple(len(self.freevars))

    def load_global(self, name: str) -> None:
        self.emit("LOAD_GLOBAL", self._name(name) << 1)

    def load_builtin(self, name: str) -> None:
        """For names that the frame's globals do not have."""
        self.load_global(name)

    def share(self, sources: Iterable[Any]) -> None:
        """From now on `load_source` loads each of these once and keeps it in a local; an empty list ends that."""
        self._shared = dict.fromkeys(sources)

    def load_source(self, source: Any) -> None:
        """Load what a source (of fxjit.guards) leads to."""
        if source not in self._shared:
            source.load(self)
            return
        name = self._shared[source]
        if name is not None:
            self.load_local(name)
            return
        source.load(self)
        name = self._shared[source] = self.fresh_local("shared")
        self.dup()
        self.store_local(name)

    @property
    def shared_locals(self) -> list[str]:
        """The locals that keep shared sources now."""
        return [name for name in self._shared.values() if name is not None]

    def load_globals(self) -> None:
        """The globals dict of the running frame."""
        self.begin_call(builtins.globals)
        self.call(0)

    def load_attr(self, name: str) -> None:
        self.emit("LOAD_ATTR", self._name(name) << NAME_SHIFT["LOAD_ATTR"])

    def store_attr(self, name: str) -> None:
        """[value, object] -> []"""
        self.emit("STORE_ATTR", self._name(name))

    def delete_attr(self, name: str) -> None:
        """[object] -> []"""
        self.emit("DELETE_ATTR", self._name(name))

    def load_item(self, key: Any) -> None:
        """[container] -> [container[key]]"""
        self.load_const(key)
        self.subscript()

    def subscript(self) -> None:
        """[container, key] -> [item]"""
        if VERSION.subscript_is_operator:
            self.binary("[]")
        else:
            self.emit("BINARY_SUBSCR")

    def store_subscript(self) -> None:
        """[value, container, key] -> []"""
        self.emit("STORE_SUBSCR")

    def delete_subscript(self) -> None:
        """[container, key] -> []"""
        self.emit("DELETE_SUBSCR")

    # -- the stack -------------------------------------------------------------------------------------------------

    def push_null(self) -> None:
        self.emit("PUSH_NULL")

    def pop(self) -> None:
        self.emit("POP_TOP")

    def dup(self) -> None:
        self.emit("COPY", 1)

    def copy(self, depth: int) -> None:
        """Push the entry at `depth`; 1 is the top."""
        self.emit("COPY", depth)

    def swap(self, depth: int) -> None:
        """Exchange the top and the entry at `depth`; 2 is the one below the top."""
        self.emit("SWAP", depth)

    def rot(self, count: int) -> None:
        """Move the top below the `count - 1` entries under it."""
        for depth in range(count, 1, -1):
            self.swap(depth)

    # -- building --------------------------------------------------------------------------------------------------

    def build_tuple(self, count: int) -> None:
        self.emit("BUILD_TUPLE", count)

    def build_list(self, count: int) -> None:
        self.emit("BUILD_LIST", count)

    def build_set(self, count: int) -> None:
        self.emit("BUILD_SET", count)

    def build_map(self, count: int) -> None:
        """[key, value, key, value, ...] -> [dict]"""
        self.emit("BUILD_MAP", count)

    def build_string(self, count: int) -> None:
        self.emit("BUILD_STRING", count)

    def build_slice(self, count: int) -> None:
        """`count` is 2 or 3."""
        self.emit("BUILD_SLICE", count)

    def list_extend(self, depth: int) -> None:
        """[list, ..., iterable] -> [list, ...]; the list is at `depth` without the iterable, 1 is the top."""
        self.emit("LIST_EXTEND", depth)

    def dict_update(self, depth: int) -> None:
        self.emit("DICT_UPDATE", depth)

    def unpack(self, count: int) -> None:
        """[iterable] -> its items, the first on top."""
        self.emit("UNPACK_SEQUENCE", count)

    def binary(self, operator: str) -> None:
        """[left, right] -> [left operator right]; `+`, `+=`..."""
        self.emit("BINARY_OP", BINARY_OPERATORS.index(operator))

    # -- calls -----------------------------------------------------------------------------------------------------

    def begin_call(self, fn: Callable[..., object]) -> None:
        """Push a constant callable; its arguments and `call` follow."""
        self.null_before()
        self.load_const(fn)
        self.null_after()

    def null_before(self) -> None:
        """Goes before the code that pushes a callable."""
        if VERSION.null_below:
            self.push_null()

    def null_after(self) -> None:
        """Goes after the code that pushed a callable."""
        if not VERSION.null_below:
            self.push_null()

    def call(self, nargs: int, kwnames: tuple[str, ...] = (), *, seen: bool = False) -> None:
        """`nargs` counts the keyword arguments too; they stand last. `seen`: by the frame hook, whatever is called."""
        if kwnames or (seen and VERSION.class_call_runs_init):
            if VERSION.keywords_on_stack:
                self.load_const(kwnames)
                self.emit("CALL_KW", nargs)
                return
            self.emit("KW_NAMES", self._constant(kwnames))
        if VERSION.has_precall:
            self.emit("PRECALL", nargs)
        self.emit("CALL", nargs)

    def call_const(self, fn: Callable[..., object], nargs: int) -> None:
        """Call a constant with arguments that are on the stack already."""
        if nargs == 1:
            self.begin_call(fn)
            self.copy(3)
            self.call(1)
            self.swap(2)
            self.pop()
            return
        self.build_tuple(nargs)
        self.begin_call(fn)
        self.copy(3)
        self.call_ex(False)
        self.swap(2)
        self.pop()

    def call_ex(self, has_kwargs: bool) -> None:
        """[callable and NULL, args tuple, kwargs dict if `has_kwargs`] -> [result]"""
        if VERSION.call_ex_has_keywords and not has_kwargs:
            self.push_null()
        self.emit("CALL_FUNCTION_EX", int(has_kwargs))

    def make_function(self, code: CodeType, closure: Callable[[], None] | None) -> None:
        """A function of `code` over the running frame's globals; `closure` emits the tuple of its cells."""
        if closure is not None:
            closure()
        self.load_const(code)
        if VERSION.function_attributes:
            self.emit("MAKE_FUNCTION")
            if closure is not None:
                self.emit("SET_FUNCTION_ATTRIBUTE", 8)
        else:
            self.emit("MAKE_FUNCTION", 8 if closure is not None else 0)

    # -- control ---------------------------------------------------------------------------------------------------

    def return_value(self) -> None:
        self.emit("RETURN_VALUE")

    def raise_(self) -> None:
        """[exception] -> """
        self.emit("RAISE_VARARGS", 1)

    def jump(self, label: Label) -> None:
        """Forward."""
        self.emit("JUMP_FORWARD", label=label)

    def jump_if(self, what: str, label: Label) -> None:
        """Forward; takes the condition. `what` is TRUE, FALSE, NONE or NOT_NONE."""
        if VERSION.jump_tests_bool and what in ("TRUE", "FALSE"):
            self.emit("TO_BOOL")
        self.emit(f"POP_JUMP_FORWARD_IF_{what}" if VERSION.directed_jumps else f"POP_JUMP_IF_{what}", label=label)

    def jump_if_false(self, label: Label) -> None:
        self.jump_if("FALSE", label)

    def jump_if_true(self, label: Label) -> None:
        self.jump_if("TRUE", label)

    # -- original instructions -------------------------------------------------------------------------------------

    def raw(self, instruction: Instruction, label: Label | None = None, flags: int | None = None) -> None:
        """Copy an original instruction, its positions included; `label` is where it jumps, `flags` go in the place of the
        bits below a name's index. What stands before a CALL on some Pythons (KW_NAMES, PRECALL) comes with the CALL."""
        native = instruction.native
        if native in _CALLS_ALONE:
            return
        outer, self._positions = self._positions, instruction.positions
        opcode = OPCODES[native]
        arg = instruction.native_arg if opcode in HAVE_ARGUMENT else 0
        if native == "CALL":
            assert isinstance(instruction.argval, CallSpec)
            self.call(*instruction.argval)
        elif opcode in JUMPS:
            assert label is not None, f"{native} jumps somewhere"
            self.emit(native, label=label)
        elif opcode in CONSTANT_OPS:
            self.emit(native, self._constant(instruction.argval))
        elif opcode in NAME_OPS:
            shift = NAME_SHIFT.get(native, 0)
            name = instruction.argval[0] if isinstance(instruction.argval, tuple) else instruction.argval
            bits = arg & (1 << shift) - 1 if flags is None else flags
            self.emit(native, self._name(str(name)) << shift | bits)
        elif opcode in SLOT_OPS:
            self._slot(native, str(instruction.argval))
        else:
            self.emit(native, arg)
        self._positions = outer

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self, like: CodeType) -> CodeType:
        """The code object. File, names, first line, flags and docstring are those of `like`."""
        varnames = tuple(name for name in self._varnames)
        names = [*varnames, *(name for name in self.cellvars if name not in self._varnames), *self.freevars]
        slot_at = {name: nth for nth, name in enumerate(names)}
        for instruction in self._instructions:
            if instruction.slot is not None:
                instruction.arg = slot_at[instruction.slot]
        assembled = assemble(self._instructions, like.co_firstlineno)
        flags = like.co_flags & ~_VARARGS_FLAGS
        return like.replace(
            co_code=assembled.code,
            co_argcount=len(self.argnames),
            co_posonlyargcount=0,
            co_kwonlyargcount=0,
            co_nlocals=len(varnames),
            co_varnames=varnames,
            co_cellvars=self.cellvars,
            co_freevars=self.freevars,
            co_stacksize=assembled.stacksize,
            co_flags=flags,
            co_consts=tuple(self._constants),
            co_names=tuple(self._names),
            co_linetable=assembled.linetable,
            co_exceptiontable=assembled.exceptiontable,
        )
