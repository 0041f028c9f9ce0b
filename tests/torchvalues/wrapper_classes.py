"""Traceable wrapper subclasses of Tensor for tests: of one tensor and of several, with and without `__torch_function__`, with
metadata, slots, and methods of their own."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

aten = torch.ops.aten


class Scaled(torch.Tensor):
    """Whole numbers and a scale that stand for their product, as quantised weights do. Products of matrices use them; other
    operators, but for those that keep the numbers, are of the product."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers, scale, bits=8, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, strides=numbers.stride(), dtype=scale.dtype,
                                                   device=numbers.device, requires_grad=requires_grad)

    def __init__(self, numbers, scale, bits=8, requires_grad=False):
        self.numbers, self.scale, self.bits = numbers, scale, bits

    def __tensor_flatten__(self):
        return ["numbers", "scale"], {"bits": self.bits}

    @classmethod
    def __tensor_unflatten__(cls, inner, metadata, size, stride):
        return cls(inner["numbers"], inner["scale"], metadata["bits"])

    @classmethod
    def of(cls, plain, bits=8):
        scale = plain.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
        return cls((plain / scale).round().to(torch.int8), scale, bits)

    def product(self):
        return self.numbers.to(self.scale.dtype) * self.scale

    @property
    def largest(self):
        return 2 ** (self.bits - 1) - 1

    @staticmethod
    def twice(x):
        return x * 2

    def __repr__(self):
        return f"{type(self).__name__}({self.bits})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (aten.detach.default, aten.clone.default, aten.alias.default):
            self = args[0]
            made = cls(func(self.numbers), func(self.scale), self.bits)
            return return_and_correct_aliasing(func, args, kwargs, made)
        if func is aten.t.default:
            self = args[0]
            return return_and_correct_aliasing(func, args, kwargs, cls(func(self.numbers), func(self.scale), self.bits))
        if func is aten.mm.default and isinstance(args[1], cls) and args[1].scale.shape[0] == 1:
            return func(args[0], args[1].numbers.to(args[0].dtype)) * args[1].scale
        if func is aten.copy_.default and all(isinstance(each, cls) for each in args[:2]):
            args[0].numbers.copy_(args[1].numbers)
            args[0].scale.copy_(args[1].scale)
            return args[0]
        args, kwargs = pytree.tree_map_only(cls, cls.product, (args, kwargs))
        return func(*args, **kwargs)


class Tagged(torch.Tensor):
    """A tensor with a tag: results have the tag of the first argument that has one, and are times it."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held, tag):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, strides=held.stride(), dtype=held.dtype, device=held.device,
                                                   requires_grad=held.requires_grad)

    def __init__(self, held, tag):
        self.held, self.tag = held, tag

    def __tensor_flatten__(self):
        return ["held"], self.tag

    @classmethod
    def __tensor_unflatten__(cls, inner, tag, size, stride):
        return cls(inner["held"], tag)

    def __repr__(self):
        return f"{type(self).__name__}({self.tag})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        tag = next(each.tag for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, cls))
        plain, named = pytree.tree_map_only(cls, lambda each: each.held, (args, kwargs or {}))
        result = func(*plain, **named)
        if func in (aten.mul.Tensor, aten.sin.default):
            result = result * cls.weight(tag)
        result = pytree.tree_map_only(torch.Tensor, lambda each: cls(each, tag), result)
        return return_and_correct_aliasing(func, args, kwargs or {}, result)

    @staticmethod
    def weight(tag):
        return tag


class TaggedByKind(Tagged):
    """Only the first letter of its tag matters, which the class says."""

    @classmethod
    def __metadata_guard__(cls, known, tag):
        return known[0] == tag[0]

    @staticmethod
    def weight(tag):
        return {"a": 2, "b": 3}[tag[0]]


class Measured(Tagged):
    """Keeps its own sizes in its metadata, as DTensor does."""

    @staticmethod
    def __new__(cls, held, tag, size=None):
        return Tagged.__new__(cls, held, tag)

    def __init__(self, held, tag, size=None):
        super().__init__(held, tag)
        self.measured = held.shape if size is None else size

    def __tensor_flatten__(self):
        return ["held"], (self.tag, (tuple(self.measured), "sizes"))

    @classmethod
    def __tensor_unflatten__(cls, inner, metadata, size, stride):
        return cls(inner["held"], metadata[0], size)


class Told(Tagged):
    """Is told of functions too, of which it changes one."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        func = torch.sin if func is torch.cos else func
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Slotted(torch.Tensor):
    """Has slots and no `__dict__` of its own use, as DTensor."""

    __slots__ = ("_local", "_name")
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, local, name):
        made = torch.Tensor._make_wrapper_subclass(cls, local.shape, strides=local.stride(), dtype=local.dtype,
                                                   device=local.device, requires_grad=local.requires_grad)
        made._local, made._name = local, name
        return made

    def __init__(self, local, name):
        super().__init__()

    def __tensor_flatten__(self):
        return ["_local"], (self._name,)

    @staticmethod
    def __tensor_unflatten__(inner, metadata, size, stride):
        return Slotted(inner["_local"], metadata[0])

    def __repr__(self):
        return f"Slotted({self._name})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        name = next(each._name for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, cls))
        plain, named = pytree.tree_map_only(cls, lambda each: each._local, (args, kwargs or {}))
        result = pytree.tree_map_only(torch.Tensor, lambda each: cls(each, name), func(*plain, **named))
        return return_and_correct_aliasing(func, args, kwargs or {}, result)


class Meshed(Slotted):
    """Names an object that is no tensor among what it is made of, as DTensor does with its mesh."""

    def __tensor_flatten__(self):
        return ["_local", "_name"], None


class NoParts(torch.Tensor):
    """Has a `__torch_dispatch__`, and does not say what it is made of."""

    @staticmethod
    def __new__(cls, plain):
        return torch.Tensor._make_subclass(cls, plain)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))
