"""Recurrent layers in compiled graphs: one operator, eager's results and gradients, and no step of them in any graph."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxjit
from fxjit import config
from fxjit.counters import counters

LAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm, projected": (nn.LSTM, {"proj_size": 2, "num_layers": 2}),
    "lstm, no bias, batch first": (nn.LSTM, {"bias": False, "batch_first": True, "num_layers": 2}),
    "lstm, both ways, dropout": (nn.LSTM, {"bidirectional": True, "num_layers": 3, "dropout": 0.5}),
    "gru, both ways, dropout": (nn.GRU, {"bidirectional": True, "num_layers": 2, "dropout": 0.5, "batch_first": True}),
    "gru, no bias": (nn.GRU, {"bias": False, "num_layers": 2}),
    "tanh, both ways": (nn.RNN, {"bidirectional": True, "bias": False}),
}
BACKENDS = ("aot_eager", "native")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    torch.manual_seed(0)
    with config.patch(small_graphs_as_captured=False):
        yield


class Model(nn.Module):
    """The layer between pointwise work, with everything that it gives."""

    def __init__(self, name: str, dtype: torch.dtype, width: int = 5) -> None:
        super().__init__()
        kind, options = LAYERS[name]
        self.layer = kind(4, width, dtype=dtype, **options)

    def forward(self, x: torch.Tensor, states: Any = None) -> list[torch.Tensor]:
        out, last = self.layer(x * 2, states)
        return [out, *(each + 1 for each in (last if isinstance(last, tuple) else (last,)))]


def results(call: Any, model: nn.Module, *args: Any) -> list[Any]:
    """What a call gives, the strides of it, and the gradients of the parameters and of all tensors that want one."""
    torch.manual_seed(3)
    found = call(*args)
    loss = sum((each.float() * torch.arange(each.numel()).view(each.shape).float().cos()).sum() for each in found)
    sources = [*model.parameters(), *(each for each in torch.utils._pytree.tree_leaves(args) if each is not None)]
    sources = [each for each in sources if each.requires_grad]
    return [*(each.detach() for each in found), *torch.autograd.grad(loss, sources)]


def assert_same(found: list[Any], wanted: list[Any], **tolerance: float) -> None:
    torch.testing.assert_close(found, wanted, **tolerance)
    assert [each.stride() for each in found] == [each.stride() for each in wanted]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend,dtype,name", [
    *(("native", torch.float32, name) for name in LAYERS), *(("aot_eager", torch.float64, name) for name in LAYERS),
    *(("native", torch.bfloat16, name) for name in ("lstm", "gru, both ways, dropout", "lstm, projected", "relu")),
])  # fmt: skip
def test_layers_are_eagers(backend: str, name: str, dtype: torch.dtype) -> None:
    model = Model(name, dtype)
    compiled = fxjit.compile(model, backend=backend, fullgraph=True)
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {}
    for grad in (True, False):
        x = torch.randn(6, 3, 4, dtype=dtype, requires_grad=grad)
        assert_same(results(compiled, model, x), results(model, model, x), **tolerance)
        with torch.no_grad():
            assert_same(compiled.eval()(x), model.eval()(x), **tolerance)
        model.train()
    assert not counters["run_as_captured"]


@pytest.mark.parametrize("name", ["lstm", "gru, both ways, dropout", "relu"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_states_that_are_given_have_gradients(backend: str, name: str) -> None:
    model = Model(name, torch.float64)
    compiled = fxjit.compile(model, backend=backend, fullgraph=True)
    rows = model.layer.num_layers * (2 if model.layer.bidirectional else 1)
    states: Any = [torch.randn(rows, 3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    states = tuple(states) if name == "lstm" else states[0]
    x = torch.randn(*((3, 6) if model.layer.batch_first else (6, 3)), 4, dtype=torch.float64)
    assert_same(results(compiled, model, x, states), results(model, model, x, states))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_graph_grows_with_the_steps(backend: str, kind: Any) -> None:
    """And what is traced once serves every optimizer step."""
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), kind(4, 5, 2))
    models = plain, copy.deepcopy(plain)
    compiled = fxjit.compile(models[1], backend=backend, fullgraph=True)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for _ in range(3):
        x = torch.randn(300, 2, 4)
        losses = []
        for call, optimizer in zip((plain, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(call(x)[0].square().mean())
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(list(models[1].parameters()), list(plain.parameters()))
    assert counters["frames"]["ok"] == 1
    assert sum(counters["native"].values()) < 100


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_is_walked_as_often_as_it_is_kept(backend: str) -> None:
    model = Model("gru", torch.float64)
    compiled = fxjit.compile(model, backend=backend)
    x = torch.randn(6, 3, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for call in (model, compiled):
        loss = call(x)[0].sin().sum()
        found.append([torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(3)])
    torch.testing.assert_close(found[1], found[0])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss = compiled(x)[0].sin().sum()
        with torch.no_grad():
            model.layer.weight_hh_l0.mul_(2)
        loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives(backend: str) -> None:
    model = Model("gru", torch.float64)
    compiled = fxjit.compile(model, backend=backend)
    x = torch.randn(6, 3, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for call in (model, compiled):
        grad, = torch.autograd.grad(call(x)[0].sin().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), x))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_may_be_written_to(backend: str) -> None:
    """They are not what the derivative is made of."""
    model = Model("gru", torch.float64)
    compiled = fxjit.compile(lambda x: model.layer(x)[0], backend=backend)
    x = torch.randn(6, 3, 4, dtype=torch.float64)
    found = []
    for call in (lambda x: model.layer(x)[0], compiled):
        out = call(x)
        out.mul_(3)
        found.append(torch.autograd.grad(out.sum(), list(model.parameters())))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", ["gru", "lstm, projected", "relu"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_gives_eagers_types(backend: str, name: str) -> None:
    model = Model(name, torch.float32)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)  # type: ignore[no-any-return]  # a module's call is untyped

    x = torch.randn(6, 3, 4)
    compiled = fxjit.compile(call, backend=backend, fullgraph=True)
    assert_same(results(compiled, model, x), results(call, model, x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("copies", [False, True], ids=["as it is", "copied"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_on_saved_tensors(backend: str, copies: bool) -> None:
    """A copy of what stands for the layer's autograd graph is not the graph: the layer runs again."""
    model = Model("gru", torch.float64)
    compiled = fxjit.compile(model, backend=backend)
    x = torch.randn(6, 3, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for call in (model, compiled):
        call(x)
        with torch.autograd.graph.saved_tensors_hooks(lambda each: each.clone() if copies else each, lambda each: each):
            loss = call(x)[0].sin().sum()
        found.append(torch.autograd.grad(loss, [x, *model.parameters()]))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_run_as_captured(backend: str) -> None:
    model = Model("gru", torch.float64)

    def call(x: torch.Tensor) -> Any:
        return torch.func.grad(lambda each: model(each)[0].sin().sum())(x)

    x = torch.randn(6, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(fxjit.compile(call, backend=backend)(x), call(x))


def test_wrong_sizes_are_refused_as_in_eager() -> None:
    model = Model("gru", torch.float32)
    compiled = fxjit.compile(model)
    for args in ((torch.randn(6, 3, 5),), (torch.randn(6, 3, 4), torch.randn(1, 2, 5)), (torch.randn(0, 3, 4),)):
        messages = []
        for call in (model, compiled):
            with pytest.raises(RuntimeError) as raised:
                call(*args)
            messages.append(str(raised.value))
        assert messages[0] == messages[1]
