"""Random generators of Python: `random.Random` objects and the functions of the module `random`.

Torch's random operators are nodes like any other (their order is kept). What a Python generator gives is known only at run
time: each call whose type is known is a step that new code takes before its graph runs (frontend/rng_steps.py); any other
breaks the graph.
"""

from __future__ import annotations

import _random
import copy
import operator
import random
import types
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Final, NoReturn

import torch

from fxjit.frontend.rng_steps import StepResult
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.calls import Handler, handles, pass_on, resolve
from fxjit.frontend.values.computed_numbers import found_at
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.descriptors import look_up
from fxjit.frontend.values.random_bounds import Bounds, between, of_method
from fxjit.frontend.values.random_values import RANDOM_TYPES, RandomValue, bounds_of, random_value, step
from fxjit.frontend.values.sequence import ListValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import InstanceHasAttr, TypeIs
from fxjit.guards.source import ConstSource, RandomSource, Source


class RngValue(Value):
    """A generator: it can be passed on; using it or reading its state breaks, but for what a subclass knows of."""

    def __init__(self, obj: object, source: Source) -> None:
        super().__init__(source)
        self.obj = obj

    def pytype(self) -> type:
        return type(self.obj)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(type(self.obj))
        t.break_("call-rng-state", function=f"{type(self.obj).__name__}.{name}")

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        t.raise_(TypeError, f"'{type(self.obj).__name__}' object is not callable")


class RngMethodValue(Value):
    """`generator.name`, a bound method that has a handler."""

    def __init__(self, generator: RngValue, name: str) -> None:
        super().__init__(None)
        self.generator = generator
        self.name = name

    def pytype(self) -> type:
        return type(getattr(self.generator.obj, self.name))

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        handler = resolve(getattr(self.generator.pytype(), self.name))
        assert handler is not None, f"{self.name} is one of the methods that have one"
        return handler(t, [self.generator, *args], dict(kwargs))

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push(self.generator)
        cg.asm.load_attr(self.name)


def _is_patched() -> bool:
    """Whether a program (a test with mocks) has replaced the methods that give random numbers."""
    if any(getattr(random.Random, name) is not getattr(_random.Random, name) for name in ("random", "getrandbits")):
        return True
    methods = (getattr(random.Random, name, None) for name in _METHODS)
    return any(method is not None and getattr(method, "__module__", "random") not in ("random", None) for method in methods)


class PythonRngValue(RngValue):
    """A `random.Random`, found outside or made by a step."""

    def __init__(self, obj: random.Random, source: Source) -> None:
        super().__init__(obj, source)
        self.own: Mapping[str, object] = vars(obj)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name not in _METHODS or name in self.own:
            return super().tp_getattro(t, name)
        assert self.source is not None
        if not isinstance(self.source, (RandomSource, ConstSource)):
            t.guard(InstanceHasAttr(self.source, name, False))
        method = getattr(random.Random, name)
        if isinstance(method, types.FunctionType):
            return t.call(t.make(types.MethodType), [t.make(method), self], None)
        return protocol.make_builtin_method(t, self, name)


@wraps(random.Random)
def _wrap_random(t: Tracer, obj: random.Random, source: Source) -> Value:
    t.guard(TypeIs(source, random.Random))
    return PythonRngValue(obj, source)


def _copy(generator: random.Random) -> random.Random:
    made = random.Random()
    made.setstate(generator.getstate())
    return made


def generator_argument(t: Tracer, value: RngValue, copy: Callable[[Any], Any] = _copy) -> object:
    """The generator as an argument of a step; examples come from its copy."""
    source = value.source
    assert source is not None
    if isinstance(value, PythonRngValue):
        if _is_patched():
            refuse(t, "random.Random")
        for name in ("random", "getrandbits"):  # which all its methods use
            look_up(t, random.Random, name)
    if isinstance(source, RandomSource):
        return StepResult(source.at)
    t.rng_steps.found(value.obj, source, copy)
    return source


# -- the methods ---------------------------------------------------------------------------------------------------

#: Methods that give a number, with whether one may raise for some random numbers on the way.
_NUMBERS: Final = {
    "random": False, "uniform": False, "triangular": False, "gauss": False, "normalvariate": False, "randint": False,
    "randrange": False, "getrandbits": False, "betavariate": True, "expovariate": True, "gammavariate": True,
    "lognormvariate": True, "vonmisesvariate": True, "paretovariate": True, "weibullvariate": True, "binomialvariate": True,
}
_MOST_ITEMS: Final = 1000


def refuse(t: Tracer, name: str) -> NoReturn:
    """The call is left to the running program."""
    t.break_("call-rng-state", function=name)


def _known(t: Tracer, name: str, value: Value) -> object:
    """An argument that a step takes: a constant, a random value of an earlier step, or where numbers that vary are found."""
    if isinstance(value, RandomValue):
        return StepResult(value.at)
    try:
        return concrete(value)
    except NotConcrete:
        found = found_at(value.realize())
    if found is None:
        refuse(t, name)
    source, example = found
    t.rng_steps.found(example, source, copy.copy)
    return source


def known_arguments(t: Tracer, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> tuple[list[object], Any]:
    """The arguments of such a call, as those of a step."""
    return [_known(t, name, arg) for arg in args], {key: _known(t, name, arg) for key, arg in kwargs.items()}


def seed_arguments(t: Tracer, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> tuple[list[object], Any]:
    """The same of a call whose result's kind does not depend on them: an integer that varies from call to call is found when
    the step runs."""
    return [_seed_of(t, name, arg) for arg in args], {key: _seed_of(t, name, arg) for key, arg in kwargs.items()}


def _seed_of(t: Tracer, name: str, value: Value) -> object:
    value = value.realize()
    if not isinstance(value, SymValue) or value.source is None or not isinstance(value.sym, torch.SymInt):
        return _known(t, name, value)
    t.rng_steps.found(value.sym.node.hint, value.source, int)
    return value.source


def _number(t: Tracer, generator: PythonRngValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given, named = known_arguments(t, f"random.{name}", args, kwargs)
    may_fail = _NUMBERS[name] or any(isinstance(arg, (StepResult, Source)) for arg in (*given, *named.values()))
    numbers = all(type(t.rng_steps.example_of(arg)) in (int, float, NoneType) for arg in (*given, *named.values()))
    if not numbers or type(generator) is not PythonRngValue:
        refuse(t, f"random.{name}")
    fn = getattr(random.Random, name)
    bounds = None if named else of_method(name, list(map(bounds_of, args)))
    return random_value(t, step(t, fn, [generator_argument(t, generator), *given], named, may_fail=may_fail), bounds)


def _seed(t: Tracer, generator: PythonRngValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given, named = seed_arguments(t, f"random.{name}", args, kwargs)
    step(t, random.Random.seed, [generator_argument(t, generator), *given], named, may_fail=False)
    return t.make(None)


def _getstate(t: Tracer, generator: PythonRngValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    at = step(t, random.Random.getstate, [generator_argument(t, generator)], {}, may_fail=False)
    state = t.rng_steps.example(at)
    return state_value(state, at)


def state_value(state: object, at: int) -> UntraceableValue:
    """A generator's state, which a step gives: it can be kept, and given back to the generator."""
    return UntraceableValue(state, RandomSource(at), "data-random", value="state of a random number generator")


def _setstate(t: Tracer, generator: PythonRngValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    state = known_state(t, f"random.{name}", args)
    step(t, random.Random.setstate, [generator_argument(t, generator), state], {}, may_fail=False)
    return t.make(None)


def known_state(t: Tracer, name: str, args: Sequence[Value]) -> StepResult:
    """The state that a generator is to have, which a step gave."""
    source = args[0].source if len(args) == 1 and isinstance(args[0], UntraceableValue) else None
    if not isinstance(source, RandomSource):
        refuse(t, name)
    return StepResult(source.at)


def _items(t: Tracer, name: str, population: Value) -> Any:
    """The population to choose from: values of one type that steps can give."""
    try:
        known = concrete(population)
        items = list(known)
    except (NotConcrete, TypeError):
        refuse(t, f"random.{name}")
    if not items or len({type(item) for item in items}) > 1 or type(items[0]) not in RANDOM_TYPES:
        refuse(t, f"random.{name}")
    return known


def _list_of(t: Tracer, at: int, length: int, name: str, bounds: Bounds | None) -> ListValue:
    """The list that a step gives, as a list of what further steps take from it, each within `bounds`."""
    if length > _MOST_ITEMS:
        refuse(t, f"random.{name}")
    return ListValue([random_value(t, step(t, operator.getitem, [StepResult(at), index], {}, may_fail=False), bounds)
                      for index in range(length)])


def _choice(t: Tracer, generator: PythonRngValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        refuse(t, f"random.{name}")
    items = _items(t, name, args[0])
    at = step(t, random.Random.choice, [generator_argument(t, generator), items], {}, may_fail=False)
    return random_value(t, at, between(list(items)))


def _several(t: Tracer, generator: PythonRngValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`choices` and `sample`."""
    if not args:
        refuse(t, f"random.{name}")
    items = _items(t, name, args[0])
    given, named = known_arguments(t, f"random.{name}", args[1:], kwargs)
    if any(isinstance(arg, (StepResult, Source)) for arg in (*given, *named.values())):  # how many there are, would vary
        refuse(t, f"random.{name}")
    at = step(t, getattr(random.Random, name), [generator_argument(t, generator), items, *given], named, may_fail=False)
    return _list_of(t, at, len(t.rng_steps.example(at)), name, between(list(items)))


def shuffled(generator: Any, items: list[Any]) -> list[Any]:
    """A step: the items in the order that `generator.shuffle` brings them in."""
    made = list(items)
    generator.shuffle(made)
    return made


def _shuffle(t: Tracer, generator: PythonRngValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        refuse(t, f"random.{name}")
    return shuffle_list(t, generator_argument(t, generator), name, args[0])


def shuffle_list(t: Tracer, generator: object, name: str, given: Value) -> Value:
    """`generator.shuffle(given)`, of a list of numbers or texts."""
    if given.pytype() is not list:
        refuse(t, f"random.{name}")
    items = _items(t, name, given)
    at = step(t, shuffled, [generator, items], {}, may_fail=False)
    protocol.setitem(t, given, t.call(t.make(slice), [t.make(None)], None), _list_of(t, at, len(items), name, between(items)))
    return t.make(None)


_Method = Callable[[Tracer, PythonRngValue, str, list[Value], dict[str, Value]], Value]
_METHODS: Final[dict[str, _Method]] = {
    **dict.fromkeys(_NUMBERS, _number), "seed": _seed, "choice": _choice, "choices": _several, "sample": _several,
    "shuffle": _shuffle, "getstate": _getstate, "setstate": _setstate,
}


def _method(name: str, sample: _Method) -> None:
    fn = getattr(random.Random, name)

    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        generator = args[0] if args else None
        if isinstance(generator, PythonRngValue):
            return sample(t, generator, name, args[1:], kwargs)
        if isinstance(fn, types.FunctionType):  # of a subclass: its own methods are used
            return pass_on(t, fn, args, kwargs)
        refuse(t, f"random.{name}")

    of_module = getattr(random, name)
    if isinstance(of_module, types.BuiltinFunctionType):
        handles(of_module)(_of_module(call, of_module))


def _of_module(method: Handler, fn: Any) -> Handler:
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return method(t, [t.make(fn.__self__), *args], kwargs)
    return call


for _name, _sample in _METHODS.items():
    if hasattr(random.Random, _name):  # binomialvariate: since 3.12
        _method(_name, _sample)


@handles(random.Random)
def _make_random(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given, named = seed_arguments(t, "random.Random", args, kwargs)
    at = step(t, random.Random, given, named, may_fail=False)
    return PythonRngValue(t.rng_steps.example(at), RandomSource(at))
