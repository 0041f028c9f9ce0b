"""The classes, globals and state that stateful programs work on (stateful_programs.py): each run executes this text anew, in a
namespace of its own, so that what one changes of a class, a function or a global is not seen by the other."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

GLOBAL = 1
RATE = 0.5
SWITCH = True
SETTINGS: dict[str, Any] = {"depth": 2, "name": "one"}
BIAS = torch.tensor([0.5, -0.5, 0.25, 1.0])
EVENTS: list[Any] = []


def numbers(*shape: int, by: float = 0.25, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    """A tensor whose values are known: multiples of `by` around zero."""
    count = int(np.prod(shape, dtype=int))
    made = ((torch.arange(count) * 7 % 11 - 5) * by).reshape(shape).to(dtype)
    return made.requires_grad_() if grad else made


def set_global(name: str, value: Any) -> None:
    globals()[name] = value


def cut(value: Any = None) -> Any:
    import fxjit

    fxjit.graph_break()
    return value


def twice(v: Any) -> Any:
    return v * 2


def shifted(v: Any, by: Any = 1, *rest: Any, sign: int = 1) -> Any:
    return v + sign * by + len(rest)


class Node:
    kind = 1
    shared: list[int] = []

    def __init__(self, n: int) -> None:
        self.n = n
        self.f = 0.5 * n
        self.flag = True
        self.tag = "node"
        self.items = [1, n]
        self.table: dict[Any, Any] = {"k": n, 1: 2.0}
        self.t = numbers(4, by=0.5 * n)
        self.other: Any = None
        self.pair = (n, 2)
        self.names = {"x", "y"}

    def bump(self, by: int = 1) -> int:
        self.n += by
        return self.n

    def weigh(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.n + self.kind

    @property
    def double(self) -> int:
        return self.n * 2

    @double.setter
    def double(self, value: int) -> None:
        self.n = value // 2

    def __len__(self) -> int:
        return len(self.items)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.f


class Leaf(Node):
    kind = 2

    def weigh(self, x: torch.Tensor) -> torch.Tensor:
        return super().weigh(x) - 1


class Slotted:
    __slots__ = ("items", "n", "t")

    def __init__(self, n: int) -> None:
        self.n, self.items, self.t = n, [n], numbers(4)


@dataclasses.dataclass(eq=True)
class Point:
    n: int = 1
    f: float = 0.5
    tag: str = "point"

    def __hash__(self) -> int:
        return hash(self.n)


class Proxy:
    """Attributes by __getattr__ and __setattr__."""

    def __init__(self, target: Any) -> None:
        object.__setattr__(self, "target", target)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "target"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.target, name, value)


class Stack(list):  # type: ignore[type-arg]
    limit = 3

    def push(self, value: Any) -> None:
        self.append(value)
        del self[: -self.limit]


class Table(dict):  # type: ignore[type-arg]
    def __missing__(self, key: Any) -> Any:
        self[key] = 1
        return 1


class Entered:
    def __init__(self, node: Node) -> None:
        self.node = node

    def __enter__(self) -> Node:
        self.node.n += 1
        return self.node

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
        EVENTS.append(None if kind is None else kind.__name__)
        return kind is ZeroDivisionError


@contextlib.contextmanager
def scaled(node: Node, by: float) -> Iterator[float]:
    before, node.f = node.f, node.f * by
    try:
        yield node.f
    finally:
        node.f = before


class Block(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.gain, self.calls = layer, 1.0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.gain * self.layer(x)


class Net(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.last = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.steps, self.scale, self.skip = 0, 1.0, ()  # type: tuple[int, float, tuple[int, ...]]
        self.record: dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
            self.seen.add_(1)
        for index, layer in enumerate(self.layers):
            if index not in self.skip:
                x = layer(x)
        x = self.last(x) * self.scale
        self.record["shape"] = tuple(x.shape)
        return x


LAYERS: list[Callable[[], nn.Module]] = [
    lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 4, bias=False), lambda: nn.LayerNorm(4), lambda: nn.BatchNorm1d(4),
    lambda: nn.ReLU(), lambda: nn.GELU(), lambda: nn.SiLU(inplace=True), lambda: nn.Tanh(), lambda: nn.Softplus(),
    lambda: nn.Dropout(0.25), lambda: Block(nn.Linear(4, 4)), lambda: Block(nn.Sequential(nn.Linear(4, 4), nn.Tanh())),
    lambda: nn.Identity(), lambda: nn.PReLU(), lambda: nn.GroupNorm(2, 4), lambda: nn.LeakyReLU(0.1), lambda: nn.ELU(),
    lambda: nn.Softmax(-1), lambda: nn.Hardswish(), lambda: nn.BatchNorm1d(4, affine=False, momentum=0.3),
    lambda: nn.RMSNorm(4), lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
]  # fmt: skip
OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.01, foreach=False),
    lambda p: torch.optim.Adam(p, lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01, foreach=False, amsgrad=True),
    lambda p: torch.optim.AdamW(p, lr=0.01), lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.2, centered=True),
    lambda p: torch.optim.Adagrad(p, lr=0.1), lambda p: torch.optim.Adadelta(p), lambda p: torch.optim.Adamax(p, lr=0.01),
    # Not RAdam: docs/accuracy.md says how far its steps are from eager's.
    lambda p: torch.optim.NAdam(p, lr=0.01), lambda p: torch.optim.Adamax(p), lambda p: torch.optim.ASGD(p, lr=0.05),
    lambda p: torch.optim.Rprop(p, lr=0.01), lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1)),
]  # fmt: skip


def layer(number: int) -> nn.Module:
    """A layer whose parameters are known."""
    made = LAYERS[number % len(LAYERS)]()
    with torch.no_grad():
        for index, parameter in enumerate(made.parameters()):
            parameter.copy_(numbers(*parameter.shape, by=0.1 + 0.05 * index) + (parameter.dim() == 1))
    return made


class World(types.SimpleNamespace):
    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.a, self.b, self.c = Node(1), Node(2), Leaf(3)
        self.things: list[Any] = [self.a, self.c]
        self.by_name = {"a": self.a, "b": self.b}
        self.s, self.p, self.q = Slotted(2), Point(), Point(2)
        self.proxy, self.stack, self.table = Proxy(self.a), Stack([1]), Table(k=1)
        self.ordered = collections.OrderedDict(x=1, y=2)
        self.counts = collections.defaultdict(int, {"x": 1})
        self.queue = collections.deque([1, 2], maxlen=4)
        self.base = numbers(3, 4)
        self.view = self.base[1]
        self.flat = self.base.view(-1)
        self.array = self.base.numpy()
        self.param = nn.Parameter(numbers(4))
        self.fn: Any = twice
        self.partial = functools.partial(shifted, by=2)
        self.net = Net([layer(chance.randrange(1000)) for _ in range(chance.randint(0, 3))])
        self.opt = OPTIMIZERS[chance.randrange(len(OPTIMIZERS))](self.net.parameters())
        self.handles: list[Any] = []
        self.kept: list[Any] = []
        self.counter = 0


# -- hooks that steps register ---------------------------------------------------------------------------------------


def note_call(module: nn.Module, args: Any, result: Any) -> None:
    EVENTS.append(("forward", type(module).__name__))


def double_result(module: nn.Module, args: Any, result: Any) -> Any:
    return result * 2


def shift_input(module: nn.Module, args: Any) -> Any:
    return (args[0] + 1,)


def note_backward(module: nn.Module, inputs: Any, outputs: Any) -> None:
    EVENTS.append(("backward", type(module).__name__))


def halve(gradient: torch.Tensor) -> torch.Tensor:
    return gradient / 2


def backward(result: Any) -> None:
    from torch.utils._pytree import tree_leaves

    found = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
    if found:
        torch.stack([each.float().sum() for each in found]).sum().backward()


def settle(fn: Callable[..., Any], *args: Any, times: int = 12) -> Any:
    """Calls until the guards are settled."""
    result = None
    for _ in range(times):
        result = fn(*args)
    return result
