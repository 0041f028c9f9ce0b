"""Guards as data: each with its sources, as indices of a table in which each source follows the one that it starts from."""

from __future__ import annotations

import collections
import contextlib
import datetime
import decimal
import fractions
import inspect
import pathlib
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from fxjit.guards import source as sources_module
from fxjit.guards.constants import is_plain, same_constant
from fxjit.guards.homes import home_of, uses_globals
from fxjit.guards.kinds import (
    AmbientIs,
    BasesAre,
    CodeIs,
    ConstIs,
    FoundIn,
    Guard,
    GuardSet,
    HasAttr,
    HasKey,
    IdIs,
    InstanceHasAttr,
    KeysAre,
    LengthIs,
    NotSameObject,
    PythonCheck,
    SameObject,
    SetIs,
    ShapeExpr,
    TensorIs,
    TypeIs,
)
from fxjit.guards.parts import TogetherSource
from fxjit.guards.relation import Relation
from fxjit.guards.shape_program import evaluate_program
from fxjit.guards.source import ApplySource, ConstSource, ItemSource, Scope, Source, stored_length
from fxjit.guards.tensor_spec import TensorSpec
from fxjit.skips.marks import Mark, mark_of

from .objects import Changed, NotStorable, code_digest, function_digest, leading, reached, refer
from .values import pack, pack_plain, unpack

_ROOTS: Final = ("LocalSource", "ClosureSource", "ClosureCellSource", "GlobalSource", "BuiltinSource")
_BARE: Final = ("TypeSource", "InstanceDictSource", "CellContentsSource", "CallSource", "TensorOffsetSource")
_WITH_ARGUMENT: Final = ("AttrSource", "DictKeySource", "DictValueSource", "ClassItemSource", "TensorSizeSource",
                         "TensorStrideSource")
#: The descriptor of a named tuple's field.
_FIELD: Final = type(vars(collections.namedtuple("_Named", "field"))["field"])


#: How an object is had of one that the frame has.
_WAYS: Final[dict[str, Callable[[Any], Any]]] = {
    "itself": lambda value: value,
    "type": type,
    "parameters": lambda value: value.parameters if type(value) is inspect.Signature else None,
}


class SourceTable:
    """The sources of an entry, each once."""

    def __init__(self, guards: GuardSet) -> None:
        self.rows: list[list[Any]] = []
        self._places: dict[Source, int] = {}
        #: By id: an object, and how it is had of which source's value.
        self._ways: dict[int, tuple[Any, str, Source]] = {}
        for guard in guards:
            if isinstance(guard, TypeIs):
                self._add_way("type", guard.type, guard.source)
            elif isinstance(guard, IdIs) and isinstance(guard.obj, type):
                self._add_way("itself", guard.obj, guard.source)
            elif isinstance(guard, IdIs) and type(guard.obj) is inspect.Signature:
                self._add_way("parameters", guard.obj.parameters, guard.source)

    def _add_way(self, how: str, obj: Any, source: Source) -> None:
        if obj is not None:
            self._ways.setdefault(id(obj), (obj, how, source))

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """Inside, references to objects to which no name leads say the way to them from the frame."""
        token = leading.set(self._way_to)
        try:
            yield
        finally:
            leading.reset(token)

    def _way_to(self, obj: Any) -> tuple[str, int] | None:
        """None too where the way leads over the object itself."""
        known = self._ways.pop(id(obj), None)
        if known is None:
            return None
        place = self.place(known[2])
        self._ways[id(obj)] = known
        return known[1], place

    def place(self, source: Source) -> int:
        """The index of a source. Raises NotStorable."""
        chain = [source]
        while chain[-1] not in self._places and chain[-1].base is not None:
            chain.append(chain[-1].base)  # type: ignore[arg-type]  # just seen not to be None
        for each in reversed(chain):
            if each not in self._places:
                base = None if each.base is None else self._places[each.base]
                parts = [self.place(part) for part in each.parts] if isinstance(each, TogetherSource) else None
                self.rows.append([type(each).__name__, base, *(_source_data(each) if parts is None else [parts])])
                self._places[each] = len(self.rows) - 1
        return self._places[source]


def _source_data(source: Source) -> list[Any]:
    kind = type(source).__name__
    if kind in _ROOTS:
        return [source.accessor[1]]
    if kind == "GlobalsSource" or kind in _BARE:
        return []
    if isinstance(source, ConstSource):
        return [_pack_object(source), source.name]
    if isinstance(source, (ItemSource, ApplySource)):
        return [pack(source._arg), *([source._label, source._more] if isinstance(source, ApplySource) else [])]
    if kind in _WITH_ARGUMENT:
        return [pack_plain(source._arg)]  # type: ignore[attr-defined]  # a _Step
    raise NotStorable(f"a guard on {source.name}")


def _pack_object(source: ConstSource) -> Any:
    try:
        return pack(source.obj)
    except NotStorable:
        function = source.a_function()
        if function is None or function.__globals__ is not source.obj:
            raise
        return ["object", ["globals of", refer(function)]]  # it was made by `exec`: they are no module's


@contextlib.contextmanager
def reaching(sources: Sequence[Source], scope: Scope) -> Iterator[None]:
    """Inside, references to what the frame leads to are read: two objects of an entry are two here, too. Raises Changed."""
    ways: dict[int, tuple[str, int]] = {}

    def find(how: str, place: int) -> Any:
        found = _WAYS[how](_fetched(sources[place], scope))
        if ways.setdefault(id(found), (how, place)) != (how, place):
            raise Changed(f"{sources[place].name} leads to what something else leads to")
        return found

    token = reached.set(find)
    try:
        yield
    finally:
        reached.reset(token)


class Sources(Sequence[Source]):
    """The sources of a table. Each is read when it is asked for, after those before it: an entry that does not fit mostly says
    so by one of its first guards, and may have thousands. Reading one raises Changed."""

    def __init__(self, rows: Sequence[list[Any]]) -> None:
        self._rows = rows
        self._found: list[Source] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        while len(self._found) <= place:
            self._found.append(self._read(*self._rows[len(self._found)]))
        return self._found[place]

    def _read(self, kind: str, base: int | None, *data: Any) -> Source:
        if kind == "TogetherSource":
            return TogetherSource(tuple(self._found[part] for part in data[0]))
        cls: Any = getattr(sources_module, kind)
        if base is not None:
            arguments = [self._found[base]]
            if kind not in _BARE:
                arguments += [unpack(data[0]), *data[1:]]
            return cls(*arguments)  # type: ignore[no-any-return]  # a Source
        if kind == "ConstSource":
            return ConstSource(unpack(data[0]), data[1])
        if kind in (*_ROOTS, "GlobalsSource"):
            return cls(*data)  # type: ignore[no-any-return]  # a Source
        raise ValueError(f"{kind} is no source")


def pack_guards(guards: GuardSet, table: SourceTable, home: str) -> list[Any]:
    """All guards, in their order; `home` is that of the frame's globals. Raises NotStorable."""
    packed = []
    for guard in guards:
        write = _WRITERS.get(type(guard))
        if write is None:
            raise NotStorable(f"the guard {guard.describe()}")
        packed.append([type(guard).__name__, [table.place(source) for source in guard.sources], *write(guard)])
        if isinstance(guard, CodeIs) and guard.home != home:
            packed[-1].append(guard.home)
    return packed


def homes_named(packed: Any) -> Iterator[str]:
    """The modules that sources and guards as data name, and those whose globals functions have."""
    if not isinstance(packed, list):
        return
    if len(packed) == 2 and packed[0] in ("module", "globals") and isinstance(packed[1], str):
        yield packed[1]
    if len(packed) == 4 and packed[0] == "CodeIs":
        yield packed[3]
    for each in packed:
        yield from homes_named(each)


def _tensor(guard: TensorIs) -> list[Any]:
    spec = guard.spec
    return [pack(each) for each in (spec.cls, spec.dtype, spec.device, spec.layout, spec.requires_grad, spec.dispatch_keys,
                                    spec.ndim, spec.sizes, spec.strides)]


def _shape(guard: ShapeExpr) -> list[Any]:
    if guard.program is not None:
        return [guard.text, list(guard.program)]
    if not isinstance(guard.evaluate, Relation):
        raise NotStorable(f"the guard {guard.text}, which only sympy can evaluate")
    return [guard.text, None, pack(guard.evaluate)]


def _alive(obj: Any, guard: Guard) -> Any:
    if obj is None:
        raise NotStorable(f"the guard {guard.describe()}, whose object may be gone")
    return pack(obj)


def _pack_identity(guard: IdIs) -> list[Any]:
    if not guard._held.alive:
        return [_alive(None, guard)]
    told = _content(guard.obj)
    return [None, *told[1:]] if isinstance(told, list) and told[0] == "like" else [told]


def _content(obj: Any) -> Any:
    """An object by its name, or by what it holds. Raises NotStorable."""
    try:
        return pack(obj)
    except NotStorable:
        for kind, (of_types, content) in _LIKE.items():
            if type(obj) in of_types:
                return ["like", kind, content(obj)]
        raise


_WRITERS: Final[dict[type[Guard], Callable[[Any], list[Any]]]] = {
    TypeIs: lambda guard: [_alive(guard.type, guard)],
    IdIs: _pack_identity,
    CodeIs: lambda guard: [code_digest(guard.code) if guard.code is not None else _alive(None, guard)],
    SameObject: lambda guard: [],
    NotSameObject: lambda guard: [],
    ConstIs: lambda guard: [pack(guard.value) if guard._held is None or guard._held.alive else _alive(None, guard)],
    TensorIs: _tensor,
    ShapeExpr: _shape,
    LengthIs: lambda guard: [guard.n],
    KeysAre: lambda guard: [pack(guard.keys)],
    SetIs: lambda guard: [sorted(map(pack, guard.elements), key=repr)],
    HasKey: lambda guard: [pack(guard.key), guard.present],
    HasAttr: lambda guard: [guard.attr, guard.present],
    InstanceHasAttr: lambda guard: [guard.attr, guard.present],
    FoundIn: lambda guard: [guard.attr, pack(guard._held.obj)],
    BasesAre: lambda guard: [[_alive(held.obj, guard) for held in guard._held]],
    AmbientIs: lambda guard: [guard.name, pack_plain(guard.value)],
    PythonCheck: lambda guard: [pack(guard.check), guard.text],
}


def read_guards(packed: Sequence[list[Any]], sources: Sequence[Source], scope: Scope) -> GuardSet:
    """The guards for a frame of this process. Raises Changed where one is known not to hold."""
    guards = GuardSet()
    for kind, places, *data in packed:
        guards.add(_READERS[kind](tuple(sources[place] for place in places), data, scope))
    return guards


def codes_named(guards: GuardSet, table: SourceTable) -> dict[int, types.CodeType]:
    """The code of functions that guards name, each by the place of its source."""
    return {table.place(guard.source): guard.code for guard in guards if isinstance(guard, CodeIs) and guard.code is not None}


def codes_found(packed: Sequence[list[Any]], sources: Sequence[Source], scope: Scope) -> dict[int, types.CodeType]:
    """The same of guards as data, for a frame on which they hold."""
    return {places[0]: _fetched(sources[places[0]], scope).__code__ for kind, places, *_ in packed if kind == "CodeIs"}


def marks_found(packed: Sequence[list[Any]], sources: Sequence[Source], scope: Scope) -> set[Mark | None]:
    """The marks on these functions: the key has no marks of torch's."""
    return {mark_of(_fetched(sources[places[0]], scope)) for kind, places, *_ in packed if kind == "CodeIs"}


def _code(sources: tuple[Source, ...], data: list[Any], scope: Scope) -> Guard:
    """The code is that of the function that the frame has, if it is the same code and of the same module."""
    function = _fetched(sources[0], scope)
    if type(function) is not types.FunctionType or code_digest(function.__code__) != data[0]:
        raise Changed(f"{sources[0].name} has another code")
    home = home_of(function.__globals__)
    if home != (data[1] if len(data) > 1 else home_of(scope.globals)):
        raise Changed(f"{sources[0].name} has the globals of another module")
    held = function.__globals__ is not scope.globals
    return CodeIs(sources[0], function.__code__, function.__globals__, uses_globals(function.__code__), held)


def _pattern(pattern: re.Pattern[Any]) -> list[Any]:
    return [pack_plain(pattern.pattern), pattern.flags]


def _signature(signature: inspect.Signature) -> list[Any]:
    return [*map(_parameter, signature.parameters.values()), _annotation(signature.return_annotation)]


def _parameter(parameter: inspect.Parameter) -> list[Any]:
    return [parameter.name, int(parameter.kind), _content(parameter.default), _annotation(parameter.annotation)]


def _annotation(value: Any) -> Any:
    """Of a type with parameters, the parts: each is made anew where it is written, and is what it consists of."""
    origin = typing.get_origin(value)
    if origin is None:
        return pack(value)
    return [type(value).__name__, pack(origin), *map(_annotation, typing.get_args(value))]


#: Types with parameters.
_GENERIC: Final = (types.GenericAlias, types.UnionType, type(typing.Union[int, str]), type(typing.List[int]))  # noqa: UP006, UP007
#: Values that their text says.
_TOLD_BY_TEXT: Final = (datetime.timedelta, decimal.Decimal, fractions.Fraction, pathlib.PurePosixPath, pathlib.PosixPath,
                        torch.finfo, torch.iinfo)
#: What no name leads to, by its type and its content.
_LIKE: Final[dict[str, tuple[tuple[type, ...], Callable[[Any], Any]]]] = {
    "field": ((_FIELD,), lambda field: field.__reduce__()[1][0]),
    "function": ((types.FunctionType,), function_digest),
    "dict": ((dict,), lambda found: [[pack(key), pack(value)] for key, value in found.items()]),  # defaults of a function
    "pattern": ((re.Pattern,), _pattern),
    "mapping": ((types.MappingProxyType,), lambda found: [[_content(key), _content(value)] for key, value in found.items()]),
    "signature": ((inspect.Signature,), _signature),
    "parameter": ((inspect.Parameter,), _parameter),
    "type": (_GENERIC, _annotation),
    "number or path": (_TOLD_BY_TEXT, lambda value: [type(value).__name__, repr(value)]),
}


def _identity(sources: tuple[Source, ...], data: list[Any], scope: Scope) -> Guard:
    """A plain constant is another object in each process, and so is what no name leads to: the one that the frame has, if it is
    the same constant, or has the same content."""
    if len(data) > 1:
        _, kind, known = data
        found = _fetched(sources[0], scope)
        of_types, content = _LIKE[kind]
        if type(found) not in of_types or content(found) != known:
            raise Changed(f"{sources[0].name} is another {kind}")
        return IdIs(sources[0], found)
    obj = unpack(data[0])
    if is_plain(obj) and obj is not None:
        found = _fetched(sources[0], scope)
        if not same_constant(obj, found):
            raise Changed(f"{sources[0].name} is another constant")
        obj = found
    return IdIs(sources[0], obj)


def _keys(sources: tuple[Source, ...], data: list[Any], scope: Scope) -> Guard:
    """Of thousands of keys, none is read where there are more or fewer now."""
    found = _fetched(sources[0], scope)
    if isinstance(found, dict | set | frozenset) and stored_length(found) != len(data[0]) - 1:
        raise Changed(f"{sources[0].name} has another number of keys")
    return KeysAre(sources[0], unpack(data[0]))


def _fetched(source: Source, scope: Scope) -> Any:
    try:
        return source.fetch(scope)
    except Exception as error:  # of the program's own objects
        raise Changed(f"{source.name} is not there ({type(error).__name__})") from None


def _shape_read(sources: tuple[Source, ...], data: list[Any], scope: Scope) -> Guard:
    if data[1] is None:
        return ShapeExpr(sources, data[0], unpack(data[2]), None)
    text, words = data[0], tuple(data[1])
    return ShapeExpr(sources, text, lambda *values: bool(evaluate_program(words, values)), words)


_Reader = Callable[[tuple[Source, ...], list[Any], Scope], Guard]
_READERS: Final[dict[str, _Reader]] = {
    "TypeIs": lambda sources, data, scope: TypeIs(sources[0], unpack(data[0])),
    "IdIs": _identity,
    "CodeIs": _code,
    "SameObject": lambda sources, data, scope: SameObject(*sources),
    "NotSameObject": lambda sources, data, scope: NotSameObject(sources),
    "ConstIs": lambda sources, data, scope: ConstIs(sources[0], unpack(data[0])),
    "TensorIs": lambda sources, data, scope: TensorIs(sources[0], TensorSpec(*map(unpack, data))),
    "ShapeExpr": _shape_read,
    "LengthIs": lambda sources, data, scope: LengthIs(sources[0], data[0]),
    "KeysAre": _keys,
    "SetIs": lambda sources, data, scope: SetIs(sources[0], frozenset(map(unpack, data[0]))),
    "HasKey": lambda sources, data, scope: HasKey(sources[0], unpack(data[0]), data[1]),
    "HasAttr": lambda sources, data, scope: HasAttr(sources[0], *data),
    "InstanceHasAttr": lambda sources, data, scope: InstanceHasAttr(sources[0], *data),
    "FoundIn": lambda sources, data, scope: FoundIn(sources[0], data[0], unpack(data[1])),
    "BasesAre": lambda sources, data, scope: BasesAre(sources[0], tuple(map(unpack, data[0]))),
    "AmbientIs": lambda sources, data, scope: AmbientIs(data[0], unpack(data[1])),
    "PythonCheck": lambda sources, data, scope: PythonCheck(sources, unpack(data[0]), data[1]),
}
