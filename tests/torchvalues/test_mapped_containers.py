"""vmap whose own helpers a package has replaced, for containers that know how many rows they have."""

from __future__ import annotations

import pytest
import torch
from torch._functorch import vmap as torchs
from torch.utils import _pytree

import fxjit


class Batch:
    """Tensors of as many leading dimensions as `sizes` has; a tree that knows no more than that would keep `sizes` as it is."""

    def __init__(self, tensors, sizes):
        for tensor in tensors.values():
            if tuple(tensor.shape[: len(sizes)]) != tuple(sizes):
                raise RuntimeError(f"{tuple(tensor.shape)} does not begin with {tuple(sizes)}")
        self.tensors, self.sizes = dict(tensors), tuple(sizes)

    def __getitem__(self, key):
        return self.tensors[key]

    def with_(self, **tensors):
        return Batch({**self.tensors, **tensors}, self.sizes)


_SEEN = {}


def is_batch(arg):
    if type(arg) not in _SEEN:  # notes that a trace must not add to
        _SEEN[type(arg)] = isinstance(arg, Batch)
    return _SEEN[type(arg)]


def process(in_dims, args, func):
    flat, spec = _pytree.tree_flatten(args, is_leaf=is_batch)
    dims = _pytree._broadcast_to_and_flatten(in_dims, spec)
    mapped = [(arg, dim) for arg, dim in zip(flat, dims, strict=True) if dim is not None]
    sizes = [arg.sizes[dim] if is_batch(arg) else arg.shape[dim] for arg, dim in mapped]
    if len(set(sizes)) != 1:
        raise ValueError(f"{torchs._get_name(func)}: sizes {sizes}")
    return sizes[0], dims, flat, spec


def without(sizes, dim):
    return tuple(size for place, size in enumerate(sizes) if place != dim)


def create(dims, flat, level, spec):
    made = []
    for dim, arg in zip(dims, flat, strict=True):
        if dim is None:
            made.append(arg)
        elif is_batch(arg):
            rows = {key: torchs._add_batch_dim(each, dim, level) for key, each in arg.tensors.items()}
            made.append(Batch(rows, without(arg.sizes, dim)))
        else:
            made.append(torchs._add_batch_dim(arg, dim, level))
    return _pytree.tree_unflatten(made, spec)


def unwrap(outputs, out_dims, level, size, func):
    flat, spec = _pytree.tree_flatten(outputs, is_leaf=is_batch)
    name, made = torchs._get_name(func), []
    for each, dim in zip(flat, _pytree._broadcast_to_and_flatten(out_dims, spec), strict=True):
        if is_batch(each):
            whole = {key: torchs._maybe_remove_batch_dim(name, one, level, size, dim) for key, one in each.tensors.items()}
            made.append(Batch(whole, (*each.sizes[:dim], size, *each.sizes[dim:])))
        else:
            made.append(torchs._maybe_remove_batch_dim(name, each, level, size, dim))
    return _pytree.tree_unflatten(made, spec)


@pytest.fixture(autouse=True)
def replaced(monkeypatch):
    for name, helper in (("_process_batched_inputs", process), ("_create_batched_inputs", create), ("_unwrap_batched", unwrap)):
        monkeypatch.setattr(torchs, name, helper)


W = torch.randn(4, 3)
is_batched = torch._C._functorch.is_batchedtensor
PROGRAMS = {
    "a container": lambda b: torch.vmap(lambda d: d.with_(y=d["x"] @ W))(b),
    "another dimension": lambda b: torch.vmap(lambda d: d["x"].sum() + d["n"].mean(), in_dims=1)(b),
    "result along another": lambda b: torch.vmap(
        lambda d, w: (d.with_(x=d["x"] * w), d["x"] * w), in_dims=(0, None), out_dims=(1, 0))(b, torch.ones(4)),
    "nested": lambda b: torch.vmap(torch.vmap(lambda d: d["x"] * 2 + d["n"]))(b),
    "tensors alone": lambda b: torch.vmap(lambda x: x.sin() + 1)(b["x"]),
    "containers in containers": lambda b: torch.vmap(lambda d: [d, {"k": d["x"].sum(-1)}])(b),
    "a constant": lambda b: torch.vmap(lambda d: torch.ones(2))(b),
    "jacobian": lambda b: torch.func.jacrev(lambda x: x.sin())(b["x"][0, 0]),
    "hessian": lambda b: torch.func.hessian(lambda x: x.sin().prod())(b["x"][0, 0]),
    "asked whether batched": lambda b: torch.vmap(
        lambda d: d["x"] * (1 + is_batched(d["x"] + W[0, 0]) + 2 * is_batched(W)))(b),
}


def flat(result):
    if isinstance(result, Batch):
        return [result.sizes, *flat(result.tensors)]
    if isinstance(result, (tuple, list)):
        return [leaf for each in result for leaf in flat(each)]
    return [leaf for key in sorted(result) for leaf in flat(result[key])] if isinstance(result, dict) else [result]


def given(rows):
    return Batch({"x": torch.randn(rows, 5, 4), "n": torch.randn(rows, 5, 1)}, (rows, 5))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager_in_one_graph(name, backend):
    _SEEN.clear()
    compiled = fxjit.compile(PROGRAMS[name], backend=backend, fullgraph=True)
    for rows in (3, 3, 2):
        batch = given(rows)
        for expected, got in zip(flat(PROGRAMS[name](batch)), flat(compiled(batch)), strict=True):
            if isinstance(expected, torch.Tensor):
                torch.testing.assert_close(got, expected, check_stride=True)
            else:
                assert got == expected


def test_what_helpers_raise():
    def fn(b):
        try:
            return torch.vmap(lambda d, y: d["x"] * y)(b, torch.ones(7, 4))
        except ValueError as error:
            return str(error)

    assert fxjit.compile(fn, backend="eager")(given(3)) == fn(given(3))


def test_a_row_that_is_kept_breaks():
    kept = []

    def fn(b):
        def body(d):
            kept.append(d["x"].shape)
            return d["x"] + 1

        return torch.vmap(body)(b)

    batch = given(3)
    torch.testing.assert_close(fxjit.compile(fn, backend="eager")(batch), fn(batch))
    assert len(kept) == 2
