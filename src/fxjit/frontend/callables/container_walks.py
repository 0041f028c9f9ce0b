"""Functions of C that walk containers (optree's, dm-tree's), run while tracing on a skeleton of what they are given.

They look at containers, keys and types alone, and pass leaves on. So one is called as it is: with new containers of the same
types, known keys, and in the place of every leaf an object of its type that nothing looks into. Its result is the same
containers, with the values in the place of the stand-ins. What the program gave to be called on the way (`is_leaf=`), or to be
used up (`unflatten(map(...))`), is followed as the call comes to it. Where code of Python's ran besides, as for a class that a
program signed up as a container, nothing is known: that breaks the graph. `skips/functions.py` names the functions, and what
else their results depend on, which is guarded. Objects of C in a result (a `PyTreeSpec`) never change; each run makes one of
its own, by walking the same skeleton again.
"""

from __future__ import annotations

import collections
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

import torch

from fxjit import process_state, torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.calls import Handler, Stage, resolves
from fxjit.frontend.values.constant import is_plain_constant
from fxjit.frontend.values.deques import DequeValue
from fxjit.frontend.values.iteration import IteratorValue
from fxjit.frontend.values.mapping import DictValue
from fxjit.frontend.values.sequence import ListValue, TupleValue, is_namedtuple_class, make_tuple
from fxjit.frontend.values.wrap import wraps_if
from fxjit.guards.kinds import ConstIs, IdIs
from fxjit.guards.source import ApplySource, ConstSource, Source
from fxjit.homes import module_of, name_with_module
from fxjit.skips.functions import resolve, walks

T = TypeVar("T")


@resolves(Stage.WALK)
def _walk_of(fn: Any) -> Handler | None:
    if not isinstance(fn, types.BuiltinFunctionType) or walks.get(fn) is None:
        return None
    return lambda t, args, kwargs: walk(t, fn, args, kwargs)


def walk(t: Tracer, fn: Callable[..., Any], args: Sequence[Value], kwargs: Mapping[str, Value] | None = None) -> Value:
    """`fn(*args)`, of containers."""
    skeleton = _Skeleton(t, fn)
    given = [skeleton.argument(arg) for arg in args]
    named = {name: skeleton.argument(arg) for name, arg in (kwargs or {}).items()}
    row = walks.get(fn) or next((walks.get(type(obj)) for obj in given if walks.get(type(obj)) is not None), None)
    _guard_state(t, row, [*given, *named.values()])
    recording = _Recording(fn, given, named)
    return skeleton.value(skeleton.run(recording), recording, ())


def _guard_state(t: Tracer, row: tuple[str, str] | None, given: Sequence[object]) -> None:
    """What the row's functions, asked without a name or for one of the texts, say of the state that the walk depends on."""
    for query in map(resolve, row[1].split() if row is not None else ()):
        for text in dict.fromkeys(["", *(each for each in given if isinstance(each, str))]) if query is not None else ():
            asked = _Query(query)
            t.guard(ConstIs(ApplySource(ConstSource(text, repr(text)), asked, query.__name__), asked(text)))


class _Query:
    """A query of a module of C's, given a name or none."""

    __slots__ = ("_query",)

    def __init__(self, query: Callable[..., Any]) -> None:
        self._query = query

    def __call__(self, text: str) -> Any:
        return self._query(text) if text else self._query()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Query) and self._query is other._query

    def __hash__(self) -> int:
        return hash(self._query)


# -- the skeleton --------------------------------------------------------------------------------------------------


class _Skeleton:
    """The containers of a call with stand-ins for their leaves, and which value each object stands for."""

    def __init__(self, t: Tracer, fn: Callable[..., Any]) -> None:
        self.t = t
        self.fn = fn
        self.values: dict[int, Value] = {}
        #: Keeps the objects of `values` alive: they are told apart by their numbers.
        self.kept: list[object] = []
        self._made: dict[int, object] = {}
        self._under_way: set[int] = set()
        #: What a call of the program's code on the way raised, and how to run that without being watched.
        self.raised: Exception | None = None
        self.watch = _Watch()

    def refuse(self, what: str) -> NoReturn:
        self.t.break_("call-c-extension", function=f"{name_with_module(self.fn)} ({what})", module=module_of(self.fn))

    def argument(self, value: Value) -> object:
        """An argument of the call: what it may call, or take the items of, is followed where it does."""
        value = value.realize()
        if isinstance(value, IteratorValue) or value.pytype() is types.GeneratorType:
            return self._note(_Pulled(self, value), value)
        if not value.is_constant() and type(value) is not WalkedValue and issubclass(value.pytype(), _FUNCTIONS):
            return self._note(_Called(self, value), value)
        return self.stand_in(value)

    def stand_in(self, value: Value) -> object:
        """The object that stands for a value."""
        value = value.realize()
        known = self._made.get(id(value))
        if known is None:
            if id(value) in self._under_way:
                self.refuse("a container that contains itself")
            self._under_way.add(id(value))
            known = self._made[id(value)] = self._note(self._make(value), value)
        return known

    def _note(self, made: T, value: Value) -> T:
        self.values[id(made)] = value
        self.kept += (made, value)
        return made

    def _make(self, value: Value) -> object:
        cls = value.pytype()
        if isinstance(value, WalkedValue):
            return value.obj
        if isinstance(value, ListValue) and cls is list:
            return [self.stand_in(item) for item in value.items]
        if isinstance(value, TupleValue) and (cls is tuple or is_namedtuple_class(cls)):
            if self.t.effects.made_classes.maker_of(cls) is not None:
                self.refuse(f"an object of {cls.__name__}, which is another class in each run")
            return make_tuple(cls, tuple([self.stand_in(item) for item in value.items]))
        if isinstance(value, DequeValue) and cls is collections.deque:
            return collections.deque([self.stand_in(item) for item in value.items], value.maxlen)
        if isinstance(value, DictValue) and cls in _DICTS:
            return self._dict(value, cls)
        if value.is_constant():
            return value.as_constant()
        made = _stand_in(cls)
        if made is None:
            self.refuse(f"an object of {cls.__name__} in a container")
        return made

    def _dict(self, value: DictValue, cls: type) -> object:
        keys = [key.realize() for key, _ in value.items.values()]
        if not all(key.is_constant() for key in keys):
            self.refuse("a dict with keys that are no constants")
        made: Any = cls()
        if value.factory is not None:
            made.default_factory = self.stand_in(value.factory)
        for key, (_, item) in zip(keys, list(value.items.values()), strict=True):
            made[key.as_constant()] = self.stand_in(item)
        return made

    def run(self, recording: _Recording) -> object:
        """What the call gives."""
        try:
            with self.watch:
                result = recording.fn(*recording.args, **recording.kwargs)
        except Exception:  # the call's own, which may name what was put in a leaf's place; or what the program's code raised
            if self.raised is None:
                self.refuse("it raised an exception")
            raise self.raised from None
        if self.raised is not None:
            raise self.raised
        if self.watch.ran:
            self.refuse(f"it ran {self.watch.ran}")
        return result

    def follow(self, step: Callable[[], T]) -> T:
        """Does what the call comes to in the program's code."""
        with self.watch.paused():
            try:
                return step()
            except Exception as error:  # passes through functions of C
                self.raised = error
                raise

    def value(self, obj: object, recording: _Recording, path: tuple[int | str, ...]) -> Value:
        """The value of what the call gave, which is found there along `path`."""
        known = self.values.get(id(obj))
        if known is not None:
            return known
        cls = type(obj)
        if is_plain_constant(obj) or isinstance(obj, type):
            return self.t.make(obj)
        if walks.get(cls) is not None:
            return WalkedValue(self.t, obj, None, recording, path)
        made: Value
        if cls is list:
            made = ListValue(self._items(obj, recording, path))
        elif cls is tuple or is_namedtuple_class(cls):
            made = TupleValue(self._items(obj, recording, path), cls=cls)
        elif cls is dict or cls is collections.OrderedDict:
            pairs = list(obj.items())  # type: ignore[attr-defined]  # it is a dict
            items = self._items([item for _, item in pairs], recording, (*path, "values"))
            made = DictValue(self.t, zip((self.t.make(key) for key, _ in pairs), items, strict=True), cls)
        else:
            self.refuse(f"an object of {cls.__name__} in the result")
        self._note(obj, made)
        return made

    def _items(self, items: Any, recording: _Recording, path: tuple[int | str, ...]) -> list[Value]:
        return [self.value(item, recording, (*path, index)) for index, item in enumerate(items)]


_DICTS: Final = (dict, collections.OrderedDict, collections.defaultdict)
_FUNCTIONS: Final = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_EMPTY: Final = torch.empty(0, device="cpu")
#: A number that is not kept once and for all, as small ones are.
_NEW_NUMBER: Final = "1" + "0" * 40


def _stand_in(cls: type) -> object:
    """A new object of the class, with nothing in it; None for what holds others, or can only be made by code of its own."""
    if issubclass(cls, (list, tuple, dict, collections.deque)) or hasattr(cls, "__del__"):
        return None
    if issubclass(cls, torch.Tensor):
        make = torch_private.get_or("torch.Tensor._make_subclass", None)
        return None if make is None else make(cls, _EMPTY)
    if cls is int or cls is float:  # numbers that vary
        return cls(_NEW_NUMBER)
    if cls is types.FunctionType:
        return lambda: None
    try:
        return object.__new__(cls)
    except TypeError:
        return None


# -- the program's code on the way ------------------------------------------------------------------------------------


class _Watch:
    """Tells whether a call ran code of Python's, but for the abstract classes' and for named tuples' constructors."""

    def __init__(self) -> None:
        self.ran = ""

    def __enter__(self) -> None:
        if sys.getprofile() is not None:
            self.ran = "under a profiler, which cannot be told from code that it calls"
            return
        sys.setprofile(self._seen)

    def __exit__(self, *exc: object) -> None:
        if sys.getprofile() == self._seen:
            sys.setprofile(None)

    def paused(self) -> _Pause:
        return _Pause(self)

    def _seen(self, frame: types.FrameType, event: str, arg: object) -> None:
        namespace = frame.f_globals
        if event == "call" and namespace.get("__name__") not in _HARMLESS and "_tuple_new" not in namespace:
            self.ran = self.ran or f"`{frame.f_code.co_qualname}`"


_HARMLESS: Final = ("abc", "_py_abc", "collections.abc", "_collections_abc", __name__)


class _Pause:
    """A while in which code of Python's is not the call's."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._watch.__exit__()

    def __exit__(self, *exc: object) -> None:
        if not self._watch.ran:
            self._watch.__enter__()


class _Called:
    """A function of the program's that the call is given, and calls: what it gives has to be known."""

    def __init__(self, skeleton: _Skeleton, fn: Value) -> None:
        self._skeleton, self._fn = skeleton, fn
        self.answers: list[object] = []

    def __call__(self, *args: object) -> object:
        answer = self._skeleton.follow(lambda: self._answer(args))
        self.answers.append(answer)
        return answer

    def _answer(self, args: tuple[object, ...]) -> object:
        skeleton = self._skeleton
        given = [skeleton.value(arg, _NOWHERE, ()) for arg in args]
        found = skeleton.t.call(self._fn, given).realize()
        if found.pytype() is bool and not found.is_constant():
            return protocol.truth(skeleton.t, found)
        return skeleton.stand_in(found)


class _Pulled:
    """An iterator of the program's that the call is given, and takes items from."""

    def __init__(self, skeleton: _Skeleton, iterator: Value) -> None:
        self._skeleton, self._iterator = skeleton, iterator
        self.answers: list[object] = []

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        skeleton = self._skeleton
        answers = skeleton.follow(self._next)
        if not answers:
            raise StopIteration
        self.answers += answers
        return answers[0]

    def _next(self) -> list[object]:
        item = protocol.next_(self._skeleton.t, self._iterator)
        return [] if item is None else [self._skeleton.stand_in(item)]


class _Answers:
    """What an argument gave that the call called, or took items from."""

    def __init__(self, answers: Sequence[object], pulled: bool) -> None:
        self.answers, self.pulled = tuple(answers), pulled

    def replayed(self) -> object:
        answers = iter(self.answers)
        return answers if self.pulled else lambda *args: next(answers)


class _Recording:
    """A call on a skeleton, which can be made again."""

    def __init__(self, fn: Callable[..., Any], args: Iterable[object], kwargs: Mapping[str, object]) -> None:
        self.fn, self.args, self.kwargs = fn, list(args), dict(kwargs)

    def finished(self) -> _Recording:
        """The same, with what the program's code gave on the way in the place of that code."""
        return _Recording(self.fn, map(_finished, self.args), {name: _finished(arg) for name, arg in self.kwargs.items()})


def _finished(arg: object) -> object:
    return _Answers(arg.answers, isinstance(arg, _Pulled)) if isinstance(arg, (_Called, _Pulled)) else arg


def repeat_walk(recording: _Recording, path: tuple[int | str, ...]) -> Any:
    """Run-time helper of new bytecode: what the same call gives along the path, made anew."""
    args = [arg.replayed() if isinstance(arg, _Answers) else arg for arg in recording.args]
    kwargs = {name: arg.replayed() if isinstance(arg, _Answers) else arg for name, arg in recording.kwargs.items()}
    found = recording.fn(*args, **kwargs)
    for step in path:
        found = list(found.values()) if step == "values" else found[step]
    return found


_NOWHERE: Final = _Recording(len, (), {})


# -- objects of C in a result -----------------------------------------------------------------------------------------


class WalkedValue(Value):
    """An object that a walk gave, which never changes: its attributes, methods and operators are walks, too."""

    def __init__(self, t: Tracer, obj: object, source: Source | None, recording: _Recording = _NOWHERE,
                 path: tuple[int | str, ...] = ()) -> None:
        super().__init__(source)
        self.obj = obj
        self._recording, self._path = recording, path

    def pytype(self) -> type:
        return type(self.obj)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        raw = protocol.type_lookup(type(self.obj), name)
        fn = _of_c(raw)
        if fn is not None:
            return _WalkingMethod(self, name, fn)
        if isinstance(raw, property) and _of_c(raw.fget) is not None:
            return self._apply(t, operator.attrgetter(name))
        return super().tp_getattro(t, name)

    def _apply(self, t: Tracer, fn: Callable[..., Any], *more: Value) -> Value:
        return walk(t, fn, [self, *more])

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if not isinstance(other, WalkedValue):
            return super().tp_richcompare(t, op, other)
        return self._apply(t, _COMPARISONS[op], other)

    def tp_hash(self, t: Tracer) -> Value:
        process_state.bind("a hash")
        return self._apply(t, hash)

    def tp_repr(self, t: Tracer) -> Value:
        return self._apply(t, repr)

    def sq_length(self, t: Tracer) -> Value:
        return self._apply(t, len)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(repeat_walk, self._recording.finished(), self._path)


_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}


def _of_c(method: object) -> Any:
    """The function of C that stands in a class as a method (pybind11's are instancemethods)."""
    fn = getattr(method, "__func__", method)
    return fn if isinstance(fn, types.BuiltinFunctionType) else None


class _WalkingMethod(Value):
    """A method of such an object, bound."""

    def __init__(self, receiver: WalkedValue, name: str, fn: Callable[..., Any]) -> None:
        super().__init__()
        self._receiver, self._name, self._fn = receiver, name, fn

    def pytype(self) -> type:
        return types.MethodType

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return walk(t, self._fn, [self._receiver, *args], kwargs)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push(self._receiver)
        cg.asm.load_attr(self._name)


@wraps_if(lambda obj: walks.get(type(obj)) is not None, order=80)
def _wrap_walked(t: Tracer, obj: object, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return WalkedValue(t, obj, source)
