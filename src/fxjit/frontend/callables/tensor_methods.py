"""Methods of tensors that are more, or less, than one node of the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.known_tensors import known_elements
from fxjit.frontend.values.observed import observation
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.tensor_methods import METHODS, Args, Kwargs, Method, as_number, method, specialized
from fxjit.guards.kinds import ConstIs
from fxjit.guards.source import ApplySource
from fxjit.homes import module_of


def _arguments(t: Tracer, args: Args, kwargs: Kwargs, *names: str) -> list[Value | None]:
    """Arguments by position or name; None where not given."""
    if len(args) > len(names) or any(key not in names for key in kwargs):
        t.raise_(TypeError, f"takes at most {len(names)} arguments ({', '.join(names)})")
    bound: list[Value | None] = list(args) + [None] * (len(names) - len(args))
    for index, name in enumerate(names):
        if name in kwargs:
            bound[index] = kwargs[name]
    return bound


# -- sizes and facts -----------------------------------------------------------------------------------------------


def _dimension(t: Tracer, tensor: TensorValue, dim: Value) -> int:
    index = protocol.unary(t, "index", dim) if not dim.is_constant() else dim
    number = specialized(t, index)
    ndim = tensor.fake.dim()
    if ndim == 0:
        t.raise_(IndexError, f"Dimension specified as {number} but tensor has no dimensions")
    low, high = -ndim, ndim - 1
    if not low <= number <= high:
        t.raise_(IndexError, f"Dimension out of range (expected to be in range of [{low}, {high}], but got {number})")
    return int(number)


@method("size")
def _size(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    (dim,) = _arguments(t, args, kwargs, "dim")
    if dim is None or (dim.is_constant() and dim.as_constant() is None):
        return tensor.shape(t)
    return tensor.size(t, _dimension(t, tensor, dim))


@method("stride")
def _stride(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    (dim,) = _arguments(t, args, kwargs, "dim")
    if dim is None or (dim.is_constant() and dim.as_constant() is None):
        return TupleValue([_one_stride(t, tensor, i) for i in range(tensor.fake.dim())])
    return _one_stride(t, tensor, _dimension(t, tensor, dim))


def _one_stride(t: Tracer, tensor: TensorValue, dim: int) -> Value:
    stride = tensor.fake.stride(dim)
    return t.make(stride) if isinstance(stride, int) else t.emit("stride", [tensor, t.make(dim)])


@method("dim", "ndimension")
def _dim(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    return t.make(tensor.fake.dim())


@method("numel", "nelement")
def _numel(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    numel = tensor.fake.numel()
    return t.make(numel) if isinstance(numel, int) else t.emit("numel", [tensor])


def _fact(name: str) -> Method:
    def read(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
        known = [arg.as_constant() if arg.is_constant() else None for arg in args]
        named = {key: arg.as_constant() if arg.is_constant() else None for key, arg in kwargs.items()}
        return protocol.fold(t, lambda: getattr(tensor.fake, name)(*known, **named))
    return read


for _name in ("is_floating_point", "is_complex", "is_signed", "is_conj", "is_neg", "is_inference", "element_size",
              "get_device", "is_contiguous", "is_non_overlapping_and_dense", "is_coalesced"):
    METHODS[_name] = _fact(_name)


def _as_function(fn: Any) -> Method:
    def call(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
        return t.call(t.make(fn), [tensor, *args], kwargs)
    return call


for _fn in (torch.allclose, torch.equal, torch.is_nonzero):
    METHODS[_fn.__name__] = _as_function(_fn)


def _view_flag(x: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return x._is_view()


@method("_is_view")
def _is_view(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    if tensor.source is None:
        return t.make(tensor.fake._is_view())
    found = _view_flag(tensor.fake if tensor.real is None else tensor.real)
    t.guard(ConstIs(ApplySource(tensor.source, _view_flag), found))
    return t.make(found)


@method("type")
def _type(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    dtype = args[0] if args else kwargs.get("dtype")
    if dtype is None or (dtype.is_constant() and dtype.as_constant() is None):
        where = "" if tensor.fake.device.type == "cpu" else f"{tensor.fake.device.type}."
        return t.make(f"torch.{where}{_TYPE_NAMES[tensor.fake.dtype]}")
    if not dtype.is_constant() or not isinstance(dtype.as_constant(), torch.dtype):
        known = dtype.as_constant() if dtype.is_constant() else None
        if type(known) is type(torch.LongTensor):  # such a class is its name to torch, and to the text of a graph
            name = t.make(f"{module_of(known)}.{known.__name__}")
            return t.emit("type", [tensor, name, *args[1:]], {key: value for key, value in kwargs.items() if key != "dtype"})
        if not isinstance(known, str):
            t.break_("tensor-argument", function="Tensor.type", value=dtype.describe(), type=dtype.pytype().__name__)
    return t.emit("type", [tensor, *args], kwargs)


_TYPE_NAMES: Final = {
    torch.float32: "FloatTensor", torch.float64: "DoubleTensor", torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor", torch.uint8: "ByteTensor", torch.int8: "CharTensor", torch.int16: "ShortTensor",
    torch.int32: "IntTensor", torch.int64: "LongTensor", torch.bool: "BoolTensor",
    torch.complex64: "ComplexFloatTensor", torch.complex128: "ComplexDoubleTensor",
}


# -- slots by their method names -----------------------------------------------------------------------------------


def _slot(fn: Callable[..., Value], own: str = "") -> Method:
    """A slot by the name of torch's method; the class may override it in that slot, which is not looked up here."""
    def call(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
        tensor.own_left_out = own
        return fn(t, tensor, *args)
    return call


METHODS["__len__"] = _slot(protocol.length, "__len__")
METHODS["__bool__"] = METHODS["__nonzero__"] = _slot(lambda t, x: t.make(protocol.truth(t, x)), "__bool__")
METHODS["__iter__"] = _slot(protocol.iter_, "__iter__")
METHODS["__getitem__"] = _slot(protocol.getitem, "__getitem__")
METHODS["__hash__"] = _slot(protocol.hash_)
METHODS["__repr__"] = _slot(protocol.repr_)
METHODS["__format__"] = _slot(lambda t, x, spec: t.break_("tensor-data", function="format"))
METHODS["is_set_to"] = lambda t, x, args, kwargs: t.break_("tensor-data", function="Tensor.is_set_to")  # fake ones are not
METHODS["__contains__"] = _slot(lambda t, x, item: t.make(protocol.contains(t, x, item)), "__contains__")
for _op in ("int", "float", "complex", "index"):
    METHODS[f"__{_op}__"] = _slot(lambda t, x, op=_op: as_number(t, x, op, defers=True))


@method("__setitem__")
def _setitem(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    tensor.own_left_out = "__setitem__"
    protocol.setitem(t, tensor, args[0], args[1])
    return t.make(None)


# -- numbers out of tensors ----------------------------------------------------------------------------------------


@method("detach")
def _detach(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    return t.emit("detach", [tensor.new_data or tensor, *args], kwargs)


@method("item")
def _item(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    return as_number(t, tensor, "item", defers=True)


@method("tolist")
def _tolist(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    constant = known_elements(tensor)
    if constant is not None:
        return _nested(t, constant.tolist())
    if tensor.fake.dim() == 0:
        return as_number(t, tensor, "item", defers=True)
    size = tensor.fake.shape[0]  # which iterating fixes, where the data alone do not say it
    if not t.break_points.captures_scalars or (isinstance(size, torch.SymInt) and size.node.hint is None):
        t.break_("data-item", function="Tensor.tolist")
    return ListValue([protocol.call_method(t, row, "tolist") for row in protocol.unpack(t, tensor)])


def _nested(t: Tracer, numbers: Any) -> Value:
    return ListValue([_nested(t, item) for item in numbers]) if isinstance(numbers, list) else t.make(numbers)


# -- arguments that torch refuses ----------------------------------------------------------------------------------

#: Asked what torch says of arguments, which it looks at before the tensor.
_SAMPLE: Final = torch.zeros(())


def _checked(name: str, rule: Method, count: int | None) -> Method:
    """The rule, behind torch's own look at the arguments: `count` of them by position, or any that are constants."""
    def call(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
        is_wrong = bool(kwargs) or len(args) != count
        if is_wrong if count is not None else all(arg.is_constant() for arg in (*args, *kwargs.values())):
            known = [arg.as_constant() if arg.is_constant() else None for arg in args]
            named = {key: arg.as_constant() if arg.is_constant() else None for key, arg in kwargs.items()}
            if known or named or count:
                _refuse(t, name, known, named)
        return rule(t, tensor, args, kwargs)
    return call


def _refuse(t: Tracer, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    try:
        getattr(torch.Tensor, name)(_SAMPLE, *args, **kwargs)
    except TypeError as error:
        t.raise_(TypeError, str(error))
    except (IndexError, RuntimeError, ValueError):
        pass  # of the sample


for _name in ("size", "stride"):
    METHODS[_name] = _checked(_name, METHODS[_name], None)
for _name in ("dim", "ndimension", "numel", "nelement", "item", "tolist", "__len__", "__bool__", "__iter__", "__hash__",
              "__int__", "__float__", "__complex__", "__index__"):
    METHODS[_name] = _checked(_name, METHODS[_name], 0)
for _name, _count in {"__getitem__": 1, "__contains__": 1, "__format__": 1, "__setitem__": 2}.items():
    METHODS[_name] = _checked(_name, METHODS[_name], _count)


# -- what has to run eagerly ---------------------------------------------------------------------------------------


def _breaking(reason: str, **context: str) -> Method:
    def refuse(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
        t.break_(reason, **context)
    return refuse


for _name in ("storage_type", "__array__",
              "__array_wrap__", "__dlpack__", "__dlpack_device__", "share_memory_", "is_shared", "pin_memory",
              "is_pinned", "const_data_ptr", "mutable_data_ptr", "_use_count"):
    METHODS[_name] = _breaking("tensor-data", function=f"Tensor.{_name}")
for _name in ("to_mkldnn", "sparse_resize_", "sparse_resize_and_clear_", "_coalesced_"):
    METHODS[_name] = _breaking("tensor-layout", layout="sparse", why=f"the result of Tensor.{_name}")
for _name, _why in (
    ("apply_", "calls a Python function on every number."), ("map_", "calls a Python function on every number."),
    ("map2_", "calls a Python function on every number."), ("resize", "changes the tensor's storage."),
    ("set_", "changes the tensor's storage."),
    ("__deepcopy__", "copies a Python object."), ("__reduce_ex__", "pickles the tensor."),
    ("__setstate__", "unpickles the tensor."),
    ("_view_func", "replays a view."), ("__dir__", "lists attributes."),
    ("is_distributed", "has no meaning for some tensors, those of `vmap` among them."),
):
    METHODS[_name] = _breaking("tensor-method", name=_name, why=_why)


@method("resize_")
def _resize_(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """`x.new().resize_(2, 3)`, older than `new_empty`: a tensor without elements is another from then on."""
    return _grown(t, "resize_", tensor, args, kwargs)


@method("resize_as_")
def _resize_as_(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or not isinstance(args[0], TensorValue) or args[0].cls not in (torch.Tensor, torch.nn.Parameter):
        t.break_("tensor-method", name="resize_as_", why="changes the tensor's storage.")
    return _grown(t, "resize_as_", tensor, (args[0].shape(t),), kwargs)


def _grown(t: Tracer, name: str, tensor: TensorValue, sizes: Args, kwargs: Kwargs) -> Value:
    if kwargs or not _is_empty_and_new(tensor):
        t.break_("tensor-method", name=name, why="changes the tensor's storage.")
    made = t.emit("new_empty", [tensor, *sizes])
    if not isinstance(made, TensorValue) or made.node.graph is not tensor.node.graph:
        t.break_("tensor-method", name=name, why="changes the tensor's storage.")
    tensor.node, tensor.fake = made.node, made.fake
    t.register_tensor(tensor)
    return tensor


def _is_empty_and_new(tensor: TensorValue) -> bool:
    """Whether the graph made it, without elements, in memory of its own that nothing else has a part in."""
    if tensor.source is not None or tensor.cls is not torch.Tensor:
        return False
    if tensor.new_data is not None or tensor.set_late is not None:
        return False
    fake, node = tensor.fake, tensor.node
    numbers = [size for size in fake.shape if isinstance(size, int)]
    if 0 not in numbers or fake.layout is not torch.strided or fake.requires_grad or fake._is_view() or node.users:
        return False
    is_alias_of = torch_private.get("torch._C._is_alias_of")
    given = [each.meta.get("example_value") for each in node.all_input_nodes]
    return node.op != "placeholder" and not any(isinstance(each, torch.Tensor) and is_alias_of(each, fake) for each in given)


@method("retain_grad")
def _retain_grad(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    if tensor.fake.requires_grad and protocol.truth(t, protocol.getattr_(t, tensor, "is_leaf")):
        return t.make(None)  # a leaf has its gradient anyway
    t.break_("tensor-hook", function="Tensor.retain_grad", why="it belongs to the tensor itself", **observation(tensor))


# -- changes of the tensor itself ----------------------------------------------------------------------------------


@method("requires_grad_")
def _requires_grad_(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    (wanted,) = _arguments(t, args, kwargs, "requires_grad")
    tensor.set_requires_grad(t, t.make(True) if wanted is None else wanted)
    return tensor


@method("detach_")
def _detach_(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """A graph takes only what it made itself out of the autograd graph."""
    if tensor.fake.requires_grad and tensor.source is not None:
        tensor.set_requires_grad(t, t.make(False))
    return t.emit("detach_", [tensor])


@method("new_tensor")
def _new_tensor(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    given = dict(kwargs)
    given.setdefault("dtype", t.make(tensor.fake.dtype))
    given.setdefault("device", t.make(tensor.fake.device))
    return t.call(t.make(torch.tensor), args, given)


@method("new")
def _new(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.new(...)`, for which a torch.Size is a shape and a tuple is data; a graph's arguments do not distinguish
    them."""
    if len(args) == 1 and args[0].pytype() is torch.Size:
        return t.emit("new_empty", [tensor, args[0]], kwargs)
    return t.emit("new", [tensor, *args], kwargs)



def _with_factor(name: str, keyword: str) -> None:
    """`x.addcdiv_(a, b, value=v)` and its like where v is a 0-d tensor. Eager takes the number out of it; here it stays in
    the graph, as a factor."""
    base = name.rstrip("_")

    @method(name)
    def rule(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
        factor = kwargs.get(keyword)
        if not isinstance(getattr(factor, "fake", None), torch.Tensor):
            result = t.emit(name, [tensor, *args], kwargs)
            return tensor if getattr(result, "fake", None) is tensor.fake else result
        assert factor is not None
        computed, terms = _in_common_type(t, [tensor, *args])
        factor = protocol.call_method(t, factor, "detach")
        if base.startswith("addc") and tensor.fake.device.type == "cpu":
            # ATen's loops for processors multiply the first by the number, and a product is rounded with the sum: once
            terms[1] = protocol.binary(t, "*", terms[1], factor)
            if base == "addcmul":
                return _given_back(t, tensor, terms, computed, name, "addcmul", terms[1:])
            term = protocol.binary(t, "/", *terms[1:])
        else:
            term = protocol.binary(t, "/" if base == "addcdiv" else "*", *terms[1:]) if base.startswith("addc") else terms[1]
            term = protocol.binary(t, "*", term, factor)
        return _given_back(t, tensor, terms, computed, name, "sub" if base == "sub" else "add", [term])


def _given_back(t: Tracer, tensor: TensorValue, terms: Sequence[Any], computed: torch.dtype, name: str, how: str,
                operands: list[Any]) -> Value:
    """Emits method `how` of the first of `terms`, which is `tensor` in the type that is computed in, with `operands`: in
    place where `name` is, else in type `computed`."""
    inplace = name.endswith("_")
    if terms[0] is tensor:
        result = t.emit(how + ("_" if inplace else ""), [tensor, *operands])
        return tensor if inplace else result
    result = t.emit(how, [terms[0], *operands])
    if inplace:
        t.emit("copy_", [tensor, result])
        return tensor
    return t.emit("to", [result, t.make(computed)])


def _in_common_type(t: Tracer, tensors: Sequence[Any]) -> tuple[torch.dtype, list[Any]]:
    """The type of the result, and the tensors in the type that eager's kernel computes in: it rounds once, at the end."""
    fakes = [each.fake for each in tensors if hasattr(each, "fake")]
    common = functools.reduce(torch.promote_types, (torch.result_type(fakes[0], fake) for fake in fakes))
    inside = torch.float32 if common in (torch.float16, torch.bfloat16) else common
    return common, [each if not hasattr(each, "fake") or each.fake.dtype is inside else t.emit("to", [each, t.make(inside)])
                    for each in tensors]


for _name, _keyword in (("addcdiv", "value"), ("addcmul", "value"), ("add", "alpha"), ("sub", "alpha")):
    _with_factor(_name, _keyword)
    _with_factor(_name + "_", _keyword)
