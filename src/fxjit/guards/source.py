"""Where an object of the user's program is found again, starting from a frame: `x`, `self.layers[0].weight`, ...

The frontend gives every value that existed before the frame a `Source`; guards are facts about sources; resume/ emits
the bytecode that loads a source. A source says the same thing in three ways: `fetch` (Python), `load` (bytecode,
through the `Loader` that frontend/bytecode/asm.py satisfies) and `accessor` (one step of the C guard tree, tree.py).

Sources are values: immutable after creation, compared by what they say, hashed once. Thousands are made in a trace.
"""

from __future__ import annotations

import operator
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from types import CellType, FunctionType
from typing import Any, Final, Protocol

import torch

from fxjit._C import instance_dict

#: One step from a parent object (or the frame) to an object: the name of an accessor of _accessors.c, and its argument.
Accessor = tuple[str, object]


@dataclass(frozen=True, slots=True)
class Scope:
    """Variables of a frame at its start, by name."""

    args: Mapping[str, object]
    closure: Mapping[str, CellType]
    globals: dict[str, Any]
    builtins: dict[str, Any]

    @staticmethod
    def of(
        arg_names: tuple[str, ...],
        freevars: tuple[str, ...],
        args: tuple[object, ...],
        closure: tuple[CellType, ...] | None,
        globals: dict[str, Any],
        builtins: dict[str, Any],
    ) -> Scope:
        return Scope(dict(zip(arg_names, args, strict=False)), dict(zip(freevars, closure or (), strict=False)),
                     globals, builtins)


class Loader(Protocol):
    """Emits the bytecode that loads a source. Each method leaves one object on the stack, for those it takes."""

    def load_source(self, source: Source) -> None:
        """Load what `source` leads to: by its own steps, or from where it is kept."""

    def load_local(self, name: str) -> None: ...
    def load_deref(self, name: str) -> None: ...
    def load_cell(self, name: str) -> None: ...
    def load_global(self, name: str) -> None: ...
    def load_builtin(self, name: str) -> None: ...
    def load_globals(self) -> None: ...
    def load_const(self, obj: object) -> None: ...
    def load_attr(self, name: str) -> None: ...
    def load_item(self, key: Any) -> None: ...

    def begin_call(self, fn: Callable[..., object]) -> None:
        """Push a constant callable and the NULL of this Python's call layout; the arguments follow."""

    def call(self, nargs: int) -> None: ...


class Source:
    """See the module's docstring. `base` is the source this one starts from; None for what the frame itself holds."""

    __slots__ = ("_hash",)
    _hash: int

    @property
    def base(self) -> Source | None:
        return None

    @property
    def accessor(self) -> Accessor:
        raise AssertionError(f"{type(self).__name__} has no accessor")

    @property
    def name(self) -> str:
        """How a person would write it."""
        raise AssertionError(f"{type(self).__name__} has no name")

    @property
    def is_local_root(self) -> bool:
        """An argument of the frame, or a variable of its closure."""
        return False

    @property
    def root(self) -> Source:
        source: Source = self
        while source.base is not None:
            source = source.base
        return source

    def fetch(self, scope: Scope) -> Any:
        """The object, found in `scope`. Raises LookupError, AttributeError... when it is not there."""
        raise AssertionError(f"{type(self).__name__} cannot be fetched")

    def load(self, loader: Loader) -> None:
        raise AssertionError(f"{type(self).__name__} cannot be loaded")

    def _same(self, other: Any) -> bool:
        """Whether `other`, of the same class, says the same."""
        raise AssertionError(f"{type(self).__name__} cannot be compared")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return False
        return self._hash == other._hash and self._same(other)  # type: ignore[attr-defined]  # same class as self

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


# -- roots ---------------------------------------------------------------------------------------------------------


class _NamedRoot(Source):
    """A root that is all in its name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name
        self._hash = hash((type(self), name))

    @property
    def name(self) -> str:
        return self._name

    def _same(self, other: Any) -> bool:
        return bool(self._name == other._name)


class LocalSource(_NamedRoot):
    """An argument slot of the frame."""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("arg", self._name)

    @property
    def is_local_root(self) -> bool:
        return True

    def fetch(self, scope: Scope) -> Any:
        return scope.args[self._name]

    def load(self, loader: Loader) -> None:
        loader.load_local(self._name)


class ClosureSource(_NamedRoot):
    """The content of a free variable's cell."""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("deref", self._name)

    @property
    def is_local_root(self) -> bool:
        return True

    def fetch(self, scope: Scope) -> Any:
        return scope.closure[self._name].cell_contents

    def load(self, loader: Loader) -> None:
        loader.load_deref(self._name)


class ClosureCellSource(_NamedRoot):
    """The cell of a free variable itself."""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("cell", self._name)

    @property
    def name(self) -> str:
        return f"<cell {self._name}>"

    @property
    def is_local_root(self) -> bool:
        return True

    def fetch(self, scope: Scope) -> Any:
        return scope.closure[self._name]

    def load(self, loader: Loader) -> None:
        loader.load_cell(self._name)


class GlobalSource(_NamedRoot):
    """A variable of the frame's globals (not of the builtins behind them)."""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("global", self._name)

    def fetch(self, scope: Scope) -> Any:
        return scope.globals[self._name]

    def load(self, loader: Loader) -> None:
        loader.load_global(self._name)


class BuiltinSource(_NamedRoot):
    """A variable of the frame's builtins. That no global of this name hides it is a guard of its own (HasKey)."""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("builtin", self._name)

    def fetch(self, scope: Scope) -> Any:
        return scope.builtins[self._name]

    def load(self, loader: Loader) -> None:
        loader.load_builtin(self._name)


class GlobalsSource(Source):
    """The globals dict of the frame."""

    __slots__ = ()

    def __init__(self) -> None:
        self._hash = hash(GlobalsSource)

    @property
    def accessor(self) -> Accessor:
        return ("globals", None)

    @property
    def name(self) -> str:
        return "globals()"

    def fetch(self, scope: Scope) -> Any:
        return scope.globals

    def load(self, loader: Loader) -> None:
        loader.load_globals()

    def _same(self, other: Any) -> bool:
        return True


class ConstSource(Source):
    """An object known while tracing, embedded by reference: a module reached from torch, the globals of an inlined
    function. Two are the same when they are one object."""

    __slots__ = ("_function", "_label", "_obj", "_ref")

    def __init__(self, obj: object, label: str, function: FunctionType | None = None) -> None:
        # A class leads to all of the module it stands in, and code is no part of a cycle that the collector sees.
        self._ref = weakref.ref(obj) if isinstance(obj, type) else None
        self._function = None if function is None else weakref.ref(function)
        self._obj = obj if self._ref is None else None
        self._label = label
        self._hash = hash((ConstSource, id(obj)))

    @property
    def obj(self) -> Any:
        return self._obj if self._ref is None else self._ref()

    def a_function(self) -> FunctionType | None:
        """One whose globals these are."""
        return None if self._function is None else self._function()

    @property
    def accessor(self) -> Accessor:
        return ("const", self._obj) if self._ref is None else ("class", self._ref)

    @property
    def name(self) -> str:
        return self._label

    def fetch(self, scope: Scope) -> Any:
        return self.obj

    def load(self, loader: Loader) -> None:
        loader.load_const(self.obj)

    def _same(self, other: Any) -> bool:
        return self.obj is other.obj


class RandomSource(_NamedRoot):
    """The result of step `at` of those that new code runs before its graph (frontend/rng_steps.py), which it keeps in a local.
    Nothing is there yet when guards are checked."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        super().__init__(f"random{at}")
        self.at = at

    @property
    def local(self) -> str:
        """The name of the local; no name the user could write."""
        return f".{self._name}"

    def load(self, loader: Loader) -> None:
        loader.load_local(self.local)


# -- steps from another source -------------------------------------------------------------------------------------


class _Step(Source):
    """A source that starts from another. `_arg` is what distinguishes two steps of one class from one base."""

    __slots__ = ("_arg", "_base")

    def __init__(self, base: Source, arg: Any = None) -> None:
        self._base = base
        self._arg = arg
        self._hash = hash((type(self), base._hash, arg))

    @property
    def base(self) -> Source:
        return self._base

    def _same(self, other: Any) -> bool:
        return bool(self._arg == other._arg and self._base == other._base)


class AttrSource(_Step):
    """getattr(base, attr)"""

    __slots__ = ()

    def __init__(self, base: Source, attr: str) -> None:
        super().__init__(base, attr)

    @property
    def attr(self) -> str:
        return str(self._arg)

    @property
    def accessor(self) -> Accessor:
        return ("attr", self._arg)

    @property
    def name(self) -> str:
        return f"{self._base.name}.{self._arg}"

    def fetch(self, scope: Scope) -> Any:
        return getattr(self._base.fetch(scope), self._arg)

    def load(self, loader: Loader) -> None:
        loader.load_source(self._base)
        loader.load_attr(self._arg)


def get_item(container: Any, key: Any) -> Any:
    """container[key], without running a dict's `__missing__`: looking must not write (defaultdict)."""
    if isinstance(container, dict) and type(container).__getitem__ is dict.__getitem__:
        found = dict.get(container, key, _MISSING)
        if found is _MISSING:
            raise KeyError(key)
        return found
    return container[key]


_MISSING = object()

#: Where an nn.Module keeps what `module.name` finds: these dicts are left out of names.
_MODULE_DICTS = frozenset({"_parameters", "_buffers", "_modules"})


def shown_key(key: object) -> str:
    """A key in the name of a source. A tensor (an optimizer's state has them as keys) would show its numbers."""
    return f"<{type(key).__name__}>" if isinstance(key, torch.Tensor) else repr(key)


class ItemSource(_Step):
    """base[key]; the key is a constant (or an object embedded by reference)."""

    __slots__ = ()

    def __init__(self, base: Source, key: Any) -> None:
        super().__init__(base, key)

    @property
    def key(self) -> Any:
        return self._arg

    @property
    def accessor(self) -> Accessor:
        return ("item", self._arg)

    @property
    def name(self) -> str:
        key, holder = self._arg, self._base
        if isinstance(key, str) and isinstance(holder, InstanceDictSource) and key.isidentifier():
            return f"{holder.base.name}.{key}"
        if isinstance(key, str) and isinstance(holder, ItemSource) and holder.key in _MODULE_DICTS:
            if isinstance(holder.base, InstanceDictSource):
                module = holder.base.base.name
                return f"{module}.{key}" if key.isidentifier() else f"{module}[{key}]"
        return f"{holder.name}[{shown_key(key)}]"

    def fetch(self, scope: Scope) -> Any:
        return get_item(self._base.fetch(scope), self._arg)

    def load(self, loader: Loader) -> None:
        loader.load_source(self._base)
        loader.load_item(self._arg)

    def _same(self, other: Any) -> bool:
        mine, theirs = self._arg, other._arg
        if mine is not theirs and (type(mine) is not type(theirs) or isinstance(mine, torch.Tensor) or mine != theirs):
            return False
        return bool(self._base == other._base)


def is_of_module(source: Source) -> bool:
    """Whether it leads to a parameter or a buffer of a module."""
    holder = source.base
    return (isinstance(source, ItemSource) and isinstance(holder, ItemSource) and holder.key in ("_parameters", "_buffers")
            and isinstance(holder.base, InstanceDictSource))


def stored_keys(container: Any) -> Iterable[Any]:
    """The keys of a dict, the elements of a set, in the order that iteration has, without the class's own `__iter__`: guards
    run no code of the user's. An OrderedDict keeps an order of its own."""
    kind: Any
    for kind in (OrderedDict, dict, set, frozenset):
        if isinstance(container, kind):
            container = kind.__iter__(container)
            break
    keys: Iterable[Any] = iter(container)
    return keys


def stored_length(container: Any) -> int:
    """How many items it holds, without the class's own `__len__`."""
    kind: Any
    for kind in (list, tuple, dict, set, frozenset, deque):
        if isinstance(container, kind):
            return int(kind.__len__(container))
    return len(container)


def stores_key(container: Any, key: Any) -> bool:
    """Whether it holds the key, without the class's own `__contains__`."""
    kind: Any
    for kind in (dict, set, frozenset):
        if isinstance(container, kind):
            return bool(kind.__contains__(container, key))
    return key in container


def nth_key(container: Any, index: int) -> Any:
    """list(container)[index]"""
    for key in islice(stored_keys(container), index, None):
        return key
    raise IndexError(index)


class DictKeySource(_Step):
    """list(base)[index]: a key object of a dict, an element of a set."""

    __slots__ = ()

    def __init__(self, base: Source, index: int) -> None:
        super().__init__(base, index)

    @property
    def index(self) -> int:
        return int(self._arg)

    @property
    def accessor(self) -> Accessor:
        return ("key", self._arg)

    @property
    def name(self) -> str:
        return f"list({self._base.name})[{self._arg}]"

    def fetch(self, scope: Scope) -> Any:
        return nth_key(self._base.fetch(scope), self._arg)

    def load(self, loader: Loader) -> None:
        loader.begin_call(nth_key)
        loader.load_source(self._base)
        loader.load_const(self._arg)
        loader.call(2)


def nth_value(container: Any, index: int) -> Any:
    """list(container.values())[index]; where no order but the dict's own counts, without the hash of the key."""
    if isinstance(container, dict) and not isinstance(container, OrderedDict):
        for value in islice(dict.values(container), index, None):
            return value
        raise IndexError(index)
    return dict.__getitem__(container, nth_key(container, index))


class DictValueSource(_Step):
    """list(base.values())[index]: a value of a dict whose key nobody looked at."""

    __slots__ = ()

    def __init__(self, base: Source, index: int) -> None:
        super().__init__(base, index)

    @property
    def accessor(self) -> Accessor:
        return ("value", self._arg)

    @property
    def name(self) -> str:
        return f"list({self._base.name}.values())[{self._arg}]"

    def fetch(self, scope: Scope) -> Any:
        return nth_value(self._base.fetch(scope), self._arg)

    def load(self, loader: Loader) -> None:
        loader.begin_call(nth_value)
        loader.load_source(self._base)
        loader.load_const(self._arg)
        loader.call(2)


class TypeSource(_Step):
    """type(base)"""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("type", None)

    @property
    def name(self) -> str:
        return f"type({self._base.name})"

    def fetch(self, scope: Scope) -> Any:
        return type(self._base.fetch(scope))

    def load(self, loader: Loader) -> None:
        loader.begin_call(type)
        loader.load_source(self._base)
        loader.call(1)


class InstanceDictSource(_Step):
    """base.__dict__, without running the class's __getattribute__."""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("instance_dict", None)

    @property
    def name(self) -> str:
        return f"{self._base.name}.__dict__"

    def fetch(self, scope: Scope) -> Any:
        return instance_dict(self._base.fetch(scope))

    def load(self, loader: Loader) -> None:
        loader.begin_call(instance_dict)
        loader.load_source(self._base)
        loader.call(1)


#: A class's own namespace, whatever its metaclass has for `__dict__`.
namespace_of: Final[Callable[[type], Mapping[str, Any]]] = type.__dict__["__dict__"].__get__
#: A class's MRO, whatever its metaclass has for `__mro__`; while that computes it there is none.
mro_of: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
#: Its names, and its flags (Py_TPFLAGS_...), in the same way.
name_of: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__
qualname_of: Final[Callable[[type], str]] = type.__dict__["__qualname__"].__get__
flags_of: Final[Callable[[type], int]] = type.__dict__["__flags__"].__get__


def class_source(cls: type) -> ConstSource:
    """The class itself, which new code holds. Runs no code of the program's."""
    return ConstSource(cls, qualname_of(cls))


class ClassItemSource(_Step):
    """The entry of a name in the namespace of the class `base` itself."""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("class_item", self._arg)

    @property
    def name(self) -> str:
        return f"{self._base.name}.__dict__[{self._arg!r}]"

    def fetch(self, scope: Scope) -> Any:
        return namespace_of(self._base.fetch(scope))[self._arg]

    def load(self, loader: Loader) -> None:
        loader.begin_call(namespace_of)
        loader.load_source(self._base)
        loader.call(1)
        loader.load_item(self._arg)


class CellContentsSource(_Step):
    """base.cell_contents"""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("cell_contents", None)

    @property
    def name(self) -> str:
        return f"{self._base.name}.cell_contents"

    def fetch(self, scope: Scope) -> Any:
        return self._base.fetch(scope).cell_contents

    def load(self, loader: Loader) -> None:
        loader.load_source(self._base)
        loader.load_attr("cell_contents")


class CallSource(_Step):
    """base(): what a weak reference refers to."""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("call", None)

    @property
    def name(self) -> str:
        return f"{self._base.name}()"

    def fetch(self, scope: Scope) -> Any:
        return self._base.fetch(scope)()

    def load(self, loader: Loader) -> None:
        loader.begin_call(operator.call)
        loader.load_source(self._base)
        loader.call(1)


class ApplySource(_Step):
    """fn(base), for a function without side effects that is known while tracing (`bool`, `id`...). `more`: the arguments after
    the base that the function holds; names tell sources apart."""

    __slots__ = ("_label", "_more")

    def __init__(self, base: Source, fn: Callable[[Any], Any], label: str | None = None, more: str = "") -> None:
        super().__init__(base, fn)
        self._label = label or getattr(fn, "__name__", repr(fn))
        self._more = more

    @property
    def fn(self) -> Callable[[Any], Any]:
        return self._arg  # type: ignore[no-any-return]  # __init__ takes nothing else

    @property
    def accessor(self) -> Accessor:
        return ("apply", self._arg)

    @property
    def name(self) -> str:
        return f"{self._label}({', '.join(filter(None, (self._base.name, self._more)))})"

    def fetch(self, scope: Scope) -> Any:
        return self._arg(self._base.fetch(scope))

    def load(self, loader: Loader) -> None:
        loader.begin_call(self._arg)
        loader.load_source(self._base)
        loader.call(1)


# -- numbers of a tensor -------------------------------------------------------------------------------------------


def tensor_size(tensor: Any, dim: int) -> int:
    return tensor.size(dim)  # type: ignore[no-any-return]  # an int for every real tensor


def tensor_stride(tensor: Any, dim: int) -> int:
    return tensor.stride(dim)  # type: ignore[no-any-return]  # an int for every real tensor


def tensor_offset(tensor: Any) -> int:
    return tensor.storage_offset()  # type: ignore[no-any-return]  # an int for every real tensor


class _TensorNumber(_Step):
    __slots__ = ()

    def __init__(self, base: Source, dim: int) -> None:
        super().__init__(base, dim)

    @property
    def dim(self) -> int:
        return int(self._arg)


class TensorSizeSource(_TensorNumber):
    """base.size(dim)"""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("tensor_size", self._arg)

    @property
    def name(self) -> str:
        return f"{self._base.name}.size({self._arg})"

    def fetch(self, scope: Scope) -> Any:
        return tensor_size(self._base.fetch(scope), self._arg)

    def load(self, loader: Loader) -> None:
        loader.begin_call(tensor_size)
        loader.load_source(self._base)
        loader.load_const(self._arg)
        loader.call(2)


class TensorStrideSource(_TensorNumber):
    """base.stride(dim)"""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("tensor_stride", self._arg)

    @property
    def name(self) -> str:
        return f"{self._base.name}.stride({self._arg})"

    def fetch(self, scope: Scope) -> Any:
        return tensor_stride(self._base.fetch(scope), self._arg)

    def load(self, loader: Loader) -> None:
        loader.begin_call(tensor_stride)
        loader.load_source(self._base)
        loader.load_const(self._arg)
        loader.call(2)


class TensorOffsetSource(_Step):
    """base.storage_offset()"""

    __slots__ = ()

    @property
    def accessor(self) -> Accessor:
        return ("tensor_offset", None)

    @property
    def name(self) -> str:
        return f"{self._base.name}.storage_offset()"

    def fetch(self, scope: Scope) -> Any:
        return tensor_offset(self._base.fetch(scope))

    def load(self, loader: Loader) -> None:
        loader.begin_call(tensor_offset)
        loader.load_source(self._base)
        loader.call(1)
