"""Tensors that are views of nested tensors of the strided layout, as attention over jagged tensors gives them: traced as
tensors of the same memory, in one graph, with eager's values, layouts, gradients and effects of writes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.torchvalues.test_jagged import BACKENDS, check, numbers

import fxjit

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


class Attended:
    """Attention over jagged tensors of given lengths, with leaves of its own."""

    def __init__(self, *lengths, requires_grad=False):
        rows = sum(lengths)
        self.leaf = numbers(rows, 8, seed=rows).requires_grad_(requires_grad)
        ends = torch.tensor([0, *lengths]).cumsum(0)
        q = torch.nested.nested_tensor_from_jagged(self.leaf, ends).unflatten(-1, [2, 4]).transpose(1, 2)
        self.result = F.scaled_dot_product_attention(q, q, q)


def outputs(*lengths, requires_grad=False):
    return Attended(*lengths, requires_grad=requires_grad).result


def without_recording(x):
    with torch.no_grad():
        return x.transpose(1, 2), x.values() * 2


PROGRAMS = {
    "unary": lambda x: x.sin() * 2,
    "heads": lambda x: x.transpose(1, 2).flatten(-2),
    "heads, then a layer": lambda x: F.linear(x.transpose(1, 2).flatten(-2), torch.ones(3, 8)).relu(),
    "values": lambda x: x.values() * 2,
    "values as they are": lambda x: (x.values(), x.values() + 1),
    "itself": lambda x: (x, x + 1),
    "view": lambda x: (x.transpose(1, 2), x * 1),
    "facts": lambda x: (x.is_nested, x._is_view(), x.dim(), x.size(0), x.requires_grad, x.is_leaf, x.values().is_contiguous()),
    "detached": lambda x: (x.detach() * 2, x.values().detach()),
    "without recording": lambda x: without_recording(x),
    "padded": lambda x: x.transpose(1, 2).flatten(-2).to_padded_tensor(0.0),
}
#: Inner tensors and what is seen through them; a leaf that such a result is made of has its gradient from there.
INPUTS = {
    "attention": lambda x: x,
    "transposed": lambda x: x.transpose(1, 2),
    "two heads in one": lambda x: x.transpose(1, 2).flatten(-2),
}


def with_leaf(program, backend, *lengths, fullgraph=True, view=lambda x: x):
    """Results, and the gradients of the leaf behind the attention."""
    compiled = fxjit.compile(program, backend=backend, fullgraph=fullgraph)
    for each in lengths:
        gradients = []
        for run in (program, compiled):
            made = Attended(*each, requires_grad=True)
            results = run(view(made.result))
            results = results if isinstance(results, tuple) else (results,)
            totals = [(one.values() if one.is_nested else one).square().sum() for one in results
                      if isinstance(one, torch.Tensor) and one.requires_grad]
            if totals:
                torch.stack(totals).sum().backward()
            gradients.append(made.leaf.grad)
        torch.testing.assert_close(*gradients, check_stride=True)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, backend):
    program = PROGRAMS[name]
    check(program, lambda: (outputs(2, 3),), lambda: (outputs(4, 1),), lambda: (outputs(3, 2, 4),), backend=backend)
    with_leaf(program, backend, (2, 3), (4, 1), (3, 2, 4))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", INPUTS)
def test_views_of_it(name, backend):
    view = INPUTS[name]

    def program(x):
        return x.cos() * x, x.values() + 1

    check(program, lambda: (view(outputs(2, 3)),), lambda: (view(outputs(4, 1)),), backend=backend)
    with_leaf(program, backend, (2, 3), (4, 1), view=view)


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_alone(backend):
    def program(x):
        return x * 2, x[1:], x._is_view()

    check(program, lambda: (outputs(2, 3).values(),), lambda: (outputs(4, 1).values(),), backend=backend)
    with_leaf(program, backend, (2, 3), (4, 1), view=lambda x: x.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes(backend):
    def writes(x):
        x.mul_(2)
        return x + 1

    def to_values(x):
        x.values().add_(1)
        return x * 2

    def to_one_of_two(x, y):
        x.add_(1)
        return y * 2

    for program in (writes, to_values):
        check(program, lambda: (outputs(2, 3),), backend=backend)
    check(to_values, lambda: (outputs(2, 3).transpose(1, 2),), backend=backend)

    def two():
        x = outputs(2, 3)
        return x.values(), x.values()[:, 1:]

    check(to_one_of_two, two, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_in_the_frame(backend):
    """The attention breaks the graph, since the sizes in its memory depend on data; what follows is one graph."""
    def program(values, offsets, weight):
        jagged = torch.nested.nested_tensor_from_jagged(values, offsets)
        q = jagged.unflatten(-1, [2, 4]).transpose(1, 2)
        return F.linear(F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2), weight).values().relu()

    def arguments(requires_grad=False):
        return numbers(5, 8).requires_grad_(requires_grad), torch.tensor([0, 2, 5]), numbers(3, 8).requires_grad_(requires_grad)

    fxjit.counters.clear()
    check(program, arguments, lambda: arguments(True), backend=backend, fullgraph=False)
    assert sum(fxjit.counters["graph_break"].values()) <= 2  # one for each of the two kinds of arguments


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("of_values", [False, True])
def test_recorded_writes_raise_as_in_eager(backend, of_values):
    """Torch has no gradients of them; what the program did before is done, and its handler sees the error."""
    def program(x, log):
        log.append(1)
        y = x.detach() * 2
        try:
            (x.values() if of_values and x.is_nested else x).mul_(3)
        except RuntimeError as error:
            log.append(str(error))
        return y + 1

    compiled = fxjit.compile(program, backend=backend)
    for view in (lambda x: x, lambda x: x.values(), lambda x: x.transpose(1, 2)):
        logs = [], []
        for run, log in zip((program, compiled), logs, strict=True):
            run(view(outputs(2, 3, requires_grad=True)), log)
        assert logs[0] == logs[1] and len(logs[0]) == 2

    def without_recording(x):
        x.detach().mul_(3)
        return x.sin()

    with_leaf(without_recording, backend, (2, 3))


def test_plain_views_of_nested_tensors():
    """A padded row of a nested tensor of the strided layout is a plain view of one."""
    def program(x):
        return x * 2, x.t()

    def make():
        return (torch.nested.nested_tensor([numbers(3, 4), numbers(2, 4)]).unbind()[0],)

    for backend in BACKENDS:
        check(program, make, backend=backend)
