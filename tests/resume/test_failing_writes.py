"""A graph that writes to its inputs and then fails leaves what eager leaves: the writes before the failing operator, none
behind it, whatever order and whatever kernels the backend has made of them; and the program's own error arrives, or is
caught."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import _C
from fxjit.backends.native.pipeline import compile_graph
from fxjit.counters import counters
from fxjit.resume.deoptimization import UndoableGraph

BACKENDS = ["eager", "aot_eager", "native"]
#: The second is more than is copied before a graph runs, and enough for threads.
SMALL, LARGE = (8, 4), (300, 301)
CASES = [(backend, SMALL) for backend in BACKENDS] + [("native", LARGE)]
INDICES = [[0, 1], [0, 9999], [1, 0], [9999, 0], [1, 1]]


def before(x, y, index):
    x.add_(1)
    return y[index]


def behind(x, y, index):
    z = y[index]
    x.add_(1)
    return z


def what_is_looked_up(x, y, index):
    x[:2].copy_(y[index])
    return x.sum()


def what_is_calculated_from_that(x, y, index):
    x[:, 1].copy_((y[index].exp() * 2).sum(0).sum() + y[:, 0])
    y.sub_(x)
    return x * 2


def several(x, y, index):
    x.add_(1)
    y.mul_(2)
    z = y[index]
    x.sub_(5)
    y.add_(3)
    return z


def views(x, y, index):
    x.view(-1)[1:].mul_(3)
    x[:4].zero_()
    z = y.index_select(0, index)
    x.t().add_(1)
    return z


def places_then_all(x, y, index):
    x.mul_(2)
    y.index_fill_(0, index, 7.0)
    x.add_(1)
    return x * 2


def added_at_places(x, y, index):
    x.index_add_(0, torch.arange(2), y[:2])
    return y[index]


def added_at_wrong_places(x, y, index):
    y.add_(1)
    x.index_add_(0, index, y[:2])
    return x.sum(0) + 1


def copied_to_places_one_after_the_other(x, y, index):
    x.index_copy_(0, torch.arange(2), y[:2] * 2)
    y.index_copy_(0, index, x[2:4] + 1)
    x[3].zero_()
    return (x @ y.t()).sum()


def a_cache(x, y, index):
    x.index_copy_(0, torch.arange(2), y[:2] * 2)
    z = (x @ y.t()).softmax(-1)
    return y.index_select(0, index) + z[:2, :1]


def read_and_set(x, y, index):
    total = x.sum()
    x[0] = total
    x[1] = x[0] * 2
    return y[index] + total


def scattered(x, y, index):
    where = index.view(2, 1).expand(2, x.shape[1])
    y.scatter_(0, where.clamp(max=3), 5.0)
    x.scatter_(0, where, y[:2] * 3)
    y.mul_(2)
    return x * 3


def put_at_two(x, y, index):
    x.cos_()
    y[index, index.clamp(max=1)] = x[:2, 0]
    x.sin_()
    return y * 2


def an_embedding(x, y, index):
    x.add_(1)
    z = F.embedding(index, y)
    y[0].add_(z.sum())
    return z


def an_index_of_an_index(x, y, index):
    x.add_(1)
    order = torch.arange(x.shape[0])[index]
    x[:2] = y[order]
    y.zero_()
    return x * 1.5


def a_matrix(x, y, index):
    x.add_(1)
    z = torch.linalg.inv((y[:3, :3] * 0) + (index < 100).all() * torch.eye(3))
    x.mul_(3)
    return z


def a_division(x, y, index):
    x.add_(1)
    z = index // (9999 - index)
    x.mul_(3)
    return z


def a_loss(x, y, index):
    x.mul_(2)
    loss = F.cross_entropy(y[:2, :3], index)
    x.add_(1)
    return loss + x.sum() * 0


def random_numbers(x, y, index):
    x.add_(torch.rand(()))
    z = y[index]
    x.sub_(torch.rand(()))
    return z


def running_statistics(x, y, index):
    z = F.batch_norm(y, x[0], x[1].abs_(), training=True)
    z = z[index]
    x.add_(1)
    return z


def caught(x, y, index):
    x.add_(1)
    try:
        z = y[index]
    except IndexError:
        z = y[:2] * 2
    x.add_(1)
    return z


def caught_outside(x, y, index):
    try:
        y.mul_(3)
        return before(x, y, index)
    except IndexError as error:
        x.zero_()
        return str(error)


PROGRAMS = [
    before, behind, what_is_looked_up, what_is_calculated_from_that, several, views, places_then_all, added_at_places,
    added_at_wrong_places, copied_to_places_one_after_the_other, a_cache, read_and_set, scattered, put_at_two, an_embedding,
    an_index_of_an_index, a_matrix, a_division, a_loss, random_numbers, running_statistics, caught, caught_outside,
]  # fmt: skip


def left_by(call, size, index):
    """(what the call gives or raises, what it leaves in its inputs, the next random number)"""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(size, generator=generator) for _ in range(2))
    torch.manual_seed(1)
    try:
        found = call(x, y, torch.tensor(index))
    except (RuntimeError, IndexError) as error:
        found = f"{type(error).__name__}: {error}"
    return found, x, y, torch.rand(())


@pytest.mark.sweep(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize(("backend", "size"), CASES)
def test_what_a_failing_graph_leaves_is_what_eager_leaves(program, backend, size):
    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend)
    failed = 0
    for index in INDICES:
        expected, found = left_by(program, size, index), left_by(compiled, size, index)
        failed += isinstance(expected[0], str)
        if isinstance(expected[0], str):
            assert found[0] == expected[0]
        for a, b in zip(expected, found, strict=True):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(b, a, equal_nan=True)
    assert failed or program is caught


def test_a_large_input_is_copied_where_a_graph_runs_as_captured_in_a_block_that_catches():
    fxjit.reset()
    compiled = fxjit.compile(caught, backend="eager")
    for index in INDICES:
        expected, found = left_by(caught, LARGE, index), left_by(compiled, LARGE, index)
        assert all(map(torch.equal, expected, found))


@pytest.mark.parametrize(("backend", "size"), CASES)
def test_inputs_that_are_views_of_one_another(backend, size):
    def program(x, part, index):
        part.add_(1)
        z = x[index]
        x.mul_(2)
        return z

    compiled = fxjit.compile(program, backend=backend)
    for index in INDICES:
        left = []
        for call in (program, compiled):
            x = torch.ones(size)
            try:
                call(x, x[1:3], torch.tensor(index))
            except IndexError as error:
                left.append(str(error))
            left.append(x)
        middle = len(left) // 2
        assert left[:middle - 1] == left[middle:-1]
        assert torch.equal(left[middle - 1], left[-1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_training_step_that_fails_counts_what_eager_counts(backend):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)

        def forward(self, x, target):
            return F.cross_entropy(self.out(self.norm(x)), target)

    left = []
    for compiles in (False, True):
        torch.manual_seed(0)
        net = Net()
        call = fxjit.compile(net, backend=backend) if compiles else net
        for target in ([0, 2], [0, 3], [1, 1], [7, 0]):
            try:
                call(torch.rand(2, 4), torch.tensor(target)).backward()
            except IndexError as error:
                left.append(str(error))
        left.append([*net.buffers(), *(each.grad for each in net.parameters())])
    middle = len(left) // 2
    assert left[:middle - 1] == left[middle:-1]
    assert len(left) > 2
    torch.testing.assert_close(left[-1], left[middle - 1])


def test_nothing_is_copied_for_it():
    """A graph that tells by itself whether it wrote needs no copies of its inputs, with or without lookups."""
    for program in (before, behind, several, caught):
        fxjit.reset()
        compiled = fxjit.compile(program, backend="native")
        compiled(torch.ones(8, 4), torch.ones(8, 4), torch.tensor([0, 1]))
        for key in _C.keys(program.__code__):
            for entry in _C.entries(program.__code__, key):
                assert not any(isinstance(each, UndoableGraph) for each in entry.code.co_consts)


def program_of(fn, *args):
    from torch.fx.experimental.proxy_tensor import make_fx

    gm = make_fx(torch.func.functionalize(fn))(*args)
    return gm, compile_graph(gm, args)


def test_a_cache_is_still_filled_in_place():
    """What sets places whose old values nobody reads may be done twice: it is written where it stands."""
    x, y, index = torch.zeros(8, 4), torch.ones(8, 4), torch.tensor([0, 1])
    gm, compiled = program_of(lambda x, y, index: (a_cache(x, y, index), y[index])[0], x, y, index)
    assert any(node.meta.get("fxjit_in_place") for node in gm.graph.nodes)
    compiled.finish()
    compiled([x, y, index])
    assert x[:2].eq(2).all()


def test_a_graph_that_runs_as_captured_and_writes_to_large_inputs_reaches_the_handler() -> None:
    """The write is no part of a compiled graph's end there: only copies undo it."""
    def f(x, y, index):
        try:
            x.as_strided((len(x),), (1,), 0).add_(1)
            return x.sum() + y[index]
        except IndexError:
            return y - 1

    compiled = fxjit.compile(f, backend="aot_eager")
    for index in (1, 7, 7, 1):
        ours, eagers = ((torch.ones(100_000), torch.ones(3), torch.tensor([index])) for _ in range(2))
        assert torch.equal(compiled(*ours), f(*eagers))
        assert torch.equal(ours[0], eagers[0])


def beside_a_view(x, y, index, log):
    log.append(1)
    x.as_strided((4,), (1,), 0).add_(1)
    return y[index]


def beside_a_view_of_a_view(x, y, index, log):
    log.append(1)
    x.detach()[1:].as_strided((4,), (1,), 0).mul_(3)
    return y[index]


def of_another_shape(x, y, index, log):
    log.append(1)
    x.as_strided_((2, 2), (2, 1), 0).t_().add_(1)
    return y[index]


def unsqueezed(x, y, index, log):
    log.append(1)
    x.unsqueeze_(0)
    return y[index]


def a_diagonal(x, y, index, log):
    log.append(1)
    x.view(3, 1).fill_diagonal_(9, wrap=True).add_(1)
    return y[index]


def lists(x, y, index):
    torch._foreach_add_([x, x[1:]], 1)
    return y[index]


def lists_before_an_effect(x, y, index, log):
    torch._foreach_add_([x, x[1:]], 1)
    log.append(1)
    return y[index]


def behind_what_fails(x, y, index, log):
    log.append(1)
    z = y[index]
    x.add_(1)
    return z


def what_fails_alone(x, y, index):
    z = y[index]
    x.add_(1)
    return z


BEYOND = [beside_a_view, beside_a_view_of_a_view, of_another_shape, unsqueezed, a_diagonal, lists, lists_before_an_effect,
          behind_what_fails, what_fails_alone]


@pytest.mark.parametrize("program", BEYOND, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_memory_beside_an_input_its_shape_and_its_version_are_as_eager_leaves_them(program, backend):
    """Writes reach all of an input's storage; and autograd, which counts them, refuses no derivative that eager gives."""
    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend)
    for part in (slice(4, 7), slice(2, 8, 2)):
        for index in ([0], [7]):
            left = []
            for call in (program, compiled):
                memory, weight, log = torch.arange(10.0), torch.ones(3, requires_grad=True), []
                x = memory[part]
                before = (weight * x).sum()
                try:
                    found = call(x, torch.ones(3), torch.tensor(index), *([log] if program.__code__.co_argcount > 3 else []))
                except IndexError as error:
                    found = str(error)
                try:
                    before.backward()
                except RuntimeError as error:
                    log.append(type(error))
                left.append((found, memory.tolist(), x.shape, x.stride(), x.storage_offset(), log))
            assert left[0] == left[1]


def test_inputs_of_other_sizes_are_saved_too():
    fxjit.reset()
    compiled = fxjit.compile(behind_what_fails, backend="eager", dynamic=True)
    for size in (6, 8, 9):
        compiled(torch.ones(size), torch.ones(3), torch.tensor([0]), [])
    assert not counters["failed_graphs"]
