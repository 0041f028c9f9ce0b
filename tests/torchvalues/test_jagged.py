"""Jagged nested tensors, given to compiled functions, made in them and given back: one graph, eager's tensors, and the same
ragged size where eager has the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit.testing import CompileCounter

BACKENDS = ("eager", "aot_eager", "native")
JAGGED = torch.jagged


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def jagged(*sizes, width=4, requires_grad=False):
    rows = [numbers(size, width, seed=at) for at, size in enumerate(sizes)]
    return torch.nested.nested_tensor(rows, layout=JAGGED, requires_grad=requires_grad)


def narrowed():
    return torch.nested.narrow(numbers(3, 5, 4), 1, torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]), layout=JAGGED)


def assert_same(eager, compiled):
    assert type(eager) is type(compiled)
    if isinstance(eager, (tuple, list)):
        assert len(eager) == len(compiled)
        for one, other in zip(eager, compiled, strict=True):
            assert_same(one, other)
    elif isinstance(eager, torch.Tensor) and eager.is_nested:
        assert eager.layout == compiled.layout and eager._ragged_idx == compiled._ragged_idx
        plain = [[size if type(size) is int else None for size in each.shape] for each in (eager, compiled)]
        assert plain[0] == plain[1]
        assert eager.requires_grad == compiled.requires_grad
        for name in ("_values", "_offsets", "_lengths", "_min_seqlen_tensor", "_max_seqlen_tensor"):
            one, other = getattr(eager, name), getattr(compiled, name)
            assert (one is None) == (other is None), name
            if one is not None:
                torch.testing.assert_close(one, other, check_stride=True)
    elif isinstance(eager, torch.Tensor):
        torch.testing.assert_close(eager, compiled, check_stride=True)
    elif not isinstance(eager, torch.SymInt):
        assert eager == compiled


def sums(results):
    for each in results if isinstance(results, (tuple, list)) else [results]:
        if isinstance(each, torch.Tensor) and each.requires_grad:
            yield (each.values() if each.is_nested else each).sum()


def check(fn, *makers, backend, fullgraph=True):
    """What eager computes and the gradients that it gives, for the arguments that each of the makers makes."""
    compiled = fxjit.compile(fn, backend=backend, fullgraph=fullgraph)
    for make in makers:
        args, others = make(), make()
        expected, found = fn(*args), compiled(*others)
        assert_same(expected, found)
        for total in ([*sums(expected)], [*sums(found)]):
            if total:
                torch.stack(total).sum().backward()
        for one, other in zip(args, others, strict=True):
            assert_same(one, other)
            assert_same(one.grad, other.grad)


OPERATORS = {
    "unary": lambda x: x.sin().abs(),
    "binary": lambda x: (x + x) * 2 - 1,
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "values": lambda x: x.values() * 2,
    "offsets": lambda x: (x.offsets() + 1, x.lengths(), x.offsets()),
    "padded": lambda x: x.to_padded_tensor(0.0),
    "padded by function": lambda x: torch.nested.to_padded_tensor(x.cos(), 1.0),
    "facts": lambda x: (x.is_nested, x.layout == JAGGED, x.dim(), x.size(0), x.size(-1), x.dtype, x.requires_grad, x.shape[2]),
    "sizes": lambda x: (x * x.size(0), x.shape, x.size(1)),
    "reductions": lambda x: (x.sum(), x.softmax(-1), *(each(x.detach()) for each in (
        lambda x: x.sum(1), lambda x: x.mean(-1), lambda x: x.amax(-1)))),
    "views": lambda x: (x.transpose(1, 2), x.unflatten(-1, (2, 2)), x.view(x.size(0), -1, 2, 2), x.unsqueeze(-1)),
    "flatten": lambda x: x.unflatten(-1, (2, 2)).flatten(-2),
    "chunks": lambda x: (x.chunk(2, dim=-1), torch.cat([x, x], dim=-1)),
    "copies": lambda x: (x.detach().clone(), x.to(torch.float64), torch.ones_like(x), x.contiguous()),
    "itself": lambda x: (x, x + 1),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name, backend):
    check(OPERATORS[name], lambda: (jagged(2, 3, 4),), lambda: (jagged(5, 1, 7),),
          lambda: (jagged(3, 2, 4, requires_grad=True),), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_plain_tensors(backend):
    check(lambda x, weight, bias: F.linear(x, weight, bias).sigmoid() * 2,
          lambda: (jagged(2, 3, 4, requires_grad=True), numbers(8, 4).requires_grad_(), numbers(8).requires_grad_()),
          backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_made_in_the_frame(backend):
    def of_values(values, offsets):
        return torch.nested.nested_tensor_from_jagged(values, offsets).sin()

    def with_limits(values, offsets):
        made = torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=2, max_seqlen=4)
        return made * 2, made.to_padded_tensor(0.0)

    def of_list(a, b):
        return torch.nested.as_nested_tensor([a, b], layout=JAGGED) * 2

    def new(a, b):
        return torch.nested.nested_tensor([a, b], layout=JAGGED) * 2

    for program in (of_values, with_limits):
        check(program, lambda: (numbers(9, 4), torch.tensor([0, 2, 5, 9])), backend=backend)
    check(of_values, lambda: (numbers(9, 4).requires_grad_(), torch.tensor([0, 2, 5, 9])),
          lambda: (numbers(12, 4).requires_grad_(), torch.tensor([0, 5, 6, 12])), backend=backend)
    check(of_list, lambda: (numbers(2, 3), numbers(4, 3).requires_grad_()), backend=backend)
    check(new, lambda: (numbers(2, 3), numbers(4, 3)), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_gaps(backend):
    """Tensors with lengths; making them decides on data, which breaks the graph as torch.compile's breaks."""
    check(lambda x: (x * 2, x.lengths()), lambda: (narrowed(),), backend=backend)

    def narrow(x, start, length):
        return (torch.nested.narrow(x, 1, start, length, layout=JAGGED) + 1).contiguous().values()

    check(narrow, lambda: (numbers(3, 5, 4), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])), backend=backend,
          fullgraph=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_have_the_ragged_size_of_what_they_are_made_of(backend):
    def program(x):
        return x.sin() * 2, torch.nested.nested_tensor_from_jagged(x.values() * 2, x.offsets())

    for requires_grad in (False, True):
        x = jagged(2, 3, 4, requires_grad=requires_grad)
        for result, eager in zip(fxjit.compile(program, backend=backend, fullgraph=True)(x), program(x), strict=True):
            assert result.size(1) == x.size(1) and result.offsets() is x.offsets()
            assert_same(eager + x, result + x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_tensors(backend):
    def product(a, b):
        return a * b

    def separate(a, b):
        return a * 2, b.sin()

    def same():
        x = jagged(2, 3, 4)
        return x, x * 2

    check(product, same, same, backend=backend)
    check(separate, lambda: (jagged(2, 3, 4), jagged(3, 3, 3)), same, backend=backend)
    compiled = fxjit.compile(product, backend=backend)
    compiled(*same())
    for call in (product, compiled):
        with pytest.raises(RuntimeError, match="cannot call binary"):
            call(jagged(2, 3, 4), jagged(3, 3, 3))


def test_other_ragged_sizes_need_no_other_graph():
    def program(x, y):
        return (x * 2 + y).sin(), x.values().sum()

    counter = CompileCounter()
    compiled = fxjit.compile(program, backend=counter, fullgraph=True)
    for sizes in ((2, 3, 4), (5, 9, 7), (9, 9, 9), (4, 2, 3)):
        x = jagged(*sizes, width=11)
        assert_same(program(x, x * 3), compiled(x, x * 3))
    assert counter.frame_count == 1
    for sizes in ((2, 3, 5, 7), (3, 4, 5, 6, 7), (2, 4)):
        x = jagged(*sizes, width=11)
        assert_same(program(x, x * 3), compiled(x, x * 3))
    assert counter.frame_count == 2  # with the number of sequences as a symbol


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_and_breaks(backend):
    def program(x):
        y = x * 2
        fxjit.graph_break()
        return (y + x).mul_(2), y

    check(lambda x: x.mul_(2), lambda: (jagged(2, 3),), backend=backend)
    check(program, lambda: (jagged(2, 3),), lambda: (jagged(4, 3, 2, requires_grad=True),), backend=backend, fullgraph=False)
