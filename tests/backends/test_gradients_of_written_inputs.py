"""Gradients that go through what a graph wrote to its inputs: of what the input is behind the call, of outputs, and of both. A
gradient of zeros counts as none: AOTAutograd gives zeros to an input that a graph wrote to, where only others are reached."""

from __future__ import annotations

import pytest
import torch

import fxjit


def multiplied(x, w):
    x.mul_(w)
    return x.detach() * 2


def multiplied_and_emptied(x, w):
    x.mul_(w)
    x.zero_()
    return x


def copied(x, w):
    x.copy_(w)
    return w * 2


def written_twice(x, w):
    x.add_(w)
    x.copy_(torch.ones(3))
    return x * 2


def written_in_part(x, w):
    x[0].add_(w[0])
    return x[1] * 1


def written_by_a_view(x, w):
    v = x.view(-1)
    v.mul_(w)
    return v.sum()


def written_without_recording(x, w):
    with torch.no_grad():
        x.add_(w)
    return x * w.detach()


def written_and_nothing_returned(x, w):
    x.add_(w * w)


INPUTS = {
    "a plain tensor": lambda leaf: torch.ones(3),
    "no leaf": lambda leaf: leaf * 2,
    "a view": lambda leaf: (leaf * 2).view(3),
    "a part": lambda leaf: (leaf.repeat(2) * 2)[:3],
}
PROGRAMS = (multiplied, multiplied_and_emptied, copied, written_twice, written_in_part, written_by_a_view,
            written_without_recording, written_and_nothing_returned)


def gradients(call, make, reached):
    leaf, w = torch.arange(3.0, requires_grad=True), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = make(leaf)
    result = call(x, w)
    sums = [each.sum() for each in {"outputs": [result], "inputs": [x * 1], "both": [result, x * 1]}[reached]
            if each is not None and each.requires_grad]
    if sums:
        torch.autograd.backward(sums)
    return x.tolist(), x.requires_grad, *(None if each.grad is None or not each.grad.any() else each.grad.tolist()
                                          for each in (leaf, w))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("made", INPUTS)
def test_gradients_of_written_inputs(made, program, backend):
    compiled = fxjit.compile(program, backend=backend)
    for reached in ("outputs", "inputs", "both"):
        assert gradients(compiled, INPUTS[made], reached) == gradients(program, INPUTS[made], reached), reached
