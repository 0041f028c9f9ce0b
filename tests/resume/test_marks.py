"""What a compiled graph raises is the program's own exception, with nothing of ours on it."""

from __future__ import annotations

import pytest
import torch

import fxjit


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_exceptions_that_reach_the_program_have_no_attribute_of_ours(backend: str) -> None:
    def f(x, index):
        x.add_(1)
        return x[index] * 2

    compiled = fxjit.compile(f, backend=backend)
    compiled(torch.ones(3), torch.tensor([1]))
    for _ in range(2):
        with pytest.raises(IndexError) as caught:
            compiled(torch.ones(3), torch.tensor([7]))
        assert vars(caught.value) == {}
