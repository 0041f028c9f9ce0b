"""Each fact of a tensor that a program can read is guarded: two tensors that differ in it, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit

T = torch.ones


class Derived(torch.Tensor):
    pass


def prepared(make: Callable[[], torch.Tensor], prepare: Callable[[torch.Tensor], Any]) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        x = make()
        prepare(x)
        return x

    return run


def leaf() -> torch.Tensor:
    return T(3, 4, requires_grad=True)


def made_in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return T(3, 4)


def viewed_without_gradients() -> torch.Tensor:
    with torch.no_grad():
        return T(4, 4, requires_grad=True)[1:]


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "leaf": leaf,
    "result": lambda: leaf() * 2,
    "view": lambda: T(4, 4)[1:],
    "turned view": lambda: T(4, 3).t(),
    "float64": lambda: T(3, 4, dtype=torch.float64),
    "complex": lambda: T(3, 4, dtype=torch.complex64),
    "conjugate": lambda: T(3, 4, dtype=torch.complex64).conj(),
    "negated": lambda: T(3, 4, dtype=torch.complex64).conj().imag,
    "parameter": lambda: torch.nn.Parameter(T(3, 4)),
    "of a subclass": lambda: T(3, 4).as_subclass(Derived),
    "expanded": lambda: T(1, 4).expand(3, 4),
    "with gaps": lambda: T(3, 8)[:, ::2],
    "with a hook": prepared(leaf, lambda x: x.register_hook(lambda g: g)),
    "keeps its gradient": prepared(lambda: leaf() * 2, lambda x: x.retain_grad()),
    "has a gradient": prepared(leaf, lambda x: setattr(x, "grad", T(3, 4))),
    "with an attribute": prepared(lambda: T(3, 4), lambda x: setattr(x, "tag", 5)),
    "inference": made_in_inference_mode,
    "view without gradients": viewed_without_gradients,
    "written": lambda: T(3, 4).add_(1),
    "shared": lambda: T(3, 4).share_memory_(),
    "sparse": lambda: T(3, 4).to_sparse(),
    "part of a storage": lambda: torch.tensor([]).set_(T(20).untyped_storage(), 3, (3, 4)),
    "empty": lambda: T(0, 4),
}
ATTRIBUTES = ("dtype", "layout", "requires_grad", "is_leaf", "output_nr", "retains_grad", "shape", "nbytes", "_version")
METHODS = ("stride", "storage_offset", "is_contiguous", "is_inference", "is_conj", "is_neg", "is_shared", "_is_view", "numel")
FACTS: dict[str, Callable[[torch.Tensor], Any]] = {
    **{name: lambda x, name=name: getattr(x, name) for name in ATTRIBUTES},
    **{f"{name}()": lambda x, name=name: getattr(x, name)() for name in METHODS},
    "grad is None": lambda x: x.grad is None,
    "grad_fn": lambda x: type(x.grad_fn).__name__,
    "_base is None": lambda x: x._base is None,
    "class": lambda x: type(x).__name__,
    "is a parameter": lambda x: isinstance(x, torch.nn.Parameter),
    "has an attribute": lambda x: (hasattr(x, "tag"), getattr(x, "tag", None)),
    "vars": lambda x: sorted(vars(x)),
    "has hooks": lambda x: bool(x._backward_hooks),
    "result type": lambda x: torch.result_type(x, 1.5),
    "is its own float": lambda x: x.float() is x,
    "is its own conjugate": lambda x: x.resolve_conj() is x,
    "bytes of its storage": lambda x: x.untyped_storage().nbytes(),
    "requires a gradient twice": lambda x: x.requires_grad and x.is_leaf,
}  # fmt: skip


#: Each tensor with a plain one, and those that autograd tells apart with each other.
PAIRS = [
    *itertools.product([lambda: T(3, 4)], TENSORS.values()),
    *itertools.combinations([make for name, make in TENSORS.items() if make().requires_grad], 2),
]


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_is_guarded(name: str) -> None:
    fact = FACTS[name]

    def told(call: Callable[..., Any], make: Callable[[], torch.Tensor]) -> str:
        try:
            return str(call(make()))
        except Exception as error:  # noqa: BLE001 - a sparse tensor has no strides, and no storage
            return type(error).__name__

    def fn(x: torch.Tensor) -> Any:
        return fact(x)

    with fxjit.config.patch(compile_tensorless_frames=True, allow_empty_graphs=True):
        for pair in PAIRS:
            if told(fn, pair[0]) == told(fn, pair[1]):
                continue
            for order in ((0, 1, 0), (1, 0, 1)):
                fxjit.reset()
                compiled = fxjit.compile(fn, backend="eager")
                for place in order:
                    assert told(compiled, pair[place]) == told(fn, pair[place])
