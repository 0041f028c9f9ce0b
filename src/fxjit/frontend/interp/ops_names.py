"""Names: locals, cells, globals, attributes, constants."""

from __future__ import annotations

from typing import Any, NoReturn

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.bytecode.versions import VERSION
from fxjit.frontend.interp import lifetimes
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NULL, Lazy, Value
from fxjit.frontend.values.closures import CellValue

# -- locals --------------------------------------------------------------------------------------------------------


@op("LOAD_FAST")
def load_fast(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    value = m.locals.get(name)
    if value is None:
        _unbound(m, name)
    if type(value) is Lazy:
        value = m.locals[name] = value.realize()
    m.stack.append(value)


def _unbound(m: Machine, name: str) -> NoReturn:
    m.t.raise_(UnboundLocalError, f"cannot access local variable '{name}' where it is not associated with a value")


@op("STORE_FAST")
def store_fast(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    value = m.stack.pop()
    if type(value) is Lazy and (name in m.code.cellvars or name in m.code.freevars):
        value = value.realize()
    if name in m.cells or value is NULL or type(value) is CellValue:
        _store_slot(m, name, value)
    else:
        old = m.locals.get(name)
        if old is not None and old is not value:
            _let_go(m, name, old)
        m.locals[name] = value


def _store_slot(m: Machine, name: str, value: Value) -> None:
    """An inlined comprehension gives back what LOAD_FAST_AND_CLEAR took: nothing, a local, or the cell in the same slot."""
    m.cells.pop(name, None)
    m.locals.pop(name, None)
    if isinstance(value, CellValue) and (name in m.code.cellvars or name in m.code.freevars):
        m.cells[name] = value
    elif value is not NULL:
        m.locals[name] = value


@op("DELETE_FAST")
def delete_fast(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    value = m.locals.pop(name, None)
    if value is None:
        _unbound(m, name)
    _let_go(m, name, value)


def _let_go(m: Machine, name: str, value: Value) -> None:
    """A variable drops `value`; where its end is observable, the running program drops it too."""
    if lifetimes.end_is_awaited(m, name, value):
        m.t.break_("object-let-go", value=value.describe())


@op("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    cell = m.cells.pop(name, None)
    m.stack.append(cell if cell is not None else m.locals.pop(name, NULL))


@op("LOAD_CONST")
def load_const(m: Machine, i: Instruction) -> None:
    m.stack.append(m.t.literal(i.argval))


# -- cells ---------------------------------------------------------------------------------------------------------


@op("MAKE_CELL")
def make_cell(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    m.cells[name] = CellValue(m.locals.pop(name, None))


@op("COPY_FREE_VARS")
def copy_free_vars(m: Machine, i: Instruction) -> None:
    m.cells.update(m.closure)


def cell_of(m: Machine, name: str) -> CellValue:
    """The cell of a name, looked at for the first time if need be."""
    cell = m.cells[name]
    if type(cell) is Lazy:
        cell = m.cells[name] = cell.realize()
    assert isinstance(cell, CellValue)
    return cell


def _unbound_cell(m: Machine, name: str) -> NoReturn:
    if name in m.code.freevars:
        m.t.raise_(NameError, f"cannot access free variable '{name}' where it is not associated with a value in "
                              "enclosing scope")
    _unbound(m, name)


@op("LOAD_CLOSURE")
def load_closure(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    if name in m.cells:
        m.stack.append(cell_of(m, name))
    else:  # a comprehension that 3.12 inlined may name a plain local here
        load_fast(m, i)


@op("LOAD_DEREF")
def load_deref(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    value = cell_of(m, name).get(m.t)
    if value is None:
        _unbound_cell(m, name)
    m.stack.append(value)


@op("STORE_DEREF")
def store_deref(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    cell, value = cell_of(m, name), m.stack.pop()
    if cell.contents is not None and cell.contents is not value:
        _let_go(m, name, cell.contents)
    cell.set(m.t, value)


@op("DELETE_DEREF")
def delete_deref(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    cell = cell_of(m, name)
    value = cell.get(m.t)
    if value is None:
        _unbound_cell(m, name)
    _let_go(m, name, value)
    cell.set(m.t, None)


# -- globals -------------------------------------------------------------------------------------------------------


@op("LOAD_GLOBAL")
def load_global(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    value = m.globals.load(m.t, name)
    if value is None:
        m.t.raise_(NameError, f"name '{name}' is not defined")
    if i.flag and VERSION.null_below:
        m.stack.append(NULL)
    m.stack.append(value)
    if i.flag and not VERSION.null_below:
        m.stack.append(NULL)


@op("STORE_GLOBAL")
def store_global(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    m.globals.store(m.t, name, m.stack.pop())


@op("DELETE_GLOBAL")
def delete_global(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    if not m.globals.store(m.t, name, None):
        m.t.raise_(NameError, f"name '{name}' is not defined")


# -- attributes ----------------------------------------------------------------------------------------------------


@op("LOAD_ATTR")
def load_attr(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    m.stack[-1] = protocol.getattr_(m.t, m.stack[-1], name)


@op("LOAD_METHOD")
def load_method(m: Machine, i: Instruction) -> None:
    """The bound method, as a call without the split of function and self that CPython does to save time."""
    name: Any = i.argval
    push_callable(m, protocol.getattr_(m.t, m.stack.pop(), name))


def push_callable(m: Machine, value: Value) -> None:
    """A callable and the NULL of this Python's call layout."""
    if VERSION.null_below:
        m.stack += (NULL, value)
    else:
        m.stack += (value, NULL)


@op("STORE_ATTR")
def store_attr(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    owner, value = m.stack.pop(), m.stack.pop()
    protocol.setattr_(m.t, owner, name, value)


@op("DELETE_ATTR")
def delete_attr(m: Machine, i: Instruction) -> None:
    name: Any = i.argval
    protocol.delattr_(m.t, m.stack.pop(), name)


@op("LOAD_SUPER_ATTR")
def load_super_attr(m: Machine, i: Instruction) -> None:
    """`super().name` and `super(cls, self).name`: both load the class and the object first."""
    spec: Any = i.argval
    name, is_method, _ = spec
    obj, cls, super_type = m.stack.pop(), m.stack.pop(), m.stack.pop()
    found = protocol.getattr_(m.t, m.t.call(super_type, [cls, obj], None), name)
    if is_method:
        push_callable(m, found)
    else:
        m.stack.append(found)
