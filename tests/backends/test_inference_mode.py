"""Blocks of `torch.inference_mode` inside what is compiled: values, which tensors are inference tensors, views, writes."""

import numpy as np
import pytest
import torch
import torch.nn as nn

import fxjit

BACKENDS = ["eager", "aot_eager", "native"]


class Cached(nn.Module):
    """A decoder's cache: buffers made outside, filled position by position inside."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))
        self.register_buffer("scales", torch.arange(12.0).reshape(4, 3))

    @torch.inference_mode()
    def forward(self, x, position):
        self.cache[position : position + 2] = x * self.scales[position : position + 2]
        seen = self.cache[: position + 2]
        return seen.sum(0), seen


def around(x, weight):
    before = x * 2.0
    with torch.inference_mode():
        features = before + weight.detach()
        row = features[0]
    return features, row, before.sum() + (x * weight).sum()


def nested(x, weight):
    with torch.no_grad(), torch.inference_mode():
        made = x * 2.0
        with torch.enable_grad():
            made = made * weight
        with torch.inference_mode():
            made.add_(1.0)
    return made


def written_afterwards(x, weight):
    with torch.inference_mode():
        made = x * 2.0
        row = made[0]
    copy = made.clone()
    copy.mul_(weight.detach())
    return copy, row


def left_inside(x, weight):
    with torch.inference_mode():
        made = x * 2.0
        with torch.inference_mode(False):
            plain = x * 3.0
    return made, plain


def described(results):
    results = results if isinstance(results, tuple) else (results,)
    return [(each.tolist(), each.is_inference(), each.requires_grad) for each in results]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_of_buffers_is_filled(backend):
    plain, module = Cached(), Cached()
    compiled = fxjit.compile(module, backend=backend, fullgraph=True)
    for position in (0, 1, 2):
        wanted, got = plain(torch.ones(2, 3), position), compiled(torch.ones(2, 3), position)
        assert described(got) == described(wanted)
        assert got[1].data_ptr() == module.cache.data_ptr()
    assert module.cache.tolist() == plain.cache.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [around, nested, written_afterwards, left_inside], ids=lambda fn: fn.__name__)
def test_a_block_is_eagers(program, backend):
    compiled = fxjit.compile(program, backend=backend, fullgraph=True)
    for rows in (2, 5):
        x, weight = torch.arange(3.0 * rows).reshape(rows, 3), torch.ones(3, requires_grad=True)
        assert described(compiled(x, weight)) == described(program(x, weight))
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_beside_a_block_has_its_gradient(backend):
    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
    for run, weight in zip((around, fxjit.compile(around, backend=backend)), weights, strict=True):
        run(torch.arange(6.0).reshape(2, 3), weight)[2].backward()
    assert weights[1].grad.tolist() == weights[0].grad.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("made_inside", [False, True], ids=["made outside", "made inside"])
def test_a_block_within_the_callers_inference_mode(made_inside, backend):
    """What lies beside the block is in the caller's mode: it may write to inference tensors."""

    def program(x, array):
        with torch.inference_mode():
            x[0].mul_(0.5)
        array += 1
        x.add_(1)
        return x * 2, array

    def run(function):
        with torch.inference_mode(made_inside):
            x = torch.arange(6.0).view(3, 2)
        with torch.inference_mode():
            result, array = function(x, np.ones(3))
        return result.tolist(), array.tolist(), x.tolist(), x.is_inference(), result.is_inference()

    fxjit.reset()
    assert run(fxjit.compile(program, backend=backend)) == run(program)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("made_inside", [False, True], ids=["made outside", "made inside"])
def test_a_tensor_over_an_array_is_of_the_mode_it_is_made_in(made_inside, backend):
    def program(x):
        array = x.numpy()
        whole = torch.from_numpy(array)
        return whole, whole[1], torch.as_tensor(array), torch.from_numpy(array * 2), x[1], x.view(-1)

    def run(function):
        with torch.inference_mode(made_inside):
            x = torch.arange(6.0).view(3, 2)
        with torch.inference_mode():
            return described(function(x))

    assert run(fxjit.compile(program, backend=backend)) == run(program)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("first_read", ["before", "inside", "behind"])
def test_arrays_from_outside_that_a_block_of_another_mode_writes(first_read, inside, outside, backend):
    class Holder:
        def __init__(self):
            self.array = np.arange(6, dtype=np.float32)

    def program(holder, x):
        y = holder.array[0] + x if first_read == "before" else x
        with torch.inference_mode(inside):
            if first_read != "behind":
                holder.array += 1
            z = x + 1
        holder.array *= 2
        made = torch.from_numpy(holder.array)
        return y, z, made, made.is_inference()

    def run(function):
        holder, found = Holder(), []
        for _ in range(2):
            with torch.inference_mode(outside):
                x = torch.ones(2)
                found.append([*described(function(holder, x)[:3]), function(holder, x)[3], holder.array.tolist()])
        return found

    assert run(fxjit.compile(program, backend=backend)) == run(program)


def writes_and_views(x):
    x[0].mul_(2.0)
    return x, x.unsqueeze(0)


def writes_to_a_row(x):
    row = x[0]
    row.add_(1)
    return x * 2, row


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("program", [writes_and_views, writes_to_a_row])
def test_views_of_what_is_written_within_the_callers_inference_mode(program, requires_grad, backend):
    def run(function):
        x = torch.ones(3, 3, requires_grad=requires_grad)
        try:
            with torch.inference_mode():
                return [(*each, view._is_view()) for view in function(x) for each in described(view)]
        except RuntimeError as error:  # a view that was written in the mode may not be asked for its gradient
            return str(error)

    assert run(fxjit.compile(program, backend=backend)) == run(program)


def recording(x, p):
    with torch.enable_grad():
        y = torch.add(x, p.view(2, 2)[0, 0], alpha=5)
        return y, x * p[0], p.view(2, 2), torch.nn.functional.linear(x, x) + p[1], p.flatten()


def recording_from_here_on(x, p):
    y = x * p[0]
    torch.set_grad_enabled(True)
    z = x * p[1]
    torch.set_grad_enabled(False)
    return y, z


def recording_outside(x, p):
    with torch.enable_grad():
        y = x * p[0]
        with torch.inference_mode(False):
            z = p * 2
        w = y + p[1]
    return y, z, w


def in_inference_mode(x, p):
    with torch.inference_mode(), torch.enable_grad():
        y = x * p[0]
    return y, p * 2


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("fn", [recording, recording_from_here_on, recording_outside, in_inference_mode])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_grad_mode_records_nothing_in_inference_mode(backend, fn, inside) -> None:
    def facts(fn):
        p, x = torch.ones(4).requires_grad_(), torch.arange(12.0).view(3, 4)
        with torch.inference_mode(inside), torch.set_grad_enabled(not inside):
            found = fn(x, p)
        return [(each.tolist(), each.requires_grad, each.is_leaf, each.is_inference(), each._is_view()) for each in found]

    compiled = fxjit.compile(fn, backend=backend)
    for _ in range(2):
        assert facts(compiled) == facts(fn)
