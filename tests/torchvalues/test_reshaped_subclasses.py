"""Changes of the shape of a tensor of a subclass (`x.t_()`) are those of the program's object. The graph has another object
over its memory, which would get the shape alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager


class Plain(torch.Tensor):
    pass


class Asking(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Silent(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(0),
    "as_strided_": lambda x: x.as_strided_((2,), (1,)),
    "resize_": lambda x: x.resize_(3, 2),
    "set_": lambda x: x.set_(torch.ones(3, 2)),
    "data": lambda x: setattr(x, "data", torch.ones(2, 2)),
    "of a view": lambda x: x.T.t_(),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("cls", [Plain, Asking, Silent])
@pytest.mark.parametrize("name", CHANGES)
def test_the_programs_object_is_changed(name: str, cls: type, records: bool, backend: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Size]:
        CHANGES[name](x)
        return x * 2, x.shape

    def make() -> tuple[torch.Tensor]:
        x = torch.arange(6.0).reshape(2, 3)
        return ((x.requires_grad_() * 1 if records else x).as_subclass(cls),)

    assert_same_as_eager(program, make=make, backend=backend, fullgraph=False)
