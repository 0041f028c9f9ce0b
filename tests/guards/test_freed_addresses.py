"""A new object at the address of a freed one: the guard fast path goes by addresses, and must not take the one for the other.

Each kind of value lies in each kind of place below a module, is replaced until its successor has its address, and the
compiled module must see the successor.
"""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxjit
from fxjit import _C

CALLS = 14  # with which the fast path is warm
Pair = namedtuple("Pair", "first second")


@pytest.fixture(autouse=True)
def compared() -> Iterator[None]:
    """Each check by the fast path is compared with a full one."""
    fxjit.reset()
    before = _C.verify_fast_path(True)
    yield
    _C.verify_fast_path(before)


class Slotted:
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Plain:
    def __init__(self, number: int) -> None:
        self.number = number


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _function(number: int) -> Callable[[], int]:
    def made(n=number) -> int:
        return n

    return made


#: Makes a value of a number, and reads the number back in traced code.
KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "int": (lambda n: 10**12 + n, lambda v: v % 1000),
    "float": (lambda n: n + 0.5, lambda v: v),
    "complex": (lambda n: complex(n, 1), lambda v: v.real),
    "str": (lambda n: "x" * n + "yz", lambda v: len(v)),
    "str, of equal length": (lambda n: f"text {n}", lambda v: v == "text 3"),
    "bytes": (lambda n: bytes([n, n]), lambda v: v[0]),
    "range": (lambda n: range(n), lambda v: len(v)),
    "tuple": (lambda n: tuple([n, n]), lambda v: v[1]),
    "tuple in a tuple": (lambda n: (0, tuple([n, n])), lambda v: v[1][0]),
    "tuple of another length": (lambda n: tuple([1] * n), lambda v: len(v)),
    "tuple of lists": (lambda n: ([n], [n]), lambda v: v[1][0]),
    "tuple, asked whether": (lambda n: tuple([n, [0]]), lambda v: 3 in v),
    "named tuple": (lambda n: Pair(n, n), lambda v: v.second),
    "size": (lambda n: torch.Size([n, n]), lambda v: v[1]),
    "device": (lambda n: torch.device("cpu" if n % 2 else "meta"), lambda v: v.type == "cpu"),
    "list": (lambda n: [n, n], lambda v: v[0]),
    "list of floats": (lambda n: [n + 0.5], lambda v: v[0]),
    "dict": (lambda n: {"n": n}, lambda v: v["n"]),
    "dict of floats": (lambda n: {"n": n + 0.5}, lambda v: v["n"]),
    "ordered dict": (lambda n: OrderedDict(n=n + 0.5), lambda v: v["n"]),
    "set": (lambda n: {n}, lambda v: 3 in v),
    "frozenset": (lambda n: frozenset([n]), lambda v: 3 in v),
    "slice": (lambda n: slice(n), lambda v: v.stop),
    "function": (_function, lambda v: v()),
    "instance": (Plain, lambda v: v.number),
    "instance with slots": (Slotted, lambda v: v.number),
    "module": (Layer, lambda v: v.number),
    "class": (lambda n: type("Made", (), {"number": n}), lambda v: v.number),
    "tensor": (lambda n: torch.ones(n), lambda v: v.shape[0]),
    "tensor of another type": (lambda n: torch.ones(2).to(torch.int8 if n % 2 else torch.int16), lambda v: v.element_size()),
    "parameter": (lambda n: nn.Parameter(torch.ones(2), requires_grad=n % 2 == 0), lambda v: v.requires_grad),
}


class Place:
    """Where in the module the value lies."""

    def __init__(self, put: Callable[[Any, Any], None], get: Callable[[Any], Any]) -> None:
        self.put, self.get = put, get


def _put_restless(module: nn.Module, value: Any) -> None:
    module.__dict__["value"] = value


PLACES: dict[str, Place] = {
    "an item of a list": Place(lambda m, v: m.items.__setitem__(0, v), lambda m: m.items[0]),
    "an item of a list in a list": Place(lambda m, v: m.lists[0].__setitem__(0, v), lambda m: m.lists[0][0]),
    "in a list that is replaced": Place(lambda m, v: m.lists.__setitem__(0, [v]), lambda m: m.lists[0][0]),
    "in a tuple in a list": Place(lambda m, v: m.items.__setitem__(1, (v, [])), lambda m: m.items[1][0]),
    "in a dict in a list": Place(lambda m, v: m.items.__setitem__(2, {"v": v}), lambda m: m.items[2]["v"]),
    "an attribute": Place(_put_restless, lambda m: m.__dict__["value"]),
    "an attribute of an instance in a list": Place(lambda m, v: setattr(m.items[3], "value", v), lambda m: m.items[3].value),
    "an item of a dict": Place(lambda m, v: m.named.__setitem__("v", v), lambda m: m.named["v"]),
}


#: Those in a dict that may be one that changes all the time.
IN_A_DICT = {"an attribute", "an attribute of an instance in a list", "an item of a dict"}


class Net(nn.Module):
    def __init__(self, get: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.items: list[Any] = [0, (0, []), {"v": 0}, Plain(1)]
        self.lists: list[Any] = [[0, 0]]
        self.named: dict[str, Any] = {}
        self.sizes = [1, 2, 3]
        self.get, self.read = get, read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * 0 + sum(self.sizes) + self.read(self.get(self))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_replaced_at_its_address(kind: str, place: str) -> None:
    make, read = KINDS[kind]
    put, get = PLACES[place].put, PLACES[place].get
    net = Net(get, read)
    compiled = fxjit.compile(net, backend="eager", dynamic=False)
    x = torch.zeros(1, 2)
    for number, restless in ((3, False), (4, True)) if place in IN_A_DICT else ((3, False),):
        put(net, make(number))
        for step in range(CALLS):
            if restless:
                net.step = net.named["step"] = net.items[3].step = step  # its dicts are looked into from then on
            compiled(x)
        was = id(get(net))
        for other in (7 - number, number):
            for _ in range(8):
                put(net, None)
                put(net, make(other))
                if id(get(net)) == was:
                    break
            assert compiled(x).equal(net(x)), f"{number} and {other}, restless: {restless}"


def test_tuples_made_twice() -> None:
    """The second is made where the one before last was."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.pads, self.more = nn.Linear(2, 2), [tuple([1, 1])], [1, 2, 3]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(self.linear(x), self.pads[0]) * sum(self.more)

    net = Padded()
    compiled, x = fxjit.compile(net, backend="eager"), torch.ones(1, 2)
    for first, second in (((5, 1), (2, 2)), ((7, 1), (3, 3)), ((1, 7), (1, 1))):
        for _ in range(CALLS):
            assert compiled(x).equal(net(x))
        net.pads[0] = tuple(list(first))
        net.pads[0] = tuple(list(second))
        assert compiled(x).equal(net(x))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", [lambda t: t, lambda t: (t, 1), lambda t: [t], lambda t: (1, (t,)), lambda t: {"t": t}],
                         ids=["itself", "in a tuple", "in a list", "in a tuple in a tuple", "in a dict"])
def test_tensors_are_not_kept_alive(place: str, make: Callable[[torch.Tensor], Any]) -> None:
    tensor = torch.ones(2)
    net = Net(PLACES[place].get, lambda v: 1 if isinstance(v, torch.Tensor) else len(v))
    PLACES[place].put(net, make(tensor))
    compiled, x = fxjit.compile(net, backend="eager"), torch.zeros(1, 2)
    for step in range(CALLS):
        net.step = step
        compiled(x)
    gone = weakref.ref(tensor)
    del tensor
    PLACES[place].put(net, None)
    gc.collect()
    assert gone() is None
