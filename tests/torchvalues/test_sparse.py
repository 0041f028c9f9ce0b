"""Sparse tensors, given and made in the frame: operators on them are in the graph; what depends on their elements breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager, assert_same_call
from torch import nn

import fxjit

pytestmark = [pytest.mark.filterwarnings("ignore:Sparse"), pytest.mark.filterwarnings("ignore:.*beta state")]
BACKENDS = ["eager", "aot_eager", "native"]


def coo(nodes: int = 4, seed: int = 0) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    places = torch.randint(0, nodes, (2, 6), generator=drawn)
    return torch.sparse_coo_tensor(places, torch.rand(6, generator=drawn), (nodes, nodes)).coalesce()


def csr() -> torch.Tensor:
    return coo().to_sparse_csr()


def csc() -> torch.Tensor:
    return coo().to_sparse_csc()


def uncoalesced() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[1, 1, 0], [2, 2, 3]]), torch.tensor([1.0, 2.0, 3.0]), (4, 4))


Operation = Callable[[torch.Tensor, torch.Tensor], Any]
#: `a` is sparse, `x` is dense.
PRODUCTS: list[Operation] = [
    lambda a, x: a @ (x * 2) + 1,
    lambda a, x: torch.mm(a, x),
    lambda a, x: torch.matmul(a, x),
    lambda a, x: torch.sparse.mm(a, x).relu(),
    lambda a, x: torch.mv(a, x[:, 0]),
    lambda a, x: torch.sparse.addmm(x, a, x, beta=0.5, alpha=2.0),
]
BOTH: list[Operation] = [
    *PRODUCTS,
    lambda a, x: (a.to_dense() + x).sum(),
    lambda a, x: (a * 2, a / 3, -a, abs(a), a.neg()),
    lambda a, x: (a + a, a * a),
    lambda a, x: (a.t(), a.transpose(0, 1), a.T),
    lambda a, x: (a.double(), a.to(torch.float64).to_dense(), a.clone(), a.detach()),
    lambda a, x: (torch.sin(a), a.sqrt(), torch.relu(a)),
    lambda a, x: (a.sum(), torch.zeros_like(a), torch.empty_like(a).shape),
    lambda a, x: a.to_sparse(),
    lambda a, x: (a.shape, a.size(), a.size(0), a.ndim, a.dim(), a.dtype, a.device, a.layout, a.is_sparse, a.is_sparse_csr,
                  a.requires_grad, a.sparse_dim(), a.dense_dim(), a.numel(), a.is_floating_point(), a.is_leaf),
    lambda a, x: (a, [a, a], a is a, isinstance(a, torch.Tensor), torch.is_tensor(a)),
]  # fmt: skip
OF_COO: list[Operation] = [
    lambda a, x: torch.spmm(a, x) + torch.dsmm(a, x),
    lambda a, x: (a.coalesce(), a.is_coalesced(), a.coalesce() is a),
    lambda a, x: torch.sparse.sum(a, 1).to_dense() + torch.sparse.sum(a, dim=0).to_dense(),
    lambda a, x: torch.sparse.sum(a),
    lambda a, x: torch.sparse.softmax(a, 1).to_dense(),
    lambda a, x: torch.sparse.mm(a, a).to_dense(),
    lambda a, x: (a.to_sparse_csr() @ x, torch.cat([a, a * 2]).to_dense()),
    lambda a, x: (x + a, a * x, x.sparse_mask(a.coalesce())),
    lambda a, x: a.index_select(0, torch.tensor([2, 0])).to_dense(),
    lambda a, x: (torch.hspmm(a, x).to_dense(), a.norm(), a.pow(2)),
]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [coo, csr, csc, uncoalesced])
@pytest.mark.parametrize("operation", range(len(BOTH)))
def test_operators_of_any_layout(operation: int, make: Callable[[], torch.Tensor], backend: str) -> None:
    _assert_one_graph_or_eagers_exception(BOTH[operation], make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [coo, uncoalesced])
@pytest.mark.parametrize("operation", range(len(OF_COO)))
def test_operators_of_coordinates(operation: int, make: Callable[[], torch.Tensor], backend: str) -> None:
    _assert_one_graph_or_eagers_exception(OF_COO[operation], make, backend)


def _assert_one_graph_or_eagers_exception(operation: Operation, make: Callable[[], torch.Tensor], backend: str) -> None:
    """One graph, or eager's exception."""
    x = torch.randn(4, 4)
    try:
        operation(make(), x)
    except (RuntimeError, NotImplementedError):
        assert_same_as_eager(operation, make=lambda: (make(), x.clone()), backend=backend, fullgraph=False)
    else:
        assert_same_as_eager(operation, make=lambda: (make(), x.clone()), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [coo, csr])
@pytest.mark.parametrize("operation", range(len(PRODUCTS)))
def test_gradients_of_the_dense_operand(operation: int, make: Callable[[], torch.Tensor], backend: str) -> None:
    x = torch.randn(4, 4)
    assert_same_as_eager(PRODUCTS[operation], make=lambda: (make(), x.clone().requires_grad_()), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_the_sparse_operand(backend: str) -> None:
    x = torch.randn(4, 4)
    assert_same_as_eager(lambda a, x: torch.sparse.mm(a, torch.tanh(x)).exp(), backend=backend,
                         make=lambda: (coo().requires_grad_(), x.clone().requires_grad_()))


def made_of_indices(places: torch.Tensor, numbers: torch.Tensor, x: torch.Tensor) -> Any:
    matrix = torch.sparse_coo_tensor(places, numbers.exp(), (4, 4))
    return torch.sparse.mm(matrix, x) + matrix.coalesce().to_dense(), matrix.detach()


def made_of_dense(places: torch.Tensor, numbers: torch.Tensor, x: torch.Tensor) -> Any:
    return (x * 2).to_sparse().to_dense() + 1, x.to_sparse_csr(), torch.sparse.mm(x.to_sparse(), x) + 1


def made_compressed(places: torch.Tensor, numbers: torch.Tensor, x: torch.Tensor) -> Any:
    rows = torch.tensor([0, 1, 1, 2, 3])
    return torch.sparse_csr_tensor(rows, places[1][:3].contiguous(), numbers[:3].contiguous(), (4, 4)) @ x


def out_of_range(places: torch.Tensor, numbers: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.sparse_coo_tensor(places + 3, numbers, (4, 4)).to_dense() + x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [made_of_indices, made_of_dense, made_compressed, out_of_range])
def test_made_in_the_frame(fn: Callable[..., Any], backend: str) -> None:
    places, numbers, x = torch.tensor([[0, 1, 3], [1, 2, 0]]), torch.rand(3), torch.randn(4, 4)
    for wanted in (False, True):
        make = lambda wanted=wanted: (places.clone(), numbers.clone().requires_grad_(wanted), x.clone())  # noqa: E731
        # Fake tensors of torch 2.13 refuse compressed ones that are made of others.
        assert_same_as_eager(fn, make=make, backend=backend, fullgraph=fn is not made_compressed)


def elements(a: torch.Tensor, x: torch.Tensor) -> Any:
    return a.values() * 2


def places(a: torch.Tensor, x: torch.Tensor) -> Any:
    row, column = (a * 2).coalesce().indices()
    return x[row] - x[column], a._nnz(), a._values() + 1


def parts_change(a: torch.Tensor, x: torch.Tensor) -> Any:
    numbers, (row, column) = a.values(), a.indices()
    before = a.to_dense()
    numbers.mul_(2)
    return numbers + x[row, column], a.to_dense() - before, numbers, row, numbers.requires_grad, numbers.is_leaf


def compressed(a: torch.Tensor, x: torch.Tensor) -> Any:
    return a.to_sparse_csr().crow_indices() + 1


def written(a: torch.Tensor, x: torch.Tensor) -> Any:
    a.mul_(2)
    return a.to_dense() + x


def written_by_operator(a: torch.Tensor, x: torch.Tensor) -> Any:
    a *= 3
    return a @ x


def written_to_dense(a: torch.Tensor, x: torch.Tensor) -> Any:
    x.add_(a)
    return x * 2


def zeroed(a: torch.Tensor, x: torch.Tensor) -> Any:
    b = a * 2
    b.zero_()
    return b, a


def with_attribute(a: torch.Tensor, x: torch.Tensor) -> Any:
    a.nodes = 4
    return a @ x, a.nodes


def as_text(a: torch.Tensor, x: torch.Tensor) -> Any:
    return str(a * 2), len(a), [row.to_dense() for row in a]


def without_elements(a: torch.Tensor, x: torch.Tensor) -> Any:
    return "some" if (a * 0).coalesce()._nnz() else "none"


class Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a)
        return torch.mm(a, x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, ctx.saved_tensors[0].t() @ gradient


def by_function(a: torch.Tensor, x: torch.Tensor) -> Any:
    return Propagate.apply(a, x * 2) + 1


def mapped(a: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.vmap(lambda column: torch.mv(a, column), in_dims=1)(x)


def told_apart(a: torch.Tensor, x: torch.Tensor) -> Any:
    return {a: 1, x: 2}[a], a in [x, a]


BREAKS = [places, parts_change, compressed, written, written_by_operator, written_to_dense, zeroed, with_attribute,
          as_text, without_elements, by_function, mapped]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [*BREAKS, told_apart])
def test_what_elements_tell_is_eagers(fn: Callable[..., Any], backend: str) -> None:
    x = torch.randn(4, 4)
    make = lambda: (coo(), x.clone().requires_grad_(fn is by_function))  # noqa: E731
    assert_same_as_eager(fn, make=make, backend=backend, fullgraph=False)


@pytest.mark.parametrize("fn", BREAKS)
def test_what_elements_tell_breaks_the_graph(fn: Callable[..., Any]) -> None:
    with pytest.raises(fxjit.errors.Unsupported):
        fxjit.compile(fn, backend="eager", fullgraph=True)(coo(), torch.randn(4, 4, requires_grad=fn is by_function))


def facts(a: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.sparse.mm(a * 2, x) + 1, a.is_coalesced(), a.coalesce() is a, a.dtype, (a + a).detach(), a.requires_grad


def test_what_a_trace_relied_on_is_guarded() -> None:
    compiled = fxjit.compile(facts, backend="eager")
    unlike = [coo(), coo(seed=1), uncoalesced(), coo().double(), coo().requires_grad_(), torch.zeros(4, 4).to_sparse(), coo(3),
              coo() * 2, coo(5), coo()]  # fmt: skip
    for given in unlike:
        x = torch.randn(given.shape[0], 3, dtype=given.dtype)
        assert_same_call(facts, compiled, make=lambda given=given, x=x: (given.detach().clone().requires_grad_(
            given.requires_grad), x.clone()))


@pytest.mark.compiles
def test_other_elements_do_not_compile_again() -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(PRODUCTS[0], backend="eager")
    for seed in range(4):
        given, x = coo(seed=seed), torch.randn(4, 2)
        assert torch.equal(compiled(given, x), PRODUCTS[0](given, x))
    assert fxjit.counters["frames"]["ok"] == 1 and not fxjit.counters["graph_break"]


def test_sizes_that_vary_break_the_graph() -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(PRODUCTS[0], backend="eager")
    for nodes in (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13):
        given, x = coo(nodes), torch.randn(nodes, 2)
        assert torch.equal(compiled(given, x), PRODUCTS[0](given, x))
    assert fxjit.counters["frames"]["ok"] < 6, "not one for each size"


class Network(nn.Module):
    """Graph convolutions, with the matrix as an argument and as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("matrix", coo(seed=7))

    def forward(self, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(torch.spmm(a, self.first(x)))
        with torch.no_grad():
            scale = torch.sparse.mm(self.matrix, torch.ones(4, 1)) + 1
        return torch.log_softmax(torch.sparse.mm(self.matrix, self.second(x) / scale), 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_network_is_one_capture(backend: str) -> None:
    x = torch.randn(4, 4)
    assert_same_as_eager(Network(), make=lambda: (coo(), x.clone()), backend=backend, rtol=1e-5)


def test_a_backend_is_given_what_stands_between() -> None:
    seen: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        seen.append(gm)
        return gm

    def model(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(torch.sparse.mm(a, torch.relu(torch.spmm(a, x * 2)) + 1), 1)

    a, x = coo(), torch.randn(4, 4)
    torch.testing.assert_close(fxjit.compile(model, backend=backend, fullgraph=True)(a, x), model(a, x))
    assert len(seen) == 3 and not any(
        isinstance(value, torch.Tensor) and value.layout is not torch.strided
        for gm in seen for node in gm.graph.nodes for value in [node.meta.get("example_value")])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.compiles
def test_what_a_sparse_tensor_is_made_of_is_in_the_graph(backend: str) -> None:
    def rows(a: torch.Tensor, x: torch.Tensor) -> Any:
        numbers, places = a.values(), a.indices()
        weights = torch.softmax(numbers * x[places[0], 0] + 1, 0)
        return torch.zeros(4).index_add(0, places[1], weights), numbers * 2

    x = torch.randn(4, 4)
    assert_same_as_eager(rows, make=lambda: (coo(), x.clone().requires_grad_()), backend=backend, rtol=1e-5)
    assert_same_as_eager(rows, make=lambda: (coo().requires_grad_(), x.clone()), backend=backend, fullgraph=False, rtol=1e-5)


def dropped(a: torch.Tensor, x: torch.Tensor) -> Any:
    """LightGCN's dropout of edges."""
    places, numbers = a._indices().t(), a._values()
    keep = (torch.rand(len(numbers)) + 0.6).int().bool()
    return torch.sparse.mm(torch.sparse.FloatTensor(places[keep].t(), numbers[keep] / 0.6, a.size()), x)


def weighted(a: torch.Tensor, x: torch.Tensor) -> Any:
    row, column = a.indices()
    weights = (x[row] * x[column]).sum(1)
    return torch.sparse.mm(torch.sparse.FloatTensor(a.indices(), weights, a.size()), x), a._nnz()


def parts_written(a: torch.Tensor, x: torch.Tensor) -> Any:
    first, second = a.values(), a.values()
    first.add_(1)
    return second * 2, a.to_dense() + x


def parts_of_two(a: torch.Tensor, x: torch.Tensor) -> Any:
    return a.values() + a.indices()[0], a.values() is a.values(), a.indices(), a @ x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [dropped, weighted, parts_written, parts_of_two])
def test_parts_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    x = torch.randn(4, 4)
    make = lambda: (coo(), x.clone().requires_grad_())  # noqa: E731
    assert_same_as_eager(fn, make=make, backend=backend, fullgraph=fn in (weighted, parts_of_two), rtol=1e-5)


def test_elements_whose_number_varies() -> None:
    """The number of elements is a size of their indices and values."""
    def fn(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        row, column = a.indices()
        return torch.zeros(4).index_add(0, row, a.values() * x[column])

    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    for count in (3, 5, 7, 9):
        places = torch.stack([torch.arange(count) % 4, torch.arange(count) // 4])
        a, x = torch.sparse_coo_tensor(places, torch.rand(count), (4, 4)).coalesce(), torch.randn(4)
        assert torch.equal(compiled(a, x), fn(a, x))
    assert fxjit.counters["stats"]["unique_graphs"] <= 2


def test_parts_of_uncoalesced_ones_raise_as_in_eager() -> None:
    def fn(a: torch.Tensor, x: torch.Tensor) -> Any:
        return a.values() + 1

    a = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (4, 4))
    with pytest.raises(RuntimeError, match="uncoalesced"):
        fxjit.compile(fn, backend="eager")(a, torch.ones(4))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_a_sparse_tensor_is_made_of_as_an_argument(backend: str) -> None:
    def scaled(numbers: torch.Tensor, places: torch.Tensor) -> Any:
        numbers += 1
        return numbers * 2, numbers[places[0]], numbers, numbers.view(-1), places

    for make in (lambda: (coo().values(), coo().indices()), lambda: (csr().values(), csr().col_indices()[None]),
                 lambda: (torch.arange(3.0), torch.tensor([[0, 1], [1, 2]]))):
        assert_same_as_eager(scaled, make=make, backend=backend)
    a = coo()
    kept = a.clone()
    assert_same_as_eager(lambda numbers: numbers.mul_(2), make=lambda: (a.values(),), backend=backend, calls=1)
    assert torch.equal(a.to_dense(), kept.to_dense() * 4), "once in eager, once compiled"
