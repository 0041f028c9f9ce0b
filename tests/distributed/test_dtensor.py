"""Distributed tensors (DTensor) and tensor parallel in graphs: results, placements and gradients are eager's on every rank, in
as few graphs as with torch.compile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor

import fxjit
from fxjit import torch_compat
from fxjit.testing import CompileCounterWithBackend

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
#: What makes a program on the rank, where there is a mesh: the program, and what it is given.
Maker = Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]
ONE_GRAPH: dict[str, Maker] = {}
TWO_GRAPHS: dict[str, Maker] = {}


def one_graph(make: Maker) -> Maker:
    ONE_GRAPH[make.__name__] = make
    return make


def two_graphs(make: Maker) -> Maker:
    TWO_GRAPHS[make.__name__] = make
    return make


def tensors() -> Any:
    """torch.distributed.tensor, which takes seconds to import: the ranks need it, and not who collects tests."""
    import torch.distributed.tensor.parallel

    return torch.distributed.tensor


def rows(mesh: Any, *shape: int, dim: int = 0) -> Any:
    """A trained tensor, sharded along a dimension."""
    return tensors().distribute_tensor(torch.randn(*shape), mesh, [tensors().Shard(dim)]).requires_grad_()


def replicated(mesh: Any, *shape: int) -> Any:
    return tensors().distribute_tensor(torch.randn(*shape), mesh, [tensors().Replicate()]).requires_grad_()


def local(*shape: int) -> torch.Tensor:
    """Another tensor on each rank."""
    return (torch.randn(*shape) + distributed.get_rank()).requires_grad_()


# -- arithmetic --------------------------------------------------------------------------------------------------------


@one_graph
def arithmetic(mesh: Any) -> Any:
    return lambda x, w: ((x @ w).relu() * 2 + x.sum(), x.mean(0), torch.softmax(x, -1)), (
        rows(mesh, 4, 4), rows(mesh, 4, 4, dim=1))


@one_graph
def conversions(mesh: Any) -> Any:
    return lambda x: (x.clone().detach(), torch.ones_like(x) + x, x.new_zeros(4, 4), x.double(), x.to(torch.bfloat16)), (
        rows(mesh, 4, 4),)


@one_graph
def writes(mesh: Any) -> Any:
    def run(x: Any) -> Any:
        x.add_(1)
        x.mul_(x.device_mesh.size())
        return x + 1
    return run, (rows(mesh, 4, 4).detach(),)


@one_graph
def views(mesh: Any) -> Any:
    return lambda x: (x.view(2, 2, 4), x.t(), x[1:3], x.chunk(2, 1)), (replicated(mesh, 4, 4),)


@one_graph
def views_of_a_shard(mesh: Any) -> Any:
    return lambda x: (x.t(), x.unsqueeze(0), x + 1), (rows(mesh, 4, 4),)


@one_graph
def decisions_on_placements(mesh: Any) -> Any:
    Shard, Replicate = tensors().Shard, tensors().Replicate

    def run(x: Any, y: Any) -> Any:
        by_rows = x.placements == (Shard(0),) and x.placements[0].is_shard() and isinstance(x.placements[0], Shard)
        if by_rows and x.placements[0].dim == 0 and Replicate() in y.placements and x.placements != y.placements:
            return x * x.device_mesh.size() + x.size(0) * x.to_local().size(0), y._local_tensor * 2
        return x
    return run, (rows(mesh, 4, 4), replicated(mesh, 4, 4).detach())


@one_graph
def factories(mesh: Any) -> Any:
    def run(x: Any) -> Any:
        made = [make(4, 4, device_mesh=mesh, placements=[tensors().Shard(0)]) for make in (tensors().zeros, tensors().ones)]
        return x + made[0] * made[1] + tensors().full((4, 4), 2.0, device_mesh=mesh, placements=x.placements)
    return run, (rows(mesh, 4, 4),)


# -- between plain and distributed tensors -----------------------------------------------------------------------------


@one_graph
def from_local(mesh: Any) -> Any:
    make, Shard, Replicate = tensors().DTensor.from_local, tensors().Shard, tensors().Replicate

    def run(x: torch.Tensor) -> Any:
        whole = make(x.cos(), mesh, [Shard(-1)], shape=torch.Size([4, 8]), stride=(8, 1))
        return make(x * 2, mesh, [Shard(0)]).sin(), make(x, mesh), make(x + 1, mesh, [Replicate()], run_check=False), whole
    return run, (local(4, 4),)


@one_graph
def to_local(mesh: Any) -> Any:
    def run(x: Any, y: Any) -> Any:
        return (x * 2).to_local() + 1, (y * 2).to_local(grad_placements=[tensors().Partial()]), x._local_tensor.detach() * 3
    return run, (rows(mesh, 4, 4), replicated(mesh, 4, 4))


@one_graph
def redistribute(mesh: Any) -> Any:
    Shard, Replicate = tensors().Shard, tensors().Replicate

    def run(x: Any) -> Any:
        whole = (x * 2).redistribute(mesh, [Replicate()])
        columns = x.redistribute(x.device_mesh, placements=[Shard(-1)], async_op=True)
        return whole.sum(0).redistribute(placements=[Shard(0)]).to_local() + 1, columns.exp(), x.sum(0).full_tensor()
    return run, (rows(mesh, 4, 4),)


@one_graph
def mapped_over_parts(mesh: Any) -> Any:
    from torch.distributed.tensor.experimental import local_map

    Shard, Replicate = tensors().Shard, tensors().Replicate
    product = local_map(lambda a, b: a @ b, out_placements=[Shard(0)], in_placements=([Shard(0)], [Replicate()]),
                        device_mesh=mesh)
    return lambda a, b: product(a * 2, b), (rows(mesh, 4, 4), replicated(mesh, 4, 4))


@two_graphs
def scatter_from_one_rank(mesh: Any) -> Any:
    return lambda x: tensors().distribute_tensor(x.detach() * 2, mesh, [tensors().Shard(0)]).sin(), (local(4, 4),)


@two_graphs
def check_that_ranks_agree(mesh: Any) -> Any:
    return lambda x: tensors().DTensor.from_local(x * 2, mesh, run_check=True).sin(), (local(4, 4),)


# -- tensor parallel ---------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """A language model of one block, whose heads are on several ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(8, 4), nn.LayerNorm(4)
        self.query, self.key, self.value, self.project = (nn.Linear(4, 4) for _ in range(4))
        self.head = nn.Linear(4, 8, bias=False)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        h = self.words(index)
        x = self.norm(h)
        batch, length, _ = x.shape
        q, k, v = (each(x).view(batch, length, -1, 2).transpose(1, 2) for each in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)
        return self.head(h + self.project(mixed))


def parallel_attention(mesh: Any, **head: Any) -> nn.Module:
    parallel, Replicate = tensors().parallel, tensors().Replicate
    plan = {name: parallel.ColwiseParallel() for name in ("query", "key", "value")}
    plan |= {"words": parallel.RowwiseParallel(input_layouts=Replicate()), "project": parallel.RowwiseParallel()}
    return parallel.parallelize_module(Attention(), mesh, plan | {"head": parallel.ColwiseParallel(**head)})


def words() -> torch.Tensor:
    return torch.randint(0, 8, (2, 4))


@one_graph
def columns_and_rows(mesh: Any) -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    parallel = tensors().parallel
    parallel.parallelize_module(model, mesh, {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()})
    return model, (torch.randn(4, 4).requires_grad_(),)


@one_graph
def along_the_sequence(mesh: Any) -> Any:
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.LayerNorm(4))
    parallel, Shard, Replicate = tensors().parallel, tensors().Shard, tensors().Replicate
    parallel.parallelize_module(model, mesh, {
        "0": parallel.SequenceParallel(), "1": parallel.ColwiseParallel(input_layouts=Shard(1)),
        "3": parallel.RowwiseParallel(output_layouts=Shard(1)), "4": parallel.SequenceParallel(use_local_output=True)})
    parallel.parallelize_module(model, mesh, parallel.PrepareModuleInput(
        input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True))
    return model, (torch.randn(2, 2, 4).requires_grad_(),)


@one_graph
def embedding_attention_and_head(mesh: Any) -> Any:
    return parallel_attention(mesh, output_layouts=tensors().Replicate()), (words(),)


@one_graph
def hooks_of_distribute_module(mesh: Any) -> Any:
    model, make = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), tensors().DTensor.from_local
    tensors().distribute_module(model, mesh, input_fn=lambda module, given, mesh: make(given[0], mesh, [tensors().Replicate()]),
                                output_fn=lambda module, result, mesh: result.to_local())
    return model, (torch.randn(4, 4).requires_grad_(),)


class WithLoss(nn.Module):
    """The loss of a model whose outputs are sharded by class."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.model = parallel_attention(mesh, use_local_output=False)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(index).flatten(0, 1), index.flatten())


@one_graph
def loss_by_class(mesh: Any) -> Any:
    return WithLoss(mesh), (words(),)


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def blocks_by_themselves(backend: str) -> int:
    """The graphs of divided blocks that are compiled one by one, which differ in nothing but the numbers of their hooks."""
    mesh, parallel = distributed.device_mesh.init_device_mesh("cpu", (2,)), tensors().parallel
    counter, seen = CompileCounterWithBackend(backend), []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*(Feed() for _ in range(5)))
        for block in model:
            parallel.parallelize_module(block, mesh, {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()})
        run = nn.Sequential(*(fxjit.compile(block, backend=counter) for block in model)) if compiles else model
        seen.append(outcome(run, (torch.arange(8.0).view(2, 4).requires_grad_(),), model))
    torch.testing.assert_close(seen[1][0], seen[0][0], rtol=1e-4, atol=1e-4)
    assert seen[1][1] == seen[0][1]
    return counter.frame_count


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_divided_blocks_that_are_compiled_one_by_one_share_a_graph(ranks, backend):
    assert ranks(blocks_by_themselves, backend) == [1, 1]


# -- the comparison ----------------------------------------------------------------------------------------------------


def part(value: Any) -> Any:
    """The part of a tensor that is on this rank."""
    value = value._local_tensor if isinstance(value, tensors().DTensor) else value
    return (value.wait() if isinstance(value, AsyncCollectiveTensor) else value).detach().clone()


def facts(value: Any) -> Any:
    """All that a tensor is beside its numbers. Graphs wait for collectives: their results are plain."""
    cls = torch.Tensor if isinstance(value, AsyncCollectiveTensor) else type(value)
    return cls, value.shape, value.stride(), value.dtype, value.requires_grad, getattr(value, "placements", None)


def outcome(run: Any, args: tuple[Any, ...], module: Any) -> tuple[list[torch.Tensor], list[Any]]:
    """What two calls give, what they leave in the arguments, and the gradients: parts and facts of each."""
    seen: list[Any] = []
    for _ in range(2):
        results = torch.utils._pytree.tree_leaves(run(*args))
        trained = [each for each in results if each.requires_grad]
        whole = [each.full_tensor() if isinstance(each, tensors().DTensor) else each for each in trained]
        if whole:
            sum((each * each).sum() for each in whole).backward()
        seen += results
    seen += [*args, *(module.parameters() if isinstance(module, nn.Module) else ())]
    seen += [each.grad for each in seen if each.is_leaf and each.grad is not None]
    return [*map(part, seen)], [*map(facts, seen)]


def outcomes(make: Maker, backend: str) -> tuple[Any, Any, int, dict[str, int]]:
    """Eager's outcome and the compiled program's, the graphs, and the rules by which some ran as captured."""
    mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
    block = tensors().parallel.loss_parallel if make is loss_by_class else contextlib.nullcontext
    found, counter = [], CompileCounterWithBackend(backend)
    for compiles in (False, True):
        torch.manual_seed(0)
        run, args = make(mesh)
        with block():
            found.append(outcome(fxjit.compile(run, backend=counter) if compiles else run, args, run))
    rules = dict(fxjit.counters["run_as_captured"])
    fxjit.reset()
    fxjit.counters.clear()
    return *found, counter.frame_count, rules


def run_all(programs: str, backend: str, graphs: int) -> None:
    for name, make in globals()[programs].items():
        expected, found, count, rules = outcomes(make, backend)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
        assert found[1] == expected[1], name
        assert count == graphs, f"{name} took {count} graphs"
        # Views of distributed tensors have no strides by which AOTAutograd makes them anew.
        assert rules == ({"wrapper-view": 1} if name.startswith("views") and backend != "eager" else {}), name


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_programs_are_one_graph_and_give_what_they_give_in_eager(ranks, backend):
    ranks(run_all, "ONE_GRAPH", backend, 1, seconds=300)


def test_what_talks_to_other_ranks_by_itself_runs_between_two_graphs(ranks):
    ranks(run_all, "TWO_GRAPHS", "eager", 2)


def graphs_of_changes() -> list[int]:
    """The graphs after calls with another placement, with an equal one on the same mesh, on another mesh, and where plain
    tensors count as replicated."""
    from torch.distributed.tensor.experimental import implicit_replication

    counter = CompileCounterWithBackend("eager")
    run = fxjit.compile(lambda x, where: (x * 2).redistribute(placements=where), backend=counter)
    mesh, other = (distributed.device_mesh.init_device_mesh("cpu", (2,)) for _ in range(2))
    x, Shard = torch.arange(16.0).view(4, 4), tensors().Shard
    found = []

    def call(mesh: Any, dim: int, target: int) -> None:
        result = run(tensors().distribute_tensor(x, mesh, [Shard(dim)], src_data_rank=None), (Shard(target),))
        assert result.placements == (Shard(target),)
        torch.testing.assert_close(result.full_tensor(), x * 2)
        found.append(counter.frame_count)

    for dim, target in ((0, 0), (0, 0), (1, 0), (1, 1)):
        call(mesh, dim, target)
    call(other, 0, 0)
    with implicit_replication():
        call(mesh, 0, 0)
    call(mesh, 1, 1)
    return found


def test_graphs_are_for_the_placements_the_mesh_and_the_dispatch_that_they_were_made_for(ranks):
    # Before torch 2.12 a tensor's mesh is a part of its metadata, which is compared: an equal mesh takes no graph of its own.
    is_a_part = torch_compat.release(torch.__version__) >= (2, 12)
    assert ranks(graphs_of_changes) == [[1, 1, 2, 3, 4, 5, 5] if is_a_part else [1, 1, 2, 3, 3, 4, 4]] * 2


def mask_outside_of_graphs() -> None:
    """An embedding whose result is reduced behind a break, before it, and in another function: the mask that it leaves in its
    placement is that of the running program."""
    index = words()
    for at in range(3):
        torch.manual_seed(0)
        model = parallel_attention(distributed.device_mesh.init_device_mesh("cpu", (2,)), output_layouts=tensors().Replicate())
        weight, given = model.words.weight, tensors().DTensor.from_local(index, model.words.weight.device_mesh)
        before = fxjit.counters["run_as_captured"]["returns-masked"]
        unreduced = fxjit.compile(F.embedding, backend="aot_eager")(given, weight) if at == 0 else F.embedding(given, weight)
        assert fxjit.counters["run_as_captured"]["returns-masked"] == before + (at == 0)

        def reduce(x: Any, at: int = at) -> Any:
            if at == 1:
                fxjit.graph_break()
            return x.redistribute(placements=[tensors().Replicate()]).to_local() * 2

        found = fxjit.compile(reduce, backend="aot_eager")(unreduced)
        expected = F.embedding(given, weight).redistribute(placements=[tensors().Replicate()]).to_local() * 2
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(fxjit.compile(model)(index), model(index))


def test_masks_of_sharded_embeddings_are_those_of_the_program(ranks):
    ranks(mask_outside_of_graphs)


def graphs_of_sizes(backend: str) -> int:
    """A trained distributed tensor whose rows vary, in the end divided unevenly: values, placements and gradients of each."""
    counter, mesh = CompileCounterWithBackend(backend), distributed.device_mesh.init_device_mesh("cpu", (2,))
    weight = replicated(mesh, 4, 4)

    def run(x: Any, weight: Any) -> Any:
        return (x @ weight).sin() * x.shape[0], x.sum(1)

    compiled = fxjit.compile(run, backend=counter)
    for size in (4, 6, 8, 12, 10, 7):
        seen = []
        for each in (run, compiled):
            torch.manual_seed(size)
            seen.append(outcome(each, (rows(mesh, size, 4), weight), None))
            weight.grad = None
        torch.testing.assert_close(seen[1][0], seen[0][0], rtol=1e-4, atol=1e-4)
        assert seen[1][1] == seen[0][1]
    return counter.frame_count


@pytest.mark.parametrize(("backend", "graphs"), [("eager", 2), ("native", 3)])
def test_a_distributed_tensor_of_varying_size_takes_a_second_graph_for_all_sizes(ranks, backend, graphs):
    """AOTAutograd's graph goes by whether the ranks' parts are equal: sizes that are divided unevenly take one of their own."""
    assert ranks(graphs_of_sizes, backend) == [graphs, graphs]
