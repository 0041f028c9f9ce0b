"""Recurrent layers by our own kernels: ATen's results and derivatives, no less exact, on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxjit
from fxjit import _C, config, tensor_shim
from fxjit.backends.aot.recurrent import KINDS, Layers, run_aten
from fxjit.backends.native.runtime.own_recurrent import GATES, is_supported, recurrent, run_own

pytestmark = pytest.mark.skipif(
    not tensor_shim.ensure() or not _C.program_can("recurrent"), reason="this processor has no AVX2"
)
#: layers, both ways, biases, batch first
SHAPES = [(1, False, True, False), (2, True, True, True), (1, True, False, False), (3, False, True, True)]
#: features, size, batch, steps: less than a vector, a few more, more rows than registers hold, one chain more than one, one row
SIZES = [(3, 2, 2, 4), (20, 33, 5, 7), (16, 48, 40, 3), (200, 230, 9, 4), (40, 64, 1, 9)]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def call_of(
    kind: str, sizes: tuple[int, int, int, int], options: tuple[int, bool, bool, bool] = SHAPES[0], wanted: Any = True,
    packed: bool = False, dropout: float = 0.0, dtype: torch.dtype = torch.float32,
) -> Layers:
    """A call on random numbers; `wanted`: of all tensors, or a list by tensor."""
    (features, size, batch, steps), (layers, both_ways, biases, batch_first) = sizes, options
    directions, gates = 2 if both_ways else 1, GATES[KINDS.index(kind)] * size
    lengths = [1 + (5 * i + 3) % steps if i else steps for i in range(batch)] if packed else [steps] * batch
    batch_sizes = torch.tensor([sum(length > step for length in lengths) for step in range(max(lengths))]) if packed else None
    if packed:
        x = torch.randn(sum(lengths), features)
    else:
        x = torch.randn(*((batch, steps) if batch_first else (steps, batch)), features)
    parameters = []
    for layer in range(layers):
        for _ in range(directions):
            wide = size * directions if layer else features
            parameters += [torch.randn(gates, wide) / wide**0.5, torch.randn(gates, size) / size**0.5]
            parameters += [torch.randn(gates), torch.randn(gates)] if biases else []
    states = [torch.randn(layers * directions, batch, size) for _ in range(2 if kind == "lstm" else 1)]
    count = 1 + len(states) + len(parameters)
    return Layers(kind, x.to(dtype), batch_sizes, [each.to(dtype) for each in states], [each.to(dtype) for each in parameters],
                  biases, layers, dropout, True, both_ways, batch_first and not packed, None,
                  wanted if isinstance(wanted, list) else [wanted] * count)


def in_double(call: Layers) -> Layers:
    numbers = {name: getattr(call, name) for name in Layers.__slots__}
    numbers |= {"x": call.x.double(), "states": [each.double() for each in call.states],
                "parameters": [each.double() for each in call.parameters]}
    return Layers(**numbers)


def everything(engine: Any, call: Layers, grads: list[Any] | None = None) -> list[torch.Tensor | None]:
    """Results and gradients."""
    torch.manual_seed(1)
    results, derivative = engine(call)
    if derivative is None:
        return list(results)
    torch.manual_seed(2)
    given = [torch.randn_like(each, dtype=torch.float32).to(each.dtype) for each in results] if grads is None else grads
    return [*results, *derivative(given)]


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt().clamp_min(1e-30))


@pytest.mark.sweep(2)
@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_less_exact_than_atens(kind: str, sizes: Any, options: Any, packed: bool) -> None:
    call = call_of(kind, sizes, options, packed=packed)
    assert is_supported(call)
    exact, atens, ours = everything(run_aten, in_double(call)), everything(run_aten, call), everything(run_own, call)
    for place, (a, b, c) in enumerate(zip(ours, atens, exact, strict=True)):
        assert a is not None and b is not None and c is not None
        assert a.shape == b.shape
        assert error(a, c) < max(2 * error(b, c), 1e-6), (place, error(a, c), error(b, c))


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_changes_nothing(kind: str) -> None:
    for batch in (3, 17, 64):
        call = call_of(kind, (70, 90, batch, 6), SHAPES[1])
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(everything(run_own, call))
        for other in found[1:]:
            for one, two in zip(found[0], other, strict=True):
                assert one is not None and two is not None
                assert torch.equal(one, two)


@pytest.mark.sweep(2)
@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(70, 200, 8, 5), (20, 530, 1, 4), (33, 260, 11, 3)], ids=str)
@pytest.mark.parametrize("options", SHAPES[:2], ids=str)
def test_threads_that_share_the_units_of_few_rows(kind: str, sizes: tuple[int, int, int, int], options: Any) -> None:
    for packed in (False, True):
        call = call_of(kind, sizes, options, packed=packed)
        torch.set_num_threads(1)
        alone = everything(run_own, call)
        for count in (2, 4, 5):
            torch.set_num_threads(count)
            for one, two in zip(alone, everything(run_own, call), strict=True):
                assert one is not None and two is not None
                assert torch.equal(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_wanted_and_given(kind: str) -> None:
    """Only some wanted, only some given, those not contiguous, and all of it twice."""
    count = len(call_of(kind, SIZES[1], SHAPES[1]).tensors)
    for seed in range(6):
        wanted = [(seed * 7 + 3 * place) % 5 < 3 for place in range(count)]
        call = call_of(kind, SIZES[1], SHAPES[1], wanted)
        results, derivative = run_own(call)  # type: ignore[misc]  # it is ours
        grads: list[Any] = [torch.randn(each.shape[::-1]).permute(2, 1, 0) if (seed + i) % 3 else None
                            for i, each in enumerate(results)]
        grads[0] = torch.ones(()).expand(results[0].shape) if seed == 0 else grads[0]
        if all(each is None for each in grads):
            continue
        theirs = everything(run_aten, call, grads)[len(results):]
        assert derivative is not None
        for _ in range(2):
            for a, b, wants in zip(derivative(grads), theirs, wanted, strict=True):
                assert (a is not None) == wants
                if a is not None:
                    torch.testing.assert_close(a, b if b is not None else torch.zeros_like(a))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers_draws_atens_numbers(kind: str) -> None:
    call = call_of(kind, SIZES[1], SHAPES[3], dropout=0.4)
    for ours, theirs in zip(everything(run_own, call), everything(run_aten, call), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_at_the_ends(kind: str) -> None:
    """Gates that are shut or open, infinity and NaN."""
    for value in (50.0, -50.0, 1e4, -1e4, 1e38, -1e38, float("inf"), -float("inf"), float("nan")):
        call = call_of(kind, (3, 20, 2, 4), wanted=False)
        call.x[1, 0] = value
        ours, theirs = everything(run_own, call), everything(run_aten, call)
        for a, b in zip(ours, theirs, strict=True):
            assert a is not None and b is not None
            torch.testing.assert_close(a, b, equal_nan=True, rtol=2e-3, atol=2e-3)


def test_what_is_not_ours() -> None:
    assert is_supported(call_of("gru", SIZES[0]))
    assert not is_supported(call_of("gru", SIZES[0], dtype=torch.float64))
    assert not is_supported(call_of("gru", (3, 2, 2, 2)))
    assert is_supported(call_of("lstm", (3, 1024, 1, 3), wanted=False))
    assert not is_supported(call_of("lstm", (3, 1024, 1, 3)))
    with config.patch({"cpp.own_recurrent": False}):
        assert not is_supported(call_of("gru", SIZES[0]))


def test_compiled_layers_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """In inference and in training, small as they are: a step of eager's takes longer than what compiled code costs."""
    from fxjit.backends.native.runtime import own_recurrent

    calls: list[str] = []

    def noted(call: Layers) -> Any:
        calls.append(call.kind)
        return run_own(call)

    monkeypatch.setattr(own_recurrent, "run_own", noted)
    assert recurrent.__name__ == "recurrent"
    for module in (nn.GRU(8, 16, 2, bidirectional=True), nn.RNN(8, 16, batch_first=True), nn.LSTM(8, 16)):
        fxjit.reset()
        model = nn.Sequential(nn.ReLU(), module)
        compiled = fxjit.compile(model, fullgraph=True)
        for grad in (False, True):
            x = torch.randn(20, 20, 8, requires_grad=grad)
            with torch.set_grad_enabled(grad):
                found, wanted = compiled(x), model(x)
            torch.testing.assert_close(found, wanted)
            if grad:
                for a, b in zip(*(torch.autograd.grad(each[0].square().sum(), [x, *model.parameters()])
                                  for each in (found, wanted)), strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert calls == ["gru", "gru", "rnn_tanh", "rnn_tanh", "lstm", "lstm"]
