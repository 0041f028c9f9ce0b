"""A training step: what torch.optim does is captured whole, with eager's parameters afterwards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxjit

KINDS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adamw_foreach": (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "foreach": False, "amsgrad": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
    "adadelta": (torch.optim.Adadelta, {}),
}


def train(kind, compiler):
    """Losses and parameters after four steps."""
    cls, options = KINDS[kind]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = cls(model.parameters(), **options)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    step = compiler(step)
    losses = [step(torch.randn(6, 4), torch.arange(6) % 2) for _ in range(4)]
    return losses, [each.detach() for each in model.parameters()]


@pytest.mark.parametrize(("kind", "backend"), [*((kind, "eager") for kind in KINDS), ("adamw", "aot_eager"),
                                               ("momentum", "aot_eager"), ("adamw_foreach", "native")])
def test_a_step_is_a_graph_before_and_a_graph_after_backward(kind, backend):
    expected = train(kind, lambda fn: fn)
    inner = fxjit.lookup_backend(backend)
    graphs = []

    def counting(gm, inputs):
        graphs.append(gm)
        return inner(gm, inputs)

    actual = train(kind, lambda fn: fxjit.compile(fn, backend=counting))
    torch.testing.assert_close(actual, expected)
    assert len(graphs) <= 4, "two, and two more once the optimizer has made its state"


def epoch(compiler):
    """Losses and parameters after loops over batches, in which two models are trained with a scheduler."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)) for width in (8, 6)]
    optimizers = [torch.optim.Adam(model.parameters(), 0.1) for model in models]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) for optimizer in optimizers]

    def train(batches):
        losses = []
        for x, y in batches:
            for model, optimizer, scheduler in zip(models, optimizers, schedulers, strict=True):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                scheduler.step()
                losses.append(loss.item())
        return losses

    train = compiler(train)
    batches = [(torch.randn(6, 4), torch.arange(6) % 2) for _ in range(4)]
    losses = [train(batches) for _ in range(2)]
    return losses, [each.detach() for model in models for each in model.parameters()]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_loop_that_runs_as_it_stands_has_its_models_and_steps_compiled(backend):
    expected = epoch(lambda fn: fn)
    inner = fxjit.lookup_backend(backend)
    operators = []

    def counting(gm, inputs):
        operators.append({str(node.target) for node in gm.graph.nodes})
        return inner(gm, inputs)

    actual = epoch(lambda fn: fxjit.compile(fn, backend=counting))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    layers = [names for names in operators if any("linear" in name for name in names)]
    steps = [names for names in operators if any("lerp_" in name for name in names)]
    assert len(layers) == 2 and 4 <= len(steps) <= 6, "two models; steps that make state, and then others of two learning rates"


def test_what_torch_runs_in_a_loop_is_no_error_where_the_users_functions_would_be():
    expected = epoch(lambda fn: fn)
    for setting in ("error_on_recompile", "fail_on_recompile_limit_hit"):
        fxjit.reset()
        with fxjit.config.patch({setting: True, "recompile_limit": 1}):
            torch.testing.assert_close(epoch(lambda fn: fxjit.compile(fn, backend="eager")), expected, rtol=1e-5, atol=1e-5)


def test_the_same_layers_in_a_model_that_is_captured_whole_are_one_graph():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    graphs = fxjit.testing.CompileCounter()
    compiled = fxjit.compile(model, backend=graphs)
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), model(x))
    assert graphs.frame_count == 1


HALF = [(torch.float32,) * 3, (torch.bfloat16,) * 3, (torch.float32, torch.bfloat16, torch.bfloat16)]


@pytest.mark.parametrize("dtypes", HALF, ids=["float32", "bfloat16", "mixed"])
@pytest.mark.parametrize("name", ["addcdiv", "addcdiv_", "addcmul", "addcmul_"])
def test_a_factor_that_is_a_tensor_stays_in_the_graph(name, dtypes):
    def fn(x, a, b, factor):
        return getattr(x + 1, name)(a, b, value=-factor)

    args = [(torch.rand(300) + 1).to(dtype) for dtype in dtypes] + [torch.tensor(0.3)]
    fxjit.reset()
    torch.testing.assert_close(fxjit.compile(fn, fullgraph=True, backend="eager")(*args), fn(*args))


@pytest.mark.parametrize("dtypes", HALF, ids=["float32", "bfloat16", "mixed"])
@pytest.mark.parametrize("name", ["add", "add_", "sub", "sub_"])
def test_a_step_size_that_is_a_tensor_stays_in_the_graph(name, dtypes):
    def fn(x, a, factor):
        return getattr(x + 1, name)(a, alpha=factor), getattr(x + 1, name)(2, alpha=factor)

    args = [(torch.rand(300) + 1).to(dtype) for dtype in dtypes[:2]] + [torch.tensor(0.3)]
    fxjit.reset()
    torch.testing.assert_close(fxjit.compile(fn, fullgraph=True, backend="eager")(*args), fn(*args))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_forgetting_gradients_is_part_of_the_graph(set_to_none):
    """torch keeps its own compiler away from `zero_grad`."""

    def f(model, optimizer, x):
        optimizer.zero_grad(set_to_none)
        return model(x).square().mean()

    results = []
    for run in (f, fxjit.compile(f, backend="eager", fullgraph=True)):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer, x = torch.optim.SGD(model.parameters(), 0.1), torch.randn(3, 4)
        model(x).sum().backward()
        loss = run(model, optimizer, x)
        results.append([loss.detach(), *(each.grad for each in model.parameters())])
    torch.testing.assert_close(results[1], results[0])
