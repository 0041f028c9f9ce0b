"""The programs of `--known`: what once took more breaks than under torch.compile, as users of these packages write it.

Packed sequences, sparse tensors, recorded warnings, managers entered by an `ExitStack`, callbacks out of compiled extensions,
and classes of packages that compute their attributes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.utils import rnn

from benchmarks.library_programs import of_function, of_model
from benchmarks.programs import Arguments, Builder, Program

KNOWN: dict[str, Builder] = {}
_NUMBERS = itertools.count()


def known(builder: Builder) -> Builder:
    KNOWN[builder.__name__] = builder
    return builder


# -- packed sequences --------------------------------------------------------------------------------------------------


def _padded(batch: int, width: int = 8, length: int = 7) -> Arguments:
    lengths = torch.tensor(sorted((1 + random.randrange(length) for _ in range(batch)), reverse=True))
    lengths[0] = length
    return {"x": torch.randn(batch, length, width), "lengths": lengths}


class PackedTagger(nn.Module):
    """Words of sentences of several lengths through a recurrent layer, as tutorials have it."""

    def __init__(self, layer: type[nn.RNNBase], enforce_sorted: bool, **options: Any) -> None:
        super().__init__()
        self.layer = layer(8, 6, batch_first=True, **options)
        self.head = nn.Linear(12 if options.get("bidirectional") else 6, 3)
        self.enforce_sorted = enforce_sorted

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.enforce_sorted)
        given, _ = self.layer(packed)
        padded, _ = rnn.pad_packed_sequence(given, batch_first=True)
        return self.head(padded)


@known
def packed_lstm() -> Program:
    return of_model(PackedTagger(nn.LSTM, True), _padded, (4, 5, 6))


@known
def packed_gru() -> Program:
    return of_model(PackedTagger(nn.GRU, False, num_layers=2, bidirectional=True), _padded, (4, 5, 6))


@known
def packed_last_state() -> Program:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(20, 8)
            self.layer = nn.LSTM(8, 6, batch_first=True)
            self.head = nn.Linear(6, 2)

        def forward(self, ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
            packed = rnn.pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
            _, (hidden, _) = self.layer(packed)
            return self.head(hidden[-1])

    def inputs(batch: int) -> Arguments:
        return {"ids": torch.randint(0, 20, (batch, 7)), "lengths": [1 + (3 * each) % 7 for each in range(batch)]}

    return of_model(Classifier(), inputs, (4, 5, 6))


@known
def packed_by_words() -> Program:
    """A packed sequence made outside, whose words alone go through a layer."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 5)

        def forward(self, packed: rnn.PackedSequence) -> torch.Tensor:
            data = torch.relu(self.layer(packed.data))
            again = rnn.PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
            return rnn.pad_packed_sequence(again, batch_first=True)[0]

    def inputs(batch: int) -> Arguments:
        given = _padded(batch)
        return {"packed": rnn.pack_padded_sequence(given["x"], given["lengths"], batch_first=True, enforce_sorted=False)}

    return of_model(Words(), inputs, (4, 5, 6))


# -- sparse tensors ----------------------------------------------------------------------------------------------------


@known
def sparse_and_back() -> Program:
    return of_function(lambda x: (x * 2).to_sparse().to_dense() + 1, lambda batch: {"x": torch.relu(torch.randn(batch, 4))})


def _adjacency(nodes: int, layout: str = "coo") -> torch.Tensor:
    edges = torch.cat([torch.randint(0, nodes, (2, 3 * nodes)), torch.arange(nodes).repeat(2, 1)], 1)
    made = torch.sparse_coo_tensor(edges, torch.rand(edges.shape[1]), (nodes, nodes)).coalesce()
    return made.to_sparse_csr() if layout == "csr" else made


class SparseGcn(nn.Module):
    """Graph convolutions by products with a sparse matrix, as the first implementations have it."""

    def __init__(self, product: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)
        self.product = product

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.product(adjacency, self.first(x)))
        return torch.log_softmax(self.product(adjacency, self.second(x)), 1)


def _graph_of(nodes: int, layout: str = "coo") -> Arguments:
    return {"x": torch.randn(nodes, 8), "adjacency": _adjacency(nodes, layout)}


@known
def gcn_sparse() -> Program:
    return of_model(SparseGcn(torch.spmm), _graph_of, (10, 12, 14))


@known
def gcn_sparse_mm() -> Program:
    return of_model(SparseGcn(torch.sparse.mm), _graph_of, (10, 12, 14))


@known
def gcn_csr() -> Program:
    return of_model(SparseGcn(torch.matmul), lambda nodes: _graph_of(nodes, "csr"), (10, 12, 14))


@known
def sparse_made_inside() -> Program:
    def propagate(x: torch.Tensor, edges: torch.Tensor, weights: torch.Tensor) -> Any:
        matrix = torch.sparse_coo_tensor(edges, weights, (x.shape[0], x.shape[0]))
        return torch.sparse.mm(matrix, x) + matrix.coalesce().to_dense() @ x

    def inputs(nodes: int) -> Arguments:
        return {"x": torch.randn(nodes, 4), "edges": torch.randint(0, nodes, (2, 3 * nodes)), "weights": torch.rand(3 * nodes)}

    return of_function(propagate, inputs, (10, 12, 14))


@known
def sparse_buffer() -> Program:
    """A sparse matrix that the module keeps, as recommenders and mesh networks do."""

    class Propagation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("matrix", _adjacency(12))
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            layers = [x]
            for _ in range(3):
                layers.append(torch.sparse.mm(self.matrix, self.layer(layers[-1])))
            return torch.stack(layers).mean(0)

    return of_model(Propagation(), lambda width: {"x": torch.randn(12, 4) * width}, (2, 3, 4))


@known
def ppr() -> Program:
    """Personalised page rank, by power iteration until it no longer moves."""

    def rank(adjacency: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        degree = torch.sparse.sum(adjacency, 1).to_dense().clamp(min=1e-6)
        scores = start
        for _ in range(20):
            following = 0.85 * torch.sparse.mm(adjacency.t(), (scores / degree).unsqueeze(1)).squeeze(1) + 0.15 * start
            if (following - scores).abs().sum() < 1e-3:
                return following
            scores = following
        return scores

    def inputs(nodes: int) -> Arguments:
        start = torch.zeros(nodes)
        start[0] = 1
        return {"adjacency": _adjacency(nodes), "start": start}

    return of_function(rank, inputs, (10, 12, 14))


# -- state -------------------------------------------------------------------------------------------------------------


@known
def recorded_warnings() -> Program:
    def checked(x: torch.Tensor) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if x.shape[0] > 2:
                warnings.warn("many rows", UserWarning, stacklevel=2)
            y = torch.tanh(x)
        return y * len(caught), [str(each.message) for each in caught]

    return of_function(checked, lambda batch: {"x": torch.randn(batch, 4)})


@known
def managers_by_stack() -> Program:
    def several(x: torch.Tensor, deterministic: bool = True) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            if deterministic:
                stack.enter_context(torch.random.fork_rng(devices=[]))
                torch.manual_seed(0)
            stack.enter_context(torch.no_grad())
            y = x + torch.randn_like(x)
        return y * 2

    return of_function(several, lambda batch: {"x": torch.randn(batch, 4)})


@known
def saved_in_a_dict() -> Program:
    """Hooks of saved tensors that keep more than a tensor: quantised, with the scale."""

    def pack(x: torch.Tensor) -> Any:
        if not x.is_floating_point():
            return x, None
        scale = x.detach().abs().amax() / 127 + 1e-9
        return (x.detach() / scale).round().to(torch.int8), scale

    def unpack(packed: Any) -> torch.Tensor:
        values, scale = packed
        return values if scale is None else values.float() * scale

    def block(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return (x.sin() * x).exp().sum()

    return of_function(block, lambda batch: {"x": torch.randn(batch, 4, requires_grad=True)}, needs_grad=True)


# -- hooks and backward ------------------------------------------------------------------------------------------------


def _small_cnn() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


@known
def gradcam() -> Program:
    """A class activation map, with the gradient of one layer's output taken by a hook."""

    class GradCam:
        def __init__(self, model: nn.Module, layer: nn.Module) -> None:
            self.model, self.layer = model, layer
            self.activations: Any = None
            self.gradients: Any = None

        def keep(self, module: nn.Module, given: Any, output: torch.Tensor) -> None:
            self.activations = output
            output.register_hook(self.keep_gradient)

        def keep_gradient(self, gradient: torch.Tensor) -> None:
            self.gradients = gradient

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            handle = self.layer.register_forward_hook(self.keep)
            scores = self.model(x)
            handle.remove()
            self.model.zero_grad()
            scores.max(1).values.sum().backward()
            weights = self.gradients.mean((2, 3), keepdim=True)
            return torch.relu((weights * self.activations).sum(1)).detach()

    model = _small_cnn().eval()
    return of_function(GradCam(model, model[2]), lambda batch: {"x": torch.randn(batch, 3, 8, 8)}, needs_grad=True)


@known
def qat_dynamic() -> Program:
    from torch.ao.quantization import quantize_dynamic

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    quantised = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return of_function(quantised, lambda batch: {"input": torch.randn(batch, 8)})


@known
def tqdm_loop() -> Program:
    from tqdm import tqdm

    def train(x: torch.Tensor) -> torch.Tensor:
        weight = torch.ones(4)
        for step in tqdm(range(3), disable=False, leave=False):
            weight = weight - 0.1 * (x @ weight).mean() * (step + 1)
        return weight

    return of_function(train, lambda batch: {"x": torch.randn(batch, 4)})


@known
def tqdm_with_postfix() -> Program:
    from tqdm.auto import trange

    def train(x: torch.Tensor) -> torch.Tensor:
        weight = torch.ones(4)
        with trange(3, leave=False, mininterval=10.0) as bar:
            for step in bar:
                loss = (x @ weight).pow(2).mean()
                weight = weight - 0.1 * loss * (step + 1)
                bar.set_postfix(loss=loss.item())
        return weight

    return of_function(train, lambda batch: {"x": torch.randn(batch, 4)})


# -- callbacks out of extensions ---------------------------------------------------------------------------------------


@known
def dm_tree() -> Program:
    import tree

    def normalised(batch: dict[str, Any]) -> Any:
        scaled = tree.map_structure(lambda x: (x - x.mean()) / (x.std() + 1e-5), batch)
        named = tree.map_structure_with_path(lambda path, x: x * len(path), scaled)
        total = sum(each.sum() for each in tree.flatten(named))
        return tree.map_structure(lambda a, b: a + b * total, scaled, named), len(tree.flatten(batch))

    def inputs(batch: int) -> Arguments:
        return {"batch": {"image": torch.randn(batch, 4), "state": [torch.randn(batch, 2), (torch.randn(batch),)]}}

    return of_function(normalised, inputs)


@known
def rustworkx_paths() -> Program:
    import rustworkx

    def distances(weights: torch.Tensor) -> torch.Tensor:
        graph = rustworkx.PyDiGraph()
        nodes = graph.add_nodes_from(list(range(weights.shape[0])))
        for one in nodes:
            for other in nodes:
                if one != other:
                    graph.add_edge(one, other, float(abs(one - other) + 1))
        lengths = rustworkx.dijkstra_shortest_path_lengths(graph, 0, lambda weight: weight)
        order = sorted(lengths, key=lambda node: lengths[node])
        return weights[order].cumsum(0) * torch.tanh(weights[order])

    return of_function(distances, lambda batch: {"weights": torch.randn(batch, 4)}, (4, 5, 6))


@known
def python_box() -> Program:
    from box import Box

    def step(config: Any, x: torch.Tensor) -> torch.Tensor:
        settings = Box(config)
        settings.extra = {"bias": 1.0}
        y = x * settings.scale + settings.extra.bias
        for width in settings.layers:
            y = torch.tanh(y) * width
        if "clip" in settings and settings.clip.enabled:
            y = y.clamp(-settings.clip.limit, settings.clip.limit)
        return y

    config = {"scale": 2.0, "layers": [1.0, 0.5], "clip": {"enabled": True, "limit": 0.4}}
    return of_function(step, lambda batch: {"config": config, "x": torch.randn(batch, 4)})


@known
def python_box_given() -> Program:
    from box import Box

    settings = Box({"scale": 2.0, "layers": [1.0, 0.5], "clip": {"enabled": True, "limit": 0.4}})

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * settings.scale
        for width in settings.layers:
            y = torch.tanh(y) * width
        return y.clamp(-settings.clip.limit, settings.clip.limit) if settings.clip.enabled else y

    return of_function(step, lambda batch: {"x": torch.randn(batch, 4)})


@known
def simulated_annealing() -> Program:
    from simanneal import Annealer

    class Fit(Annealer):  # type: ignore[misc]
        def __init__(self, state: torch.Tensor, target: torch.Tensor) -> None:
            super().__init__(state)
            self.target = target

        def move(self) -> None:
            self.state = self.state + 0.1 * torch.randn(self.state.shape)

        def energy(self) -> float:
            return float((self.state - self.target).pow(2).sum())

    def fit(target: torch.Tensor) -> Any:
        problem = Fit(torch.zeros_like(target), target)
        problem.copy_strategy = "method"
        problem.state.copy = problem.state.clone
        problem.steps, problem.updates, problem.Tmax, problem.Tmin = 5, 0, 2.0, 0.1
        problem.copy_state = lambda state: state.clone()
        return problem.anneal()

    return of_function(fit, lambda batch: {"target": torch.randn(batch)})


@known
def cma_sphere() -> Program:
    import cma

    def minimise(x: torch.Tensor) -> Any:
        search = cma.CMAEvolutionStrategy([1.0] * x.shape[0], 0.5, {"verbose": -9, "seed": 3, "popsize": 4})
        for _ in range(2):
            candidates = search.ask()
            search.tell(candidates, [float(((torch.as_tensor(each, dtype=x.dtype) - x) ** 2).sum()) for each in candidates])
        return torch.as_tensor(search.result.xbest)

    return of_function(minimise, lambda batch: {"x": torch.randn(batch)})


@known
def zuko_cnf() -> Program:
    import zuko

    flow = zuko.flows.CNF(2, 1, hidden_features=(16,))

    def likelihood(x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return -flow(context).log_prob(x).mean()

    return of_function(likelihood, lambda batch: {"x": torch.randn(batch, 2), "context": torch.randn(batch, 1)})


@known
def pyro_svi() -> Program:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO
    from pyro.optim import Adam

    own = f"program {next(_NUMBERS)}"  # parameters are kept by name for all of the process

    def model(x: torch.Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mean, 1.0), obs=x)

    def guide(x: torch.Tensor) -> None:
        loc = pyro.param(f"{own}: loc", torch.tensor(0.0))
        scale = pyro.param(f"{own}: scale", torch.tensor(1.0), constraint=dist.constraints.positive)
        pyro.sample("mean", dist.Normal(loc, scale))

    svi = SVI(model, guide, Adam({"lr": 0.01}), Trace_ELBO())
    return Program(svi.step, lambda batch: {"x": torch.randn(batch)}, (8, 10, 12), needs_grad=True)


@known
def torchmetrics_update() -> Program:
    import torchmetrics

    metric = torchmetrics.MeanSquaredError()

    def update(preds: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        metric.reset()
        metric.update(preds, target)
        return metric.compute()

    return of_function(update, lambda batch: {"preds": torch.randn(batch), "target": torch.randn(batch)}, (8, 10, 12))


@known
def nested_decision() -> Program:
    """A decision on data in a function called by one that is called: one break for a reader."""

    def thinned(x: torch.Tensor) -> torch.Tensor:
        while (x > 1).any():
            x = x * 0.5
        return x

    def outer(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(thinned(torch.sin(x) * 3)) + math.pi

    return of_function(outer, lambda batch: {"x": torch.randn(batch, 16)})
