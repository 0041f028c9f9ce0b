"""Collectives, process groups and device meshes in graphs: results are eager's on every rank, with no break."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import fxjit
from fxjit.testing import CompileCounterWithBackend

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
Program = Callable[[torch.Tensor], Any]
PROGRAMS: dict[str, Callable[[], Program]] = {}
WORLD = [0, 1]
#: Before torch 2.13 these have other names.
all_gather_single, all_gather_single_autograd, reduce_scatter_single, reduce_scatter_single_autograd = (
    getattr(functional, name, None) or getattr(functional, name.replace("single", "tensor"))
    for name in ("all_gather_single", "all_gather_single_autograd", "reduce_scatter_single", "reduce_scatter_single_autograd"))


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Signs up a program that is one graph. It is made on the rank, where there is a process group."""
    PROGRAMS[make.__name__] = make
    return make


def functional_program(call: Callable[[torch.Tensor], Any]) -> None:
    PROGRAMS[call.__name__] = lambda: lambda x: call(x * 2)


@functional_program
def all_reduce_and_wait(x: torch.Tensor) -> Any:
    return functional.wait_tensor(functional.all_reduce(x, "sum", distributed.group.WORLD)) + 1


@functional_program
def all_reduce_of_a_list_of_ranks(x: torch.Tensor) -> Any:
    return functional.all_reduce(x, "sum", WORLD) + 1


@functional_program
def gather_rows_and_columns(x: torch.Tensor) -> Any:
    group = distributed.group.WORLD
    return all_gather_single(x, 0, group), all_gather_single(x, 1, group)


@functional_program
def scatter_rows_and_columns(x: torch.Tensor) -> Any:
    group = distributed.group.WORLD
    return reduce_scatter_single(x, "sum", 0, group), reduce_scatter_single(x, "sum", 1, group)


@functional_program
def exchange(x: torch.Tensor) -> Any:
    group = distributed.group.WORLD
    even, chosen = functional.all_to_all_single(x, None, None, group), functional.all_to_all_single(x, [1, 1], [1, 1], group)
    return even + 1, chosen + 1


@functional_program
def broadcast_and_permute(x: torch.Tensor) -> Any:
    sent = functional.permute_tensor(x.view(-1), [1, 0], distributed.group.WORLD)
    return functional.broadcast(x, 1, distributed.group.WORLD) + 1, sent + 1


@functional_program
def coalesced(x: torch.Tensor) -> Any:
    return sum(functional.all_reduce_coalesced([x, x + 1], "sum", distributed.group.WORLD))


@functional_program
def with_gradients(x: torch.Tensor) -> Any:
    group = distributed.group.WORLD
    gathered = all_gather_single_autograd(x, 0, group)
    scattered = reduce_scatter_single_autograd(x.exp(), "sum", 0, group)
    return gathered.sin().sum() + scattered.cos().sum() + functional.all_to_all_single_autograd(x, None, None, group).tanh()


@program
def all_reduce_in_place() -> Program:
    def run(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = x * 2
            distributed.all_reduce(y)
            distributed.all_reduce(y[0], op=distributed.ReduceOp.MAX, group=distributed.group.WORLD)
        return x * y
    return run


@program
def all_reduce_of_an_input() -> Program:
    def run(x: torch.Tensor) -> Any:
        distributed.all_reduce(x.data, async_op=False)
        return x + 1
    return run


@program
def gather_in_place() -> Program:
    def run(x: torch.Tensor) -> Any:
        out, parts = torch.zeros(4, 4), [torch.zeros(2, 4), torch.zeros(2, 4)]
        distributed.all_gather_into_tensor(out, x.detach())
        distributed.all_gather(parts, x.detach())
        return out.sum() * x + parts[0] * parts[1].sum()
    return run


@program
def scatter_in_place() -> Program:
    def run(x: torch.Tensor) -> Any:
        one, other, third = torch.zeros(1, 4), torch.zeros(1, 4), torch.zeros(2, 4)
        distributed.reduce_scatter_tensor(one, x.data)
        distributed.reduce_scatter_tensor(other, x.data, op=distributed.ReduceOp.SUM)
        distributed.reduce_scatter(third, [x.detach() * 2, x.detach() * 3])
        return one.sum() * x + other + third
    return run


@program
def exchange_in_place() -> Program:
    def run(x: torch.Tensor) -> Any:
        out, chosen = torch.zeros(2, 4), torch.zeros(2, 4)
        distributed.all_to_all_single(out, x.data)
        distributed.all_to_all_single(chosen, x.data, [1, 1], [1, 1])
        return out * x + chosen
    return run


@program
def broadcast_in_place() -> Program:
    group = distributed.new_group(WORLD)

    def run(x: torch.Tensor) -> Any:
        y = x.detach() * 2
        z = y + 1
        distributed.broadcast(y, src=1)
        distributed.broadcast(z, group_src=0, group=group)
        return y + z
    return run


@program
def in_place_in_the_order_of_memory() -> Program:
    """Dense tensors whose dimensions are in another order, and on one rank in yet another."""
    def run(x: torch.Tensor) -> Any:
        turned = (x.detach() * 2).t()
        image = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last) * x.detach().sum()
        other = turned.clone() if distributed.get_rank() else turned.contiguous()
        distributed.all_reduce(turned)
        distributed.broadcast(image, 1)
        distributed.all_reduce(other)
        return turned, image, other
    return run


@program
def reductions_together() -> Program:
    """The block's calls are made when it is left: what reads in it reads the old numbers, and a tensor that is given twice is
    summed once."""
    def run(x: torch.Tensor) -> Any:
        a, b = x.detach() * 2, x.detach()[0] + 1
        with distributed._coalescing_manager():
            distributed.all_reduce(a)
            before = a + 1
            distributed.all_reduce(b)
            distributed.all_reduce(a)
            a.mul_(3)
        return before, a * x, b
    return run


@program
def parts_together() -> Program:
    def run(x: torch.Tensor) -> Any:
        whole, other = torch.zeros(4, 4), torch.zeros(8)
        with distributed._coalescing_manager(distributed.group.WORLD, async_ops=True) as calls:
            distributed.all_gather_into_tensor(whole, x.detach())
            distributed.all_gather_into_tensor(other, x.detach()[0])
        calls.wait()
        one, two = torch.zeros(2, 4), torch.zeros(4)
        with distributed._coalescing_manager(distributed.group.WORLD, None, True) as calls:
            distributed.reduce_scatter_tensor(one, whole * 2)
            distributed.reduce_scatter_tensor(two, other + 1)
        with distributed._coalescing_manager():
            pass
        calls.wait()
        return whole * x.sum(), other, one, two
    return run


@program
def facts_about_groups() -> Program:
    group = distributed.new_group(WORLD)

    def run(x: torch.Tensor) -> Any:
        if not distributed.is_available() or not distributed.is_initialized() or distributed.get_backend() != "gloo":
            return x
        numbers = [distributed.get_rank(), distributed.get_world_size(), distributed.get_global_rank(group, 1)]
        numbers += [group.size(), group.rank(), len(group.group_name), distributed.get_rank(group)]
        return [x * number for number in (*numbers, *distributed.get_process_group_ranks(group))]
    return run


@program
def facts_about_meshes() -> Program:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("rows", "columns"))

    def run(x: torch.Tensor) -> Any:
        assert mesh.mesh_dim_names == ("rows", "columns")
        assert isinstance(mesh, DeviceMesh)
        rows = mesh["rows"]
        numbers = (mesh.size(), mesh.size(0), mesh.ndim, rows.get_local_rank(), mesh.get_rank(), mesh.get_coordinate()[0],
                   rows.get_group().size(), mesh.shape[0])
        gathered = all_gather_single(x, 0, (mesh, 0)), functional.all_reduce(x, "sum", rows)
        distributed.all_reduce(y := x.detach() + 1, group=mesh.get_group("rows"))
        return [x * number for number in numbers], gathered, y
    return run


class Copied(torch.autograd.Function):
    """What goes to every rank: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        whole = gradient.clone()
        distributed.all_reduce(whole)
        return whole


class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        largest = x.clone()
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
        return largest

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        sent = gradient.contiguous()
        distributed.broadcast(sent, src=1)
        return sent


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts, whole = [torch.empty_like(x) for _ in WORLD], x.new_empty(4, 4)
        distributed.all_gather(parts, x.contiguous())
        distributed.all_gather_into_tensor(whole, x.contiguous())
        return torch.cat(parts), whole

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        ones, others = first.new_empty(2, 4), first.new_empty(2, 4)
        distributed.reduce_scatter_tensor(ones, first.contiguous())
        distributed.reduce_scatter(others, list(second.contiguous().chunk(2)))
        return ones + others


class Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        distributed.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(gradient)
        distributed.all_to_all_single(out, gradient.contiguous(), [1, 1], [1, 1])
        return out


@program
def functions_of_autograd() -> Program:
    def run(x: torch.Tensor) -> Any:
        first, second = Gathered.apply(Copied.apply(x.sin()) * 3)
        return Reduced.apply(x * 2) * Exchanged.apply(x).cos() * first.exp().sum(), second.square()
    return run


def rows_of_this_rank() -> torch.Tensor:
    return torch.arange(8.0).view(2, 4) + 10 * distributed.get_rank()


def plain(value: Any) -> list[torch.Tensor]:
    """The results as tensors that were waited for."""
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf.wait() if isinstance(leaf, functional.AsyncCollectiveTensor) else leaf for leaf in leaves]


def outcome(run: Program) -> Any:
    """What two calls give, what they leave in the argument, and the gradient."""
    x = rows_of_this_rank().requires_grad_()
    seen = [each.detach().clone() for _ in range(2) for each in plain(run(x))]
    sum((each.sum() for each in plain(run(x)) if each.requires_grad), x.sum()).backward()
    return seen, x.detach(), x.grad


def run_each_program(backend: str) -> dict[str, int]:
    graphs = {}
    for name, make in PROGRAMS.items():
        run = make()
        counter = CompileCounterWithBackend(backend)
        with fxjit.config.patch(error_on_recompile=True):
            found = outcome(fxjit.compile(run, backend=counter, fullgraph=True))
        torch.testing.assert_close(found, outcome(run), msg=lambda text, name=name: f"{name}: {text}")
        graphs[name] = counter.frame_count
    return graphs


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_programs_are_one_graph_and_give_what_they_give_in_eager(ranks, backend):
    for graphs in ranks(run_each_program, backend):
        assert graphs == dict.fromkeys(PROGRAMS, 1)


def break_at(call: Callable[[torch.Tensor], Any]) -> int:
    """The graphs of a program around a call that breaks the graph; its results are eager's."""
    def run(x: torch.Tensor) -> Any:
        y = x.detach() * 2
        call(y)
        return y + x

    fxjit.reset()
    counter = CompileCounterWithBackend("eager")
    torch.testing.assert_close(outcome(fxjit.compile(run, backend=counter)), outcome(run))
    return counter.frame_count


def start_and_wait(y: torch.Tensor) -> None:
    work = distributed.all_reduce(y, async_op=True)
    work.wait()


def send_and_receive(y: torch.Tensor) -> None:
    if distributed.get_rank() == 0:
        distributed.send(y, 1)
    else:
        distributed.recv(y, 0)


WEIGHT = torch.ones(4, requires_grad=True)


def reduce_what_autograd_sees(y: torch.Tensor) -> None:
    distributed.all_reduce(y * WEIGHT)


def reduce_complex_numbers(y: torch.Tensor) -> None:
    distributed.all_reduce(torch.complex(y, y))


def broadcast_columns(y: torch.Tensor) -> None:
    """Gloo sends what lies in memory from the first element on."""
    distributed.broadcast(torch.stack([y, y], -1)[..., 0], 0)


def reduce_in_two_ways_together(y: torch.Tensor) -> None:
    """Gloo reduces all of them in the way of the first."""
    with distributed._coalescing_manager():
        distributed.all_reduce(y)
        distributed.all_reduce(y[0], op=distributed.ReduceOp.MAX)


def wait_for_all(y: torch.Tensor) -> None:
    distributed.barrier()


CALLS_THAT_BREAK = (wait_for_all, start_and_wait, send_and_receive, reduce_what_autograd_sees,
                    reduce_complex_numbers, broadcast_columns, reduce_in_two_ways_together)


def break_at_each() -> list[int]:
    return [break_at(call) for call in CALLS_THAT_BREAK]


def test_what_a_graph_cannot_hold_runs_between_two(ranks):
    # Before the last the graph is broken, too: its block is entered for real.
    assert ranks(break_at_each) == [[2, 2, 2, 2, 2, 2, 3]] * 2


def calls_that_stay_behind() -> list[list[int]]:
    """How many calls still wait where the block of their manager has ended in an exception: compiled, and in eager."""
    def run(x: torch.Tensor) -> None:
        with distributed._coalescing_manager():
            distributed.all_reduce(x)
            raise ValueError

    found, waiting = [], distributed.distributed_c10d._world.pg_coalesce_state
    for each in (fxjit.compile(run, backend="eager"), run):
        with pytest.raises(ValueError):
            each(rows_of_this_rank())
        found.append([len(calls) for calls in waiting.values()])
        waiting.clear()
    return found


def test_a_block_of_collectives_that_raises_leaves_them_waiting(ranks):
    assert ranks(calls_that_stay_behind) == [[[1], [1]]] * 2


def calls_of_two_kinds_together() -> list[str]:
    """Before torch 2.12 all are taken for calls of the first kind."""
    def run(x: torch.Tensor) -> torch.Tensor:
        with distributed._coalescing_manager():
            distributed.all_reduce(x)
            distributed.all_gather_into_tensor(torch.zeros(4, 4), x)
        return x

    found = []
    for each in (fxjit.compile(run, backend="eager"), run):
        try:
            found.append(repr(each(rows_of_this_rank())))
        except RuntimeError as error:
            found.append(str(error))
    return found


def test_calls_of_two_kinds_in_a_block_are_what_they_are_in_eager(ranks):
    for found, expected in ranks(calls_of_two_kinds_together):
        assert found == expected


def exchange_of_varying_rows(backend: str) -> int:
    """The graphs of exchanges whose equal parts vary in size."""
    def run(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        distributed.all_to_all_single(out, x)
        return out * 2

    counter = CompileCounterWithBackend(backend)
    compiled = fxjit.compile(run, backend=counter, fullgraph=True)
    for rows in (2, 4, 6, 8):
        x = torch.arange(3.0 * rows).view(rows, 3) + distributed.get_rank()
        torch.testing.assert_close(compiled(x), run(x))
    return counter.frame_count


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_equal_parts_of_varying_sizes_share_a_graph(ranks, backend):
    assert ranks(exchange_of_varying_rows, backend) == [2, 2]


class SentToOne(Copied):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        whole = gradient.clone()
        distributed.reduce(whole, 0)
        distributed.broadcast(whole, 0)
        return whole


@fxjit.allow_in_graph
def sent_to_one(x: torch.Tensor) -> torch.Tensor:
    return SentToOne.apply(x)


def backward_without_functional_form() -> int:
    def run(x: torch.Tensor) -> Any:
        return (sent_to_one(x * 2) * 3).sin()

    torch.testing.assert_close(outcome(fxjit.compile(run, backend="aot_eager")), outcome(run))
    return fxjit.counters["run_as_captured"]["collective-in-place"]


def test_a_graph_whose_backward_communicates_unseen_runs_as_captured(ranks):
    assert ranks(backward_without_functional_form) == [1, 1]


class Started(torch.autograd.Function):
    """A sum that is under way, as redistributed tensors are."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        started = functional.all_reduce(x, "sum", distributed.group.WORLD)
        return started.view_as(started)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def take_what_is_under_way(backend: str) -> list[bool]:
    """Whether the input and the weight got gradients, which are eager's, as the results are."""
    def run(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return (x * weight).sin(), x.view(-1)[:3] + 1

    def steps(run: Any) -> Any:
        x, weight = rows_of_this_rank().requires_grad_(), torch.ones(4, requires_grad=True)
        for _ in range(2):
            results = run(Started.apply(x), weight)
            sum(each.sum() for each in results).backward()
        with torch.no_grad():
            return plain([*results, *run(Started.apply(x), weight)]), x.grad, weight.grad

    found = steps(fxjit.compile(run, backend=backend))
    torch.testing.assert_close(found, steps(run))
    return [gradient is not None and bool(gradient.any()) for gradient in found[1:]]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_gradients_reach_an_input_that_is_under_way(ranks, backend):
    assert ranks(take_what_is_under_way, backend) == [[True, True]] * 2


def ask_under_two_groups(folder: str) -> list[int]:
    """A program's answers under this group of two and under a group of one, and the graphs that it took."""
    counter = CompileCounterWithBackend("eager")

    @fxjit.compile(backend=counter)
    def run(x: torch.Tensor) -> torch.Tensor:
        size = distributed.get_world_size() if distributed.is_initialized() else 0
        return x * size

    seen = [int(run(torch.ones(()))), int(run(torch.ones(()))), counter.frame_count]
    rank = distributed.get_rank()
    distributed.destroy_process_group()
    seen.append(int(run(torch.ones(()))))
    distributed.init_process_group("gloo", store=distributed.FileStore(f"{folder}/alone{rank}", 1), rank=0, world_size=1)
    return [*seen, int(run(torch.ones(()))), counter.frame_count]


def test_answers_are_those_of_the_present_group(ranks, tmp_path):
    assert ranks(ask_under_two_groups, str(tmp_path)) == [[2, 2, 1, 0, 1, 3]] * 2


def order_of_calls() -> list[str]:
    """The calls of a native graph in which a gather has a product to overlap with."""
    def run(x: torch.Tensor, y: torch.Tensor) -> Any:
        gathered = all_gather_single(x, 0, distributed.group.WORLD)
        reduced = functional.all_reduce(y @ y.t(), "sum", distributed.group.WORLD)
        return gathered @ y, reduced + 1

    arguments = torch.ones(32, 32), torch.ones(32, 32)
    with tempfile.TemporaryDirectory() as folder, fxjit.config.patch(debug_dir=folder):
        torch.testing.assert_close(fxjit.compile(run, backend="native")(*arguments), tuple(plain(run(*arguments))))
        (text,) = [path.read_text() for path in Path(folder).rglob("*output_code*")]
    return re.findall(r"all_gather|all_reduce|wait_tensor|gemm", text.rpartition("def call")[2])


def test_a_graph_waits_just_before_it_needs_the_result(ranks):
    for calls in ranks(order_of_calls):
        assert calls == ["all_gather", "gemm", "all_reduce", "wait_tensor", "gemm", "wait_tensor"]
