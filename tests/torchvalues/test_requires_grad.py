"""Setting `requires_grad`: in every way, of every kind of tensor, inside and outside of inference mode and of torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit


def by_method(x):
    x.requires_grad_()
    return x * 2


def by_keyword(x):
    return x.requires_grad_(requires_grad=True) * 2


def to_none(x):
    return x.requires_grad_(None) * 2


def to_a_number(x):
    return x.requires_grad_(5) * 2


def to_a_text(x):
    return x.requires_grad_("a") * 2


def attribute(x):
    x.requires_grad = True
    return x * 2


def attribute_to_a_number(x):
    x.requires_grad = 1
    return x * 2


def attribute_to_a_text(x):
    x.requires_grad = "a"
    return x * 2


def attribute_to_none(x):
    x.requires_grad = None
    return x * 2


def attribute_deleted(x):
    del x.requires_grad
    return x * 2


def of_integers(x):
    return x.long().requires_grad_()


def off_of_integers(x):
    return x.long().requires_grad_(False) * 2


def off_of_a_result(x):
    return (x * 2).requires_grad_(False) * 2


def within_grad(x):
    return torch.func.grad(lambda v: v.requires_grad_().sum())(x)


def of_a_factory_within_grad(x):
    return torch.func.grad(lambda v: (v * torch.ones(3, requires_grad=True)).sum())(x)


def of_what_grad_closes_over(x):
    return torch.func.grad(lambda v: (v * x.requires_grad_()).sum())(x)


def within_vmap(x):
    return torch.vmap(lambda v: v.requires_grad_() * 2)(x)


def attribute_within_vmap(x):
    def each(v):
        v.requires_grad = True
        return v * 2

    return torch.vmap(each)(x)


def within_jvp(x):
    return torch.func.jvp(lambda v: v.requires_grad_() * 2, (x,), (x,))


WAYS = [by_method, by_keyword, to_none, to_a_number, to_a_text, attribute, attribute_to_a_number, attribute_to_a_text,
        attribute_to_none, attribute_deleted, of_integers, off_of_integers, off_of_a_result, within_grad,
        of_a_factory_within_grad, of_what_grad_closes_over, within_vmap, attribute_within_vmap, within_jvp]  # fmt: skip


def made(kind: str) -> torch.Tensor:
    with torch.inference_mode("inference" in kind):
        x = torch.ones(3)
        if "leaf" in kind:
            x.requires_grad_()
        return x * 1 if "result" in kind else x


def outcome(fn: Callable[..., Any], x: torch.Tensor) -> tuple[Any, ...]:
    try:
        found = fn(x)
    except Exception as error:
        return type(error), str(error), x.requires_grad
    results = found if isinstance(found, tuple) else (found,)
    return *[(each.tolist(), each.requires_grad, each.is_leaf) for each in results], x.requires_grad, x.is_leaf


@pytest.mark.sweep(3)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside_inference_mode"])
@pytest.mark.parametrize("kind", ["plain", "leaf", "result of a leaf", "inference", "inference leaf"])
@pytest.mark.parametrize("fn", WAYS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_as_in_eager(backend: str, fn: Callable[..., Any], kind: str, inside: bool) -> None:
    compiled = fxjit.compile(fn, backend=backend)
    with torch.inference_mode(inside):
        for _ in range(2):
            assert outcome(compiled, made(kind)) == outcome(fn, made(kind))
