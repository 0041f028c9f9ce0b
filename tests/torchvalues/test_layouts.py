"""Tensors that are no plain strided ones: what works on them runs as it stands, the rest is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


def quantize(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1


def nest(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.to_padded_tensor(torch.nested.nested_tensor([x, x[:2]]) * 2, 0.0) + 1


def to_mkldnn(x: torch.Tensor) -> torch.Tensor:
    return x.to_mkldnn().to_dense() + 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fn", [quantize, nest, to_mkldnn])
def test_made_in_the_frame(fn: Callable[..., Any], backend: str) -> None:
    x = torch.randn(3, 3)
    torch.testing.assert_close(fxjit.compile(fn, backend=backend)(x), fn(x))
    with pytest.raises(fxjit.errors.Unsupported) as error:
        fxjit.compile(fn, backend=backend, fullgraph=True)(x)
    assert "?" not in error.value.explanation


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [
    lambda: torch.eye(3).to_sparse(), lambda: torch.eye(3).to_sparse_csr(),
    lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8),
])
def test_given_to_the_frame(make: Callable[[], torch.Tensor]) -> None:
    def read(s: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (s.dequantize() if s.is_quantized else s.to_dense()) @ x + 1

    x = torch.randn(3, 3)
    torch.testing.assert_close(fxjit.compile(read, backend="eager")(make(), x), read(make(), x))



@pytest.mark.filterwarnings("ignore")
def test_views_of_nested_tensors_and_their_methods() -> None:
    def rows(n: torch.Tensor) -> torch.Tensor:
        first, second = n.transpose(1, 2).unbind()
        return (first @ first.T + 1).sum() + second.sum()

    nested = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)], layout=torch.jagged)
    torch.testing.assert_close(fxjit.compile(rows, backend="eager")(nested), rows(nested), equal_nan=True)

    def catches(n: torch.Tensor) -> str:
        try:
            return str(torch.Tensor.transpose(n, 1, 2).dim())
        except TypeError:
            return "wrong"

    assert fxjit.compile(catches, backend="eager")(nested) == "3"


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_one_hot_of_classes_in_another_layout(backend):
    def program(classes):
        return torch.nn.functional.one_hot(classes, 3), torch.nn.functional.one_hot(classes, num_classes=4) * 2

    assert_same_as_eager(program, make=lambda: (torch.tensor([[0, 1, 2], [2, 1, 0]]).t(),), backend=backend)


def sparse(seed: int = 0) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    places = torch.randint(0, 4, (2, 6), generator=drawn)
    return torch.sparse_coo_tensor(places, torch.rand(6, generator=drawn), (4, 4)).coalesce()


def test_facts_about_a_tensor_that_is_not_traced_are_no_break() -> None:
    def choose(a: torch.Tensor, x: torch.Tensor) -> Any:
        if isinstance(a, torch.Tensor) and a.is_sparse and a.layout is torch.sparse_coo and not a.requires_grad:
            x = x + a.ndim
        if a.dtype == torch.float32 and not a.is_quantized:
            x = x * 2
        return x, a

    compiled = fxjit.compile(choose, backend="eager", fullgraph=True)
    given = [sparse(), sparse(1), sparse().to_sparse_csr(), sparse(2), sparse().to_dense(), sparse().double(),
             sparse().requires_grad_(), torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)]
    for a in given:
        x = torch.randn(3)
        found, kept = compiled(a, x)
        assert torch.equal(found, choose(a, x)[0]) and kept is a


def test_a_method_of_a_tensor_that_is_not_traced_is_one_break() -> None:
    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.masked.masked_tensor(x, mask).softmax(-1).to_tensor(0.0) * 2

    fxjit.counters.clear()
    compiled = fxjit.compile(program, backend="eager")
    x, mask = torch.randn(3, 4), torch.rand(3, 4) > 0.3
    torch.testing.assert_close(compiled(x, mask), program(x, mask), equal_nan=True)
    assert sum(fxjit.counters["graph_break"].values()) == 3, "one each: made, softmax, to_tensor"


MASKED = [name for name in torch.masked.__all__ if "masked" not in name.lower()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", MASKED)
def test_functions_of_torch_masked_are_in_the_graph(name: str, backend: str) -> None:
    def call(x: torch.Tensor, mask: torch.Tensor) -> Any:
        function = getattr(torch.masked, name)
        if name == "logaddexp":
            return function(x, x * 2, input_mask=mask, other_mask=mask)
        if name in ("norm", "normalize"):
            return function(x, 2.0, 1, mask=mask)
        return function(x, 1, mask=mask)

    mask = torch.rand(4, 5) > 0.4
    mask[0], mask[1] = False, True
    assert_same_as_eager(call, torch.randn(4, 5, requires_grad=True), mask, backend=backend, rtol=1e-4)
