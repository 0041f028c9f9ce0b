"""Numbers of classes that change from call to call (ids, counters): symbols, as those of objects."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

import fxjit


class Counted:
    count = 0
    scale = 1.5

    def __init__(self) -> None:
        self.id = Counted.count
        Counted.count += 1


class Derived(Counted):
    pass


def counts(x: torch.Tensor) -> Any:
    Counted.count += 1
    return x * 2, Counted.count


def ids(x: torch.Tensor) -> Any:
    made = Counted()
    return x + made.id, made.id


def branches(x: torch.Tensor) -> Any:
    Counted.count += 1
    return x * 3 if Counted.count % 3 == 0 else x + 1


def names(x: torch.Tensor) -> Any:
    Counted.count += 1
    return x + 1, f"layer_{Counted.count}"


def of_a_base(x: torch.Tensor) -> Any:
    Derived.count += 1
    return x * Derived.count + Counted.count, "count" in vars(Derived)


def run(fn: Any, compiled: Any, calls: int = 6) -> None:
    found = []
    for function in (fn, compiled):
        Counted.count = 0
        if "count" in vars(Derived):
            del Derived.count
        found.append([str(function(torch.ones(2))) for _ in range(calls)] + [str(Counted.count), str(Derived.count)])
    assert found[0] == found[1]


@pytest.mark.compiles
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(("fn", "most"), [(counts, 1), (ids, 1), (branches, 4), (names, 3), (of_a_base, 3)])
def test_a_counter_is_a_symbol(fn: Any, most: int, backend: str) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    run(fn, fxjit.compile(fn, backend=backend))
    assert fxjit.counters["stats"]["unique_graphs"] <= most


@pytest.mark.compiles
def test_a_float_of_a_class_is_one() -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(lambda x: x * Counted.scale, backend="eager")
    before = Counted.scale
    for scale in (1.5, 2.5, 3.5, 4.5, 0.0, 2.5):
        Counted.scale = scale
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * scale)
    Counted.scale = before
    assert fxjit.counters["stats"]["unique_graphs"] <= 3


def shown(results: Any) -> str:
    return str(tree_map_only(torch.Tensor, torch.Tensor.detach, results))


MODEL = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def features(x: torch.Tensor) -> Any:
    found: dict[str, Any] = {}
    handle = MODEL[1].register_forward_hook(lambda module, args, out: found.update(relu=out))
    y = MODEL(x)
    handle.remove()
    return y, found["relu"], len(MODEL[1]._forward_hooks)


def in_a_block(x: torch.Tensor) -> Any:
    with MODEL[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,)):
        y = MODEL(x)
    return y, MODEL(x)


def of_all(x: torch.Tensor) -> Any:
    total: dict[str, int] = {}
    handles = [
        module.register_forward_hook(lambda module, args, out, name=name: total.update({name: out.numel()}))
        for name, module in MODEL.named_modules()
    ]
    MODEL(x)
    for handle in handles:
        handle.remove()
    return total, x + 1


@pytest.mark.compiles
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [features, in_a_block, of_all])
def test_hooks_of_modules_come_and_go_in_the_graph(fn: Any, backend: str) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend=backend)
    for _ in range(6):
        assert shown(fn(torch.ones(2, 3))) == shown(compiled(torch.ones(2, 3)))
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in MODEL.modules())
    assert not fxjit.counters["graph_break"] and not fxjit.counters["skip"]
    assert fxjit.counters["stats"]["unique_graphs"] == 1


def reads(x: torch.Tensor) -> Any:
    return MODEL(x).sum(), RemovableHandle.next_id >= 0


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("fn", [features, of_all, reads])
def test_what_the_compile_itself_counts_is_no_mistake(fn: Any, dynamic: bool | None) -> None:
    """AOTAutograd registers hooks of its own while it traces a graph with gradients."""
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="aot_eager", dynamic=dynamic)
    for _ in range(4):
        x, y = (torch.linspace(-1, 1, 6).view(2, 3).requires_grad_() for _ in range(2))
        expected, actual = fn(x), compiled(y)
        assert shown(expected) == shown(actual)
        for result in (expected, actual):
            next(each for each in result if isinstance(each, torch.Tensor)).sum().backward()
        assert x.grad is not None and y.grad is not None and torch.equal(x.grad, y.grad)


def left(x: torch.Tensor) -> Any:
    return MODEL(x), MODEL[1].register_forward_hook(lambda module, args, out: out + 1)


def test_a_hook_that_is_left() -> None:
    compiled = fxjit.compile(left, backend="eager")
    x = torch.ones(2, 3)
    plain = MODEL(x)
    (y, first), (z, second) = compiled(x), compiled(x)
    assert torch.equal(y, plain) and not torch.equal(z, plain) and second.id == first.id + 1
    first.remove()
    second.remove()
    assert torch.equal(MODEL(x), plain)


class Cached:
    scale = 2

    @classmethod
    @functools.lru_cache
    def table(cls, count: int) -> torch.Tensor:
        return torch.arange(count) * cls.scale


class CachedToo(Cached):
    scale = 3


def test_a_class_method_behind_a_cache_is_bound_to_the_class() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + Cached.table(3) + CachedToo.table(3) + CachedToo().table(3)

    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3)), fn(torch.ones(3)))
