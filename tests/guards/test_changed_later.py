"""Programs that change something after their function was compiled: one of each kind of thing that a function can lead to.
The next call gives what eager gives then."""

from __future__ import annotations

import abc
import collections
import contextvars
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxjit

X = torch.linspace(-1, 1, 12).reshape(3, 4)

#: A function of a tensor, and what changes its world.
World = tuple[Callable[[torch.Tensor], Any], Callable[[], object]]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


def _scaled(x: torch.Tensor, by: int = 2, *, more: int = 1) -> torch.Tensor:
    return x * by + more


def _copy_of(fn: Any) -> Any:
    made = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__kwdefaults__ = dict(fn.__kwdefaults__ or {})
    return made


def defaults_of_a_function() -> World:
    fn = _copy_of(_scaled)
    return lambda x: fn(x), lambda: setattr(fn, "__defaults__", (5,))


def a_keyword_default_in_its_dict() -> World:
    fn = _copy_of(_scaled)
    return lambda x: fn(x), lambda: fn.__kwdefaults__.__setitem__("more", 7)


def code_of_a_function() -> World:
    fn = _copy_of(_scaled)
    return lambda x: fn(x), lambda: setattr(fn, "__code__", (lambda x, by, *, more: x - by).__code__)


def code_behind_a_property() -> World:
    kind = type("Kind", (), {"value": property(lambda self: 2)})
    thing = kind()
    return lambda x: x * thing.value, lambda: setattr(kind.value.fget, "__code__", (lambda self: 5).__code__)


def a_list_that_is_a_default() -> World:
    def program(x: torch.Tensor, factors: list[int] = [2]) -> torch.Tensor:  # noqa: B006
        return x * factors[0]

    return program, lambda: program.__defaults__[0].__setitem__(0, 5)  # type: ignore[index]


def what_a_wrapper_wraps() -> World:
    @functools.wraps(_scaled)
    def wrapper(x: torch.Tensor) -> Any:
        return wrapper.__wrapped__(x)  # type: ignore[attr-defined]

    return lambda x: wrapper(x), lambda: setattr(wrapper, "__wrapped__", lambda x: x * 9)


def a_keyword_of_a_partial() -> World:
    partial = functools.partial(_scaled, by=2)
    return lambda x: partial(x), lambda: partial.keywords.__setitem__("by", 5)


def a_function_registered_for_a_type() -> World:
    @functools.singledispatch
    def by_type(key: object) -> int:
        return 2

    return lambda x: x * by_type(1), lambda: by_type.register(int, lambda key: 5)


def a_cached_property_forgotten() -> World:
    class Kind:
        source = 2

        @functools.cached_property
        def value(self) -> int:
            return self.source

    thing = Kind()
    assert thing.value == 2

    def change() -> None:
        thing.source = 5
        del thing.__dict__["value"]

    return lambda x: x * thing.value, change


def a_cache_of_results_cleared() -> World:
    state = [2]

    @functools.lru_cache
    def read(key: int) -> int:
        return state[0]

    def change() -> None:
        state[0] = 5
        read.cache_clear()

    return lambda x: x * read(1), change


def a_cell_of_the_program_itself() -> World:
    factor = 2

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return program, lambda: setattr(program.__closure__[0], "cell_contents", 5)  # type: ignore[index]


def a_map_behind_a_chain_of_maps() -> World:
    chained = collections.ChainMap({"a": 1}, {"b": 2})
    return lambda x: x * chained["b"], lambda: chained.maps[0].__setitem__("b", 7)


def the_dict_behind_a_proxy() -> World:
    inner = {"a": 2}
    proxy = types.MappingProxyType(inner)
    return lambda x: x * proxy["a"], lambda: inner.__setitem__("a", 5)


def the_order_in_a_deque() -> World:
    queue = collections.deque([1, 2])
    return lambda x: x * queue[0], lambda: queue.rotate(1)


def what_a_dict_makes_for_missing_keys() -> World:
    made = collections.defaultdict(lambda: 2)

    def program(x: torch.Tensor) -> torch.Tensor:
        result = x * made["q"]
        del made["q"]
        return result

    return program, lambda: setattr(made, "default_factory", lambda: 5)


def a_variable_of_the_context() -> World:
    variable = contextvars.ContextVar("variable", default=2)
    return lambda x: x * variable.get(), lambda: variable.set(5)


def what_a_weak_reference_refers_to() -> World:
    class Kind:
        pass

    held = [Kind()]
    reference = weakref.ref(held[0])
    return lambda x: x * (2 if reference() is not None else 3), held.clear


def what_a_module_makes_of_missing_names() -> World:
    module = types.ModuleType("made")
    module.__getattr__ = lambda name: 2  # type: ignore[method-assign]
    return lambda x: x * module.anything, lambda: setattr(module, "__getattr__", lambda name: 5)


def the_positions_that_a_pattern_matches() -> World:
    class Kind:
        __match_args__ = ("a", "b")

        def __init__(self) -> None:
            self.a, self.b = 2, 5

    thing = Kind()

    def program(x: torch.Tensor) -> torch.Tensor:
        match thing:
            case Kind(first):
                return x * first
        return x

    return program, lambda: setattr(Kind, "__match_args__", ("b", "a"))


def defaults_of_a_named_tuple() -> World:
    pair = collections.namedtuple("pair", "a b", defaults=[2])
    return lambda x: x * pair(1).b, lambda: setattr(pair.__new__, "__defaults__", (5,))


def an_abstract_class_gets_a_relative() -> World:
    first, second = abc.ABCMeta("First", (), {}), type("Second", (), {})
    return lambda x: x * (2 if isinstance(second(), first) else 3), lambda: first.register(second)


def arguments_of_an_exception() -> World:
    error = ValueError(2)
    return lambda x: x * error.args[0], lambda: setattr(error, "args", (5,))


def the_length_of_a_subclass_of_str() -> World:
    text = type("Text", (str,), {})("ab")
    return lambda x: x * len(text), lambda: setattr(type(text), "__len__", lambda self: 9)


def the_sum_of_a_subclass_of_int() -> World:
    number = type("Number", (int,), {})(3)
    return lambda x: x * (number + 1), lambda: setattr(type(number), "__add__", lambda self, other: 50)


def a_subclass_of_dict_finds_what_it_lacks() -> World:
    known = type("Known", (dict,), {})(a=2)

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * known["q"]
        except KeyError:
            return x * 3

    return program, lambda: setattr(type(known), "__missing__", lambda self, key: 50)


def what_a_subclass_of_dict_contains() -> World:
    known = type("Known", (dict,), {})(a=2)
    return lambda x: x * (2 if "a" in known else 3), lambda: setattr(type(known), "__contains__", lambda self, key: False)


def how_an_object_is_formatted() -> World:
    thing = type("Kind", (), {"__str__": lambda self: "ab"})()
    return lambda x: x * len(f"{thing}"), lambda: setattr(type(thing), "__format__", lambda self, how: "xxxx")


def an_object_as_an_index() -> World:
    thing = type("Kind", (), {"__index__": lambda self: 1})()
    return lambda x: x * [2, 3][thing], lambda: setattr(type(thing), "__index__", lambda self: 0)


def what_a_block_is_entered_with() -> World:
    thing = type("Kind", (), {"__enter__": lambda self: 2, "__exit__": lambda self, *error: None})()

    def program(x: torch.Tensor) -> torch.Tensor:
        with thing as factor:
            return x * factor

    return program, lambda: setattr(type(thing), "__enter__", lambda self: 5)


def the_class_of_a_module() -> World:
    net = nn.ReLU()
    return lambda x: net(x), lambda: setattr(net, "__class__", nn.Tanh)


def a_buffer_of_a_module() -> World:
    net = nn.BatchNorm1d(4).eval()
    return lambda x: net(x), lambda: net.register_buffer("running_mean", torch.full((4,), 3.0))


def a_gradient_that_there_was_not() -> World:
    weight = torch.ones(4, requires_grad=True)
    return (lambda x: x * 2 if weight.grad is None else x * weight.grad,
            lambda: setattr(weight, "grad", torch.full((4,), 9.0)))


def _element(eq: bool) -> Any:
    """An object whose hash is its `key`."""
    methods: dict[str, Any] = {"__hash__": lambda self: self.key}
    if eq:
        methods["__eq__"] = lambda self, other: self.key == other.key
    made = type("Element", (), methods)()
    made.key = 1
    return made


def the_hash_of_an_element_of_a_set() -> World:
    element = _element(eq=True)
    elements = {element}
    return lambda x: x * (2 if element in elements else 3), lambda: setattr(element, "key", 2)


def the_hash_of_an_element_that_compares_by_identity() -> World:
    element = _element(eq=False)
    elements = frozenset([element])
    return lambda x: x * (2 if element in elements else 3), lambda: setattr(element, "key", 2)


def the_hash_of_an_element_in_a_tuple() -> World:
    element = _element(eq=False)
    elements = {(element, 5)}
    return lambda x: x * (2 if (element, 5) in elements else 3), lambda: setattr(element, "key", 2)


def bases_of_an_exception_that_is_caught() -> World:
    base, other = type("Base", (Exception,), {}), type("Other", (Exception,), {})
    kind = type("Kind", (base,), {})

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            raise kind
        except base:
            return x * 2
        except Exception:
            return x * 3

    return program, lambda: setattr(kind, "__bases__", (other,))


WORLDS: dict[str, Callable[[], World]] = {name: made for name, made in vars().copy().items()
                                          if isinstance(made, types.FunctionType) and made.__module__ == __name__
                                          and made.__annotations__.get("return") == "World"}


@pytest.mark.parametrize("what", WORLDS)
def test_the_next_call_sees_it(what: str) -> None:
    program, change = WORLDS[what]()
    compiled = fxjit.compile(program, backend="eager", dynamic=False)
    before = program(X)
    for _ in range(3):  # the guards settle
        torch.testing.assert_close(compiled(X), before)
    change()
    after = program(X)
    assert not torch.equal(after, before)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), after)
