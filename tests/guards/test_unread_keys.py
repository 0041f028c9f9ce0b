"""Keys that nobody looked at: a dict with ints for keys that is counted or iterated over is guarded by the number of its
entries and by its values in their order; keys are guarded as soon as the program's result may depend on them."""

from __future__ import annotations

import collections
import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxjit
from fxjit.testing import CompileCounterWithBackend


@pytest.fixture(autouse=True)
def _compiled_as_often_as_needed() -> Iterator[None]:
    fxjit.reset()
    with fxjit.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
        yield


# -- programs that look at keys, and those that do not -----------------------------------------------------------------


def counts(d: dict[int, Any], x: torch.Tensor) -> Any:
    return x * len(d) if d else x


def iterates_over_values(d: dict[int, Any], x: torch.Tensor) -> Any:
    for value in d.values():
        x = x * 2 + value
    return x


def passes_over_keys(d: dict[int, Any], x: torch.Tensor) -> Any:
    for _, value in (*d.items(), *reversed(d.items())):
        x = x * 2 + value
    return x


def looks_up_in_an_empty_dict(d: dict[int, Any], x: torch.Tensor) -> Any:
    none: dict[int, bool] = {}
    for key, value in d.items():
        x = x * 2 + value if key not in none else x - value
    return x


def computes_with_keys(d: dict[int, Any], x: torch.Tensor) -> Any:
    for key, value in d.items():
        x = x * (key % 7) + value
    return x


def returns_keys(d: dict[int, Any], x: torch.Tensor) -> Any:
    return list(d), x + 1


def returns_views(d: dict[int, Any], x: torch.Tensor) -> Any:
    return [*d.items()], x + 1


def looks_up_one(d: dict[int, Any], x: torch.Tensor) -> Any:
    for value in d.values():
        x = x * 2 + value
    return x + d.get(5, 10)


def looks_up_one_first(d: dict[int, Any], x: torch.Tensor) -> Any:
    x = x + d.get(5, 10)
    for value in d.values():
        x = x * 2 + value
    return x


def compares(d: dict[int, Any], x: torch.Tensor) -> Any:
    return x + 1 if d == {5: 1.0, 6: 2.0} else x - 1


def adds_an_entry(d: dict[int, Any], x: torch.Tensor) -> Any:
    for value in list(d.values()):
        x = x * 2 + value
    d[6] = 9.0
    return x, list(d.items())


def takes_one_out(d: dict[int, Any], x: torch.Tensor) -> Any:
    total = sum(d.values())
    d.pop(5, None)
    return x * total, len(d), dict(d)


def breaks_while_it_iterates(d: dict[int, Any], x: torch.Tensor) -> Any:
    for key, value in d.items():
        x = x * 2 + value
        fxjit.graph_break()
        x = x + key
    return x


UNREAD = (counts, iterates_over_values, passes_over_keys, looks_up_in_an_empty_dict)
READ = (computes_with_keys, returns_keys, returns_views, looks_up_one, looks_up_one_first, compares, adds_an_entry,
        takes_one_out, breaks_while_it_iterates)
#: The first is what the program is compiled for.
CHANGED: tuple[dict[int, Any], ...] = (
    {5: 1.0, 6: 2.0}, {7: 1.0, 8: 2.0}, {6: 2.0, 5: 1.0}, {6: 1.0, 5: 2.0}, {5: 1.0}, {}, {5: 1.0, 6: 2.0, 7: 3.0},
    {5: 1.0, 6: 3.0}, {5: 1.0, True: 2.0}, {5: 1.0, "6": 2.0}, {0: 1.0, 6: 2.0}, {5: 1.0, 10**12: 2.0})


@pytest.mark.parametrize("cls", [dict, collections.OrderedDict])
@pytest.mark.parametrize("fn", [*UNREAD, *READ], ids=lambda fn: fn.__name__)
def test_a_changed_dict_is_seen(fn: Callable[..., Any], cls: type) -> None:
    for first in CHANGED[:2]:
        fxjit.reset()
        compiled, x = fxjit.compile(fn, backend="eager"), torch.arange(3.0)
        for given in (first, *CHANGED):
            mine, theirs = cls(given), cls(given)
            if any(type(key) is str for key in given) and fn in (computes_with_keys, breaks_while_it_iterates):
                continue
            assert str(compiled(mine, x)) == str(fn(theirs, x)), given
            assert list(mine.items()) == list(theirs.items())


@pytest.mark.parametrize("fn", UNREAD, ids=lambda fn: fn.__name__)
def test_other_keys_take_no_graph_of_their_own(fn: Callable[..., Any]) -> None:
    counter, x = CompileCounterWithBackend("eager"), torch.arange(3.0)
    compiled = fxjit.compile(fn, backend=counter)
    for keys in ((5, 6), (7, 8), (8, 7), (-1, 10**12)):
        given = dict(zip(keys, (1.0, 2.0), strict=True))
        torch.testing.assert_close(compiled(given, x), fn(given, x))
    assert counter.frame_count == 1


def test_an_ordered_dict_that_moves_its_keys_is_seen() -> None:
    compiled, x = fxjit.compile(iterates_over_values, backend="eager"), torch.arange(3.0)
    holder = collections.OrderedDict({5: 1.0, 6: 2.0})
    for last in (True, False, True):
        for _ in range(3):  # by the tree, and by what it noted
            torch.testing.assert_close(compiled(holder, x), iterates_over_values(holder, x))
        holder.move_to_end(5, last=last)
    del holder[6]
    for _ in range(3):
        torch.testing.assert_close(compiled(holder, x), iterates_over_values(holder, x))


# -- hooks of modules --------------------------------------------------------------------------------------------------


class Times:
    """A hook of every kind."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def pre(self, module: nn.Module, args: Any) -> Any:
        return (args[0] * self.factor,)

    def pre_with_kwargs(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return (args[0] * self.factor,), kwargs

    def post(self, module: nn.Module, args: Any, result: Any) -> Any:
        return result + self.factor

    def post_with_kwargs(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
        return result + self.factor


def pre(module: nn.Module, factor: float) -> Any:
    return module.register_forward_pre_hook(Times(factor).pre)


def pre_with_kwargs(module: nn.Module, factor: float) -> Any:
    return module.register_forward_pre_hook(Times(factor).pre_with_kwargs, with_kwargs=True)


def post(module: nn.Module, factor: float) -> Any:
    return module.register_forward_hook(Times(factor).post)


def post_with_kwargs(module: nn.Module, factor: float) -> Any:
    return module.register_forward_hook(Times(factor).post_with_kwargs, with_kwargs=True)


def always(module: nn.Module, factor: float) -> Any:
    return module.register_forward_hook(Times(factor).post, always_call=True)


def first(module: nn.Module, factor: float) -> Any:
    return module.register_forward_hook(Times(factor).post, prepend=True)


REGISTER = (pre, pre_with_kwargs, post, post_with_kwargs, always, first)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


@pytest.mark.parametrize("register", [pre, post], ids=lambda fn: fn.__name__)
def test_modules_that_differ_in_the_numbers_of_their_hooks_share_a_graph(register: Any) -> None:
    counter, x = CompileCounterWithBackend("eager"), torch.randn(2, 3)
    blocks = [Block() for _ in range(4)]
    for block in blocks:
        register(block.layer, 2.0)
        register(block.layer, 3.0)
    blocks += [copy.deepcopy(blocks[0]), pickle.loads(pickle.dumps(blocks[1]))]
    for block in blocks:
        expected = block(x)
        block.compile(backend=counter)
        for _ in range(2):
            torch.testing.assert_close(block(x), expected)
    assert counter.frame_count == 1


@pytest.mark.sweep(2)
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "after a full check"])
@pytest.mark.parametrize("second", REGISTER, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("register", REGISTER, ids=lambda fn: fn.__name__)
def test_a_hook_that_comes_goes_or_changes_is_seen(register: Any, second: Any, guarded: bool) -> None:
    block, x = Block(), torch.randn(2, 3)
    compiled = fxjit.compile(block, backend="eager")

    def check() -> None:
        for _ in range(1 if guarded else 4):
            torch.testing.assert_close(compiled(x), block(x))

    check()
    handle = register(block.layer, 2.0)
    check()
    other = second(block.layer, 3.0)
    check()
    handle.remove()
    check()
    handle = register(block.layer, 2.0)  # the same hooks in another order
    check()
    for hooks in (block.layer._forward_hooks, block.layer._forward_pre_hooks):
        for key in list(hooks):
            hooks[key] = getattr(Times(5.0), hooks[key].__name__)  # another in its place
    check()
    other.remove()
    check()
    handle.remove()
    check()


def test_a_hook_that_gets_keywords_without_being_replaced_is_seen() -> None:
    block, x = Block(), torch.randn(2, 3)

    def hook(module: nn.Module, args: Any, *rest: Any) -> Any:
        return ((args[0] * 3,), *rest) if rest else (args[0] * 2,)

    handle = block.layer.register_forward_pre_hook(hook)
    compiled = fxjit.compile(block, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(x), block(x))
    block.layer._forward_pre_hooks_with_kwargs[handle.id] = True
    for _ in range(3):
        torch.testing.assert_close(compiled(x), block(x))
    block.layer._forward_pre_hooks_with_kwargs[handle.id + 1] = block.layer._forward_pre_hooks_with_kwargs.pop(handle.id)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), block(x))


# -- objects as keys ---------------------------------------------------------------------------------------------------


class Listener:
    """Its equality calls something, so that it may not be called but when the program does."""

    compared = 0

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def calls(self) -> float:
        return self.weight

    def __eq__(self, other: object) -> bool:
        Listener.compared += 1
        return isinstance(other, Listener) and self.calls() == other.calls()

    def __hash__(self) -> int:
        return hash(self.calls())


def passes_over_objects(d: dict[Listener, float], x: torch.Tensor) -> Any:
    for listener in list(d.keys()):
        x = x + listener.weight
    for listener, factor in d.items():
        x = x * listener.weight + factor
    return x * len(d) if d else x - 1


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.defaultdict])
def test_objects_as_keys_are_read_by_their_places(kind: Any) -> None:
    compiled = fxjit.compile(passes_over_objects, backend="eager", fullgraph=kind is not collections.OrderedDict)
    x = torch.ones(2)
    for weights in ([], [2.0], [2.0, 3.0], [3.0, 2.0], [3.0, 5.0]):
        d = kind(None, {}) if kind is collections.defaultdict else kind()
        d.update({Listener(weight): number + 0.5 for number, weight in enumerate(weights)})
        compared = Listener.compared
        for _ in range(2):
            assert torch.equal(compiled(d, x), passes_over_objects(d, x))
        assert Listener.compared == compared


def test_a_key_that_is_looked_up_is_compared_when_the_program_does() -> None:
    def looks_up(d: dict[Listener, float], wanted: Listener, x: torch.Tensor) -> Any:
        for listener in d:
            x = x + listener.weight
        return x * d[wanted] if wanted in d else x

    compiled, x = fxjit.compile(looks_up, backend="eager"), torch.ones(2)
    d = {Listener(2.0): 0.5, Listener(3.0): 1.5}
    for weight in (2.0, 3.0, 4.0):
        before = Listener.compared
        expected = looks_up(d, Listener(weight), x)
        by_eager = Listener.compared - before
        assert torch.equal(compiled(d, Listener(weight), x), expected)
        assert Listener.compared - before == 2 * by_eager


def test_a_dict_that_grows_while_it_is_iterated_over_raises() -> None:
    def grows(d: dict[Listener, float], x: torch.Tensor) -> Any:
        for listener in d:
            x = x + listener.weight
            d[Listener(7.0)] = 1.0
        return x

    compiled = fxjit.compile(grows, backend="eager")
    for fn in (grows, compiled):
        with pytest.raises(RuntimeError, match="dictionary changed size during iteration"):
            fn({Listener(2.0): 0.5}, torch.ones(2))
