"""With `fullgraph=True`, numbers out of tensors and sizes that depend on data are in the graph, as with torch.compile."""

from __future__ import annotations

import math

import pytest
import torch
from tests.differential import assert_same

import fxjit

BACKENDS = ("eager", "aot_eager", "native")


def checked(x):
    count = int(x.sum().item())
    torch._check(count >= 0)
    torch._check(count <= 20)
    return torch.zeros(count) + x.sum()


def sliced(x):
    count = x.max().long().item()
    torch._check(count >= 0)
    torch._check(count <= 6)
    return x.reshape(-1)[:count]


def asserted(x):
    assert x.sum().item() > 0
    return x * 2


def kept(x):
    history = []
    history.append(x.sum().item())
    return history, x * 2


PROGRAMS = {
    "item": lambda x: x * x.sum().item(),
    "returned": lambda x: (x * 2, x.sum().item(), x[0].tolist(), x.sum().item() == 15),
    "converted": lambda x: (float(x.sum()), int(x.sum()), x * float(x.sum()), bool(x.sum() > 2)),
    "function of a number": lambda x: x * math.sqrt(x.sum().item()),
    "limit": lambda x: x.clamp(0, x.max().item()),
    "index": lambda x: x[int(x[0, 1])],
    "checked": checked, "sliced": sliced, "asserted": asserted, "kept": kept,
    "size": lambda x: torch.zeros(int(x.max().item())),
    "nonzero": lambda x: (x.nonzero() + 1, torch.where(x > 2), torch.argwhere(x > 2)),
    "mask": lambda x: x[x > 2] * 2,
    "unique": lambda x: torch.unique(x),
    "repeats": lambda x: torch.repeat_interleave(x, torch.tensor([1, 2]), dim=0),
    "rows": lambda x: [row * 2 for row in torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 1, 2])).unbind()],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_one_graph(name, backend):
    program = PROGRAMS[name]
    compiled = fxjit.compile(program, backend=backend, fullgraph=True)
    for x in (torch.arange(6.0).reshape(2, 3), torch.tensor([[1.0, 0.0, 2.0], [3.0, 4.0, 1.0]])):
        assert_same(program(x.clone()), compiled(x.clone()), rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_assertion_about_a_number_fails_as_in_eager(backend):
    compiled = fxjit.compile(asserted, backend=backend, fullgraph=True)
    compiled(torch.ones(2, 3))
    with pytest.raises(AssertionError):
        compiled(-torch.ones(2, 3))


@pytest.mark.parametrize("program", [
    lambda x: x + 1 if x.sum().item() > 3 else x,
    lambda x: [x for _ in range(int(x[0, 2]))],
    lambda x: {int(x[0, 1]): x},
    lambda x: x + 1 if bool(x.sum() > 100) else x - 1,
])
def test_decisions_on_them_break_the_graph(program):
    x = torch.arange(6.0).reshape(2, 3)
    with pytest.raises(fxjit.errors.Unsupported) as error:
        fxjit.compile(program, backend="eager", fullgraph=True)(x)
    assert error.value.reason_id == "data-symbol"
    assert_same(program(x), fxjit.compile(program, backend="eager")(x))


def test_without_fullgraph_they_break_it():
    counter = fxjit.testing.CompileCounter()
    compiled = fxjit.compile(lambda x: (x + 1).clamp(min=x.sum().item()), backend=counter)
    x = torch.ones(3)
    assert_same((x + 1).clamp(min=3.0), compiled(x))
    assert counter.frame_count == 2 and counter.op_count == 3


def written_by_a_check(x):
    found = torch.full((), 0.0)
    torch._amp_foreach_non_finite_check_and_unscale_([x.clone()], found, torch.ones(()))
    return found.item()


def written_in_a_list(x):
    found, of_a_tensor = torch.zeros(()), torch.tensor(0.0)
    torch._foreach_add_([x.clone(), found, of_a_tensor], [x, x.sum(), x.mean()])
    return found.item(), of_a_tensor.item()


def statistics(x):
    mean, variance = torch.zeros(2), torch.ones(2)
    torch.nn.functional.batch_norm(x.reshape(-1, 2), mean, variance, training=True)
    return mean.tolist(), (variance * 2)[0].item()


def read_before_and_behind(x):
    found = torch.zeros(())
    before = found.item()
    torch._foreach_add_([found], [x.sum()])
    return before, found.item(), (found + 1).item()


def written_through_a_view(x):
    found = torch.zeros(2)
    torch._foreach_copy_([found[1:]], [x[:1]])
    return found.tolist(), found[0].item()


def of_a_running_average(x):
    scale, tracker = torch.full((), 4.0), torch.zeros((), dtype=torch.int32)
    torch._amp_update_scale_(scale, tracker, (x.sum() * 0 + 1), 2.0, 0.5, 2)
    return scale.item(), tracker.item()


@pytest.mark.parametrize("function", [written_by_a_check, written_in_a_list, statistics, read_before_and_behind,
                                      written_through_a_view, of_a_running_average])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_numbers_that_an_operator_wrote_without_a_count(function, backend):
    fxjit.reset()
    compiled = fxjit.compile(function, backend=backend)
    for x in (torch.arange(1.0, 5.0), torch.tensor([1.0, 2.0, 3.0, float("inf")])):
        assert str(compiled(x)) == str(function(x))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_scaler_leaves_out_the_step_of_gradients_that_are_not_finite(backend):
    def parameters(compiler):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.0)

        @compiler
        def step(x):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            return scaler.get_scale()

        scales = [step(torch.ones(3, 4) * factor) for factor in (1.0, 2.0, float("inf"), 1.0)]
        return scales, list(model.parameters())

    fxjit.reset()
    torch.testing.assert_close(parameters(lambda step: fxjit.compile(step, backend=backend)), parameters(lambda step: step))


def test_truths_of_numbers_that_are_passed_on_and_lists_of_sizes_that_vary():
    """`bool(x.item())` that nothing decides on, and `x.tolist()` of a tensor whose size varies, where scalars are captured."""
    with fxjit.config.patch(capture_scalar_outputs=True):
        for given in (torch.tensor([0.5]), torch.tensor([0]), torch.tensor([True])):
            compiled = fxjit.compile(lambda x: (x + 1, bool(x.item()), bool(x)), backend="eager", fullgraph=True)
            assert compiled(given)[1:] == (bool(given), bool(given)) and compiled(given * 0)[1:] == (False, False)
        doubled = fxjit.compile(lambda x: [x.tolist() * 2], backend="eager", fullgraph=True)
        for size in (2, 3, 4):
            x = torch.arange(size * 2).reshape(size, 2)
            assert doubled(x) == [x.tolist() * 2]
