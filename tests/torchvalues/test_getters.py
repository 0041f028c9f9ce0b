"""`torch.Tensor.shape.__get__`: what a `__torch_function__` is told of an attribute, compared, looked up and called."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same_as_eager

NDIM = torch.Tensor.ndim.__get__
KNOWN = {torch.Tensor.ndim.__get__: "ndim", torch.Tensor.shape.__get__: "shape", torch.Tensor.T.__get__: "T"}


class Ten(torch.Tensor):
    """Says of itself that it has ten dimensions."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.ndim.__get__:
            return 10
        return super().__torch_function__(func, types, args, kwargs or {})


class Told(torch.Tensor):
    """Counts what it is asked, by several ways to find out what that is."""

    asked = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in KNOWN:
            cls.asked.append(KNOWN[func])
        elif func in (torch.Tensor.is_sparse.__get__, torch.Tensor.dtype.__get__) or func in {torch.Tensor.device.__get__}:
            cls.asked.append("other")
        return super().__torch_function__(func, types, args, kwargs or {})


def compared(x):
    ndim, shape = torch.Tensor.ndim.__get__, torch.Tensor.shape.__get__
    one = hash(ndim) == hash(NDIM), ndim is torch.Tensor.ndim.__get__
    return x + 1, ndim == NDIM, NDIM == ndim, ndim != shape, shape == NDIM, one


def looked_up(x):
    return x + 1, torch.Tensor.ndim.__get__ in KNOWN, torch.Tensor.mT.__get__ in KNOWN, KNOWN[torch.Tensor.T.__get__], [
        NDIM].index(torch.Tensor.ndim.__get__)


def called(x):
    return torch.Tensor.ndim.__get__(x), torch.Tensor.T.__get__(x) * 2, NDIM(x), torch.Tensor.shape.__get__(x)


def bound_methods(x):
    items = []
    return x + 1, len.__call__ == len.__call__, items.append == items.append, items.append == [].append, x.add == x.add


@pytest.mark.parametrize("fn", [compared, looked_up, called, bound_methods])
def test_getters(fn):
    assert_same_as_eager(fn, torch.ones(2, 3), breaks=0)


@pytest.mark.parametrize("fn", [lambda w: w.ndim + torch.ones(2), lambda w: (w.ndim, w + 1),
                                lambda w: (w.dim(), torch.ones(w.ndim))])
def test_an_attribute_that_is_answered(fn):
    assert_same_as_eager(fn, make=lambda: [torch.ones(2, 2).as_subclass(Ten)], breaks=0)


def test_what_a_class_is_told():
    def asks(w):
        return w.ndim, w.shape, (w.T * 2).ndim, w.dtype, w.device, w.is_sparse

    def make():
        Told.asked.clear()
        return [torch.ones(2, 2).as_subclass(Told)]

    assert_same_as_eager(asks, make=make, state=lambda: [*Told.asked])


class Quantized(torch.nn.Parameter):
    """A parameter that hands its kind on, as libraries of quantised weights have it."""

    def __new__(cls, data, requires_grad=False, kind=None):
        return torch.Tensor._make_subclass(cls, torch.empty(0) if data is None else data, requires_grad)

    def __init__(self, *args, kind=None, **kwargs):
        self.kind = kind

    def as_tensor(self):
        return torch.Tensor._make_subclass(torch.Tensor, self, self.requires_grad)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        given = [each for arg in args for each in (arg if isinstance(arg, list) else [arg]) if isinstance(each, Quantized)]
        if isinstance(result, torch.Tensor):
            return cls(result, kind=given[0].kind)
        if isinstance(result, (tuple, list)):
            return type(result)(cls(each, kind=given[0].kind) if isinstance(each, torch.Tensor) else each for each in result)
        return result


def of_one_kind(x, w):
    y = torch.cat([w, w]).reshape(2, -1)
    first, _ = y.split(1)
    y.extra = 5
    return y, first.kind, isinstance(first, torch.nn.Parameter), first.requires_grad, first.is_leaf, x @ y.as_tensor()


@pytest.mark.parametrize("fn", [lambda x, w: (w * 2 + w.kind).as_tensor() * 3, of_one_kind])
def test_parameters_of_a_class_of_their_own(fn):
    x = torch.randn(3, 2)
    assert_same_as_eager(fn, make=lambda: [x.clone().requires_grad_(), Quantized(torch.ones(2), kind=42)], breaks=0)
