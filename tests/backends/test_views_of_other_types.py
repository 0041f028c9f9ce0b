"""Two inputs that are one memory in two types: what a graph writes through one is seen through the other."""

import pytest
import torch

import fxjit


def write_first(a, b):
    a.add_(1)
    return a * 2, b + 1


def write_second(a, b):
    b.add_(1)
    return a * 2, b + 1


VIEWS = {
    "integers": lambda a: a.view(torch.int32),
    "some integers": lambda a: a.view(torch.int32)[2:5],
    "shorter": lambda a: a.view(torch.int16),
    "real parts": lambda a: torch.view_as_real(a),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("write", [write_first, write_second])
@pytest.mark.parametrize("kind", VIEWS)
def test_a_written_input_and_a_view_of_it_in_another_type(kind, write, backend):
    def inputs():
        numbers = torch.arange(8.0)
        base = numbers.to(torch.complex64) if kind == "real parts" else numbers
        return base, VIEWS[kind](base)

    compiled, ours, eagers = fxjit.compile(write, backend=backend), inputs(), inputs()
    for _ in range(2):
        torch.testing.assert_close(compiled(*ours), write(*eagers), rtol=0, atol=0)
        torch.testing.assert_close(ours, eagers, rtol=0, atol=0, equal_nan=True)
