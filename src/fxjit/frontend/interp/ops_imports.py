"""`import` inside a function. The module is imported while tracing: that happens once in a process, and not again when
the new bytecode runs."""

from __future__ import annotations

import builtins
import importlib.util
import sys
from types import ModuleType
from typing import Any

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.namespaces import known_namespace
from fxjit.guards.kinds import HasKey, IdIs
from fxjit.guards.source import ConstSource, ItemSource


def module_value(t: Tracer, module: object, name: str) -> Value:
    """The value of a module found by import: its identity is taken as given."""
    return t.wrap(module, ConstSource(module, f"sys.modules[{name!r}]")).realize()


@op("IMPORT_NAME")
def import_name(m: Machine, i: Instruction) -> None:
    t = m.t
    name: Any = i.argval
    fromlist, level = m.stack.pop(), m.stack.pop()
    names = None if fromlist.is_constant() and fromlist.as_constant() is None else tuple(
        item.as_constant() for item in protocol.unpack(t, fromlist))
    found_by = known_namespace(t, sys.modules)
    if found_by is not None and found_by.written:
        t.break_("opcode-import", name=name)
    try:
        module = __import__(name, m.globals.namespace, None, names or (), level.as_constant())
    except Exception as error:  # whatever the module's body raises is raised by the import in the program too
        t.raise_(type(error), *error.args)
    _guard_import(m, name, level.as_constant(), bool(names), module)
    m.stack.append(module_value(t, module, getattr(module, "__name__", name)))


def _guard_import(m: Machine, name: str, level: int, is_from: bool, module: object) -> None:
    """The same import finds the same module later: programs put others in their place in `sys.modules`."""
    t = m.t
    importer = builtins.__import__
    t.guard(IdIs(ItemSource(ConstSource(builtins.__dict__, "builtins"), "__import__"), importer))
    package = m.globals.namespace.get("__package__") or ""
    full = importlib.util.resolve_name("." * level + name, package) if level else name
    found_as = full if is_from else full.partition(".")[0]
    if sys.modules.get(found_as) is module:
        t.guard(IdIs(ItemSource(ConstSource(sys.modules, "sys.modules"), found_as), module))
    if found_as != full:
        t.guard(HasKey(ConstSource(sys.modules, "sys.modules"), full, full in sys.modules))


@op("IMPORT_FROM")
def import_from(m: Machine, i: Instruction) -> None:
    t, module = m.t, m.stack[-1]
    name: Any = i.argval
    found = protocol.getattr_or_none(t, module, name)
    if found is None:
        parent = protocol.getattr_or_none(t, module, "__name__")
        full = f"{parent.as_constant()}.{name}" if parent is not None else name
        known = sys.modules.get(full)
        if not isinstance(known, ModuleType):
            where = protocol.getattr_or_none(t, module, "__file__")
            t.raise_(ImportError, f"cannot import name {name!r} from {parent.as_constant() if parent else '?'!r} "
                                  f"({where.as_constant() if where is not None else 'unknown location'})")
        found = module_value(t, known, full)
    m.stack.append(found)
