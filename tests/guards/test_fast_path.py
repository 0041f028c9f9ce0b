"""Guards on modules are skipped while nothing below the module has changed: every change must still be seen."""

from __future__ import annotations

import collections
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxjit
from fxjit import _C
from fxjit.counters import counters


@pytest.fixture(autouse=True)
def compared() -> Iterator[None]:
    """Each check that skipped something is compared with a full one."""
    fxjit.reset()
    before = _C.verify_fast_path(True)
    yield
    _C.verify_fast_path(before)
    fxjit.reset()


class Block(nn.Module):
    scale = 2
    shift = 0
    scale_of_its_own = 1

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.drop = nn.Dropout(0.0)
        self.power = 1
        self.names = {"first": 1, "second": 2}
        self.order = collections.OrderedDict(first=1, second=2)
        self.sizes = [1, 2]
        self.factors = [1, 1]
        self.scale_of_its_own = 3
        self.fixed = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("table", torch.ones(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.b(self.drop(self.a(x))) * self.scale
        for name in self.names:
            y = y + self.names[name]
        for number in self.order.values():
            y = y * 2 + number
        y = y * self.factors[0] * self.scale_of_its_own + self.shift + self.fixed * 2 + self.table.sum(0)
        return y * self.power + len(self.sizes)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _swap_class(net: Net) -> None:
    class Other(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 3

    net.blocks[1].a.__class__ = Other


def _reorder(net: Net) -> None:
    net.blocks[0].order.move_to_end("first")


def _new_dict(net: Net) -> None:
    block = net.blocks[1]
    block.__dict__ = {**block.__dict__, "power": 5}


def _transposed(net: Net) -> None:
    net.blocks[0].a.weight.data = net.blocks[0].a.weight.data.t()


def _halved(net: Net) -> None:
    net.blocks[0].fixed.data = net.blocks[0].fixed.data.bfloat16()


def _resized(net: Net) -> None:
    with torch.no_grad():
        net.blocks[0].fixed.resize_(1, 4).fill_(2.0)


def _set_storage(net: Net) -> None:
    with torch.no_grad():
        net.blocks[0].fixed.set_(torch.arange(9.0).untyped_storage(), 1, (4,), (2,))


def _swapped(net: Net) -> None:
    a, b = net.blocks[0], net.blocks[1]
    b.b.weight.requires_grad_(False)
    torch._C._swap_tensor_impl(a.a.weight, b.b.weight)  # what torch.utils.swap_tensors does


def _grad_in_place(net: Net) -> None:
    block = net.blocks[0]
    block.fixed.mul_(block.a.bias)  # a leaf that required no gradient gets a history


CHANGES: dict[str, Callable[[Net], object]] = {
    "a number": lambda net: setattr(net.blocks[1], "power", 3),
    "a class attribute hidden by an instance's": lambda net: setattr(net.blocks[0], "scale", 5),
    "training off": lambda net: net.eval(),
    "training off in one layer": lambda net: net.blocks[1].drop.eval(),
    "another parameter": lambda net: setattr(net.blocks[0].a, "weight", nn.Parameter(torch.ones(4, 4))),
    "a parameter that requires no gradient any more": lambda net: net.blocks[1].b.weight.requires_grad_(False),
    "a parameter of another type": lambda net: net.double(),
    "a parameter of other strides": _transposed,
    "no bias": lambda net: setattr(net.blocks[0].b, "bias", None),
    "a layer replaced": lambda net: net.blocks.__setitem__(1, Block()),
    "a layer appended": lambda net: net.blocks.append(Block()),
    "a layer gone": lambda net: net.blocks.__delitem__(0),
    "a hook": lambda net: net.blocks[1].a.register_forward_hook(lambda m, args, out: out * 2),
    "a hook before": lambda net: net.blocks[1].register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
    "a forward of its own": lambda net: setattr(net.blocks[0].a, "forward", lambda x: x * 7),
    "a key added": lambda net: net.blocks[0].names.update(third=3),
    "a key's value": lambda net: net.blocks[0].names.update(first=9),
    "an order": _reorder,
    "a list's length": lambda net: net.blocks[1].sizes.append(3),
    "a class": _swap_class,
    "a dict replaced": _new_dict,
    "an attribute deleted": lambda net: delattr(net.blocks[1], "scale_of_its_own"),
    "a method of the class": lambda net: setattr(Block, "shift", 11),
    "a parameter of another type, alone": _halved,
    "a parameter given other sizes": _resized,
    "a parameter given another storage": _set_storage,
    "two parameters swapped": _swapped,
    "a frozen parameter that comes to depend on another": _grad_in_place,
    "a buffer resized": lambda net: net.blocks[0].table.resize_(3, 4).fill_(0.5),
    "an item of a list": lambda net: net.blocks[0].factors.__setitem__(0, 5),
    "a list replaced": lambda net: setattr(net.blocks[0], "factors", [7, 1]),
    "a dict cleared": lambda net: net.blocks[0].names.clear(),
    "an attribute put straight into the dict": lambda net: net.blocks[0].__dict__.update(power=4),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_deep_in_a_module_is_seen(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = Net()
    compiled = fxjit.compile(net, backend="eager")
    x = torch.randn(3, 4)
    for _ in range(20):
        torch.testing.assert_close(compiled(x), net(x))
    monkeypatch.setattr(Block, "shift", 0)
    CHANGES[what](net)
    if next(net.parameters()).dtype is torch.float64:
        x = x.double()
    for _ in range(20):
        torch.testing.assert_close(compiled(x), net(x))


def test_what_does_not_matter_changes_without_a_recompile() -> None:
    net = Net()
    compiled = fxjit.compile(net, backend="eager")
    x = torch.randn(3, 4)
    for step in range(40):
        net.unrelated = step  # the dict's version moves on; what is guarded in it does not
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(0.9)
        torch.testing.assert_close(compiled(x), net(x))
    assert counters["frames"]["ok"] == 1


def test_training_steps_keep_what_was_settled() -> None:
    net = Net()
    compiled = fxjit.compile(net, backend="aot_eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    twin = Net()
    twin.load_state_dict(net.state_dict())
    other = torch.optim.SGD(twin.parameters(), lr=0.01)
    x = torch.randn(3, 4)
    for _ in range(12):
        for module, step in ((compiled, optimizer), (twin, other)):
            step.zero_grad()
            module(x).tanh().mean().backward()
            step.step()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_module_that_is_gone_is_not_mistaken_for_another() -> None:
    def run(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return net(x)

    compiled = fxjit.compile(run, backend="eager")
    x = torch.randn(3, 4)
    for seed in range(6):
        torch.manual_seed(seed)
        net: Any = Net()
        if seed % 2:
            net.blocks[1].power = 3
        for _ in range(6):
            torch.testing.assert_close(compiled(net, x), net(x))
        del net


def test_the_same_tensor_given_as_an_argument_is_noticed() -> None:
    net = Net()

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return net(x) + y

    compiled = fxjit.compile(run, backend="eager")
    x = torch.randn(4, 4)
    for _ in range(10):
        torch.testing.assert_close(compiled(x, torch.ones(4, 4)), run(x, torch.ones(4, 4)))
    weight = net.blocks[0].a.weight
    torch.testing.assert_close(compiled(x, weight), run(x, weight))


def _tree_of(net: nn.Module) -> Any:
    """The guards of the one compiled entry of the module's class."""
    trees = [tree for tree in gc.get_objects() if type(tree) is _C.GuardTree and tree.num_nodes > 50]
    assert len(trees) == 1
    return trees[0]


def test_a_number_that_changes_on_each_call_does_not_unsettle_the_rest() -> None:
    net = Net()
    compiled = fxjit.compile(net, backend="eager")
    x = torch.randn(3, 4)
    has_snapshot = []
    for step in range(30):
        net.blocks[1].seen = step
        compiled(x)
        has_snapshot.append(_tree_of(net).has_snapshot)
    assert all(has_snapshot[-10:])


def test_data_replaced_by_data_of_the_same_kind_keeps_what_was_settled() -> None:
    net = Net()
    compiled = fxjit.compile(net, backend="eager")
    x = torch.randn(3, 4)
    for _ in range(5):
        compiled(x)
    for _ in range(5):
        for parameter in net.parameters():
            parameter.data = torch.randn_like(parameter)
        assert _tree_of(net).has_snapshot
        torch.testing.assert_close(compiled(x), net(x))
        assert _tree_of(net).has_snapshot


def test_switching_between_training_and_evaluation_settles_again_each_time() -> None:
    net = Net()
    compiled = fxjit.compile(net, backend="eager")
    x = torch.randn(3, 4)
    for epoch in range(12):
        net.train(epoch % 2 == 0)
        for _ in range(12):
            compiled(x)
    trees = [tree for tree in gc.get_objects() if type(tree) is _C.GuardTree and tree.num_nodes > 50]
    assert len(trees) == 2
    assert any(tree.has_snapshot for tree in trees)


def test_what_is_watched_is_let_go() -> None:
    """A model that is gone leaves nothing behind, with its notes taken."""
    x = torch.randn(3, 4)
    gone = []
    for _ in range(3):
        net = Net()
        compiled = fxjit.compile(net, backend="eager")
        for _ in range(6):
            compiled(x)
        gone.append(weakref.ref(net))
        del net, compiled
        gc.collect()
    assert [ref() for ref in gone] == [None] * 3
