"""Sparse tensors in the graph: operators that compute with them are nodes; what depends on how many elements they hold is none.

The fake of a sparse tensor holds none of its elements: it tells shape, type and layout of a result, and nothing of its indices
and values. What one that existed before is made of are inputs of their own, which nothing may write to. Writes break the graph
too, and so does an input whose sizes were seen to vary, as a sparse tensor's are no symbols.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.fx
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import schemas
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol, tensor_methods
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.tensor import FACTS, GivenTensor, TensorValue, as_operand, sparse_of
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.guards.kinds import ConstIs, TypeIs
from fxjit.guards.source import ApplySource, Source
from fxjit.tensor_wrappers import is_sparse

Args = Sequence[Value]
Kwargs = Mapping[str, Value]

#: Attributes that are other tensors.
_TENSORS: Final = frozenset(("T", "mT", "H", "mH"))
#: Methods that tell what a fake knows.
_TOLD: Final = frozenset((
    "size", "dim", "ndimension", "numel", "nelement", "element_size", "sparse_dim", "dense_dim", "is_floating_point",
    "is_complex", "is_signed", "get_device", "is_inference",
))
#: Methods with a rule for dense tensors that those of sparse ones do not need.
_PLAIN: Final = frozenset((
    "add", "sub", "addcmul", "addcdiv", "detach", "to_sparse", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc",
    "to_sparse_bsr", "to_sparse_bsc",
))
#: Methods that give what a sparse tensor is made of.
_MADE_OF: Final = frozenset(("indices", "values", "_indices", "_values", "_nnz", "crow_indices", "col_indices"))
#: As the old classes make them: indices are not compared with the size.
_of_any_indices: Final = torch.ops.aten._sparse_coo_tensor_unsafe.default
_PARTS: Final = "parts of sparse tensors"
_UNARY: Final[Mapping[str, Callable[[Any], Any]]] = {"neg": operator.neg, "pos": operator.pos, "abs": operator.abs}


class SparseValue(UntraceableValue):
    """A sparse tensor that the graph computes."""

    def __init__(self, node: torch.fx.Node, fake: torch.Tensor, cls: type = torch.Tensor) -> None:
        super().__init__(None, None, "tensor-layout", type="Tensor", layout=fake.layout, why="a sparse tensor")
        self._cls = cls
        self._computed: tuple[torch.fx.Node, torch.Tensor] | None = (node, fake)

    def as_input(self) -> tuple[torch.fx.Node, torch.Tensor]:
        assert self._computed is not None, "made with both"
        return self._computed

    @property
    def node(self) -> torch.fx.Node:  # type: ignore[override]  # a given one's is made when it is first read
        return self.as_input()[0]

    @property
    def fake(self) -> torch.Tensor:
        return self.as_input()[1]

    def pytype(self) -> type:
        return self._cls

    def graph_arg(self, t: Tracer) -> Any:
        return self.node

    def rebuild(self, cg: Rebuilder) -> None:
        raise AssertionError("a tensor is a graph output or has a source")

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(self.pytype())
        self.check_plain(t)
        if name in FACTS:
            return t.make(getattr(self.fake, name))
        if name == "shape":
            return TupleValue([t.make(size) for size in self.fake.shape], cls=torch.Size)
        if name in _TENSORS:
            return t.emit(getattr, [self, t.make(name)])
        found = protocol.type_lookup(torch.Tensor, name)
        if found is not None and callable(found) and not name.startswith("__"):
            return SparseMethodValue(self, name)
        self.refuse(t)

    def check_plain(self, t: Tracer) -> None:
        """Breaks the graph inside a mode that overrides torch's functions, whose rules are those of dense tensors."""
        if overrides.innermost(t) is not None:
            self.refuse(t)

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        self.check_plain(t)
        operand = as_operand(t, other)
        if operand is None:
            return NOT_IMPLEMENTED
        return t.emit(protocol.BINARY[op], [operand, self] if reflected else [self, operand])

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        return NOT_IMPLEMENTED if op == "@" else self.refuse(t)

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        self.check_plain(t)
        return t.emit(_UNARY[op], [self]) if op in _UNARY else self.refuse(t)


def _legacy_constructor(cls: Any, dtype: torch.dtype) -> None:
    """`torch.sparse.FloatTensor(indices, values, size)`, of older programs."""
    @handles(cls)
    def make(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        args = [arg.realize() for arg in args]
        plain = [arg for arg in args[:2] if isinstance(arg, TensorValue) and arg.cls in (torch.Tensor, torch.nn.Parameter)]
        if kwargs or len(args) != 3 or len(plain) != 2 or args[2].pytype() is not torch.Size:
            t.break_("class-instantiation-unsupported", cls=cls.__name__)
        if plain[0].fake.dtype is not torch.int64 or plain[1].fake.dtype is not dtype:  # others raise
            t.break_("class-instantiation-unsupported", cls=cls.__name__)
        return t.emit(_of_any_indices, args)


for _name, _dtype in (("FloatTensor", torch.float32), ("DoubleTensor", torch.float64)):
    _legacy_constructor(getattr(torch.sparse, _name), _dtype)  # not in the stubs


@sparse_of.provide
def _given_sparse(t: Tracer, real: torch.Tensor, source: Source) -> Value | None:
    if type(real) not in (torch.Tensor, torch.nn.Parameter) or not is_sparse(real) or real._is_view():
        return None
    t.given_tensor(real, source)
    return GivenSparse(t, real, source)


class GivenSparse(SparseValue):
    """One that existed before the frame. It is an input of the graph once more is read than its type and layout."""

    def __init__(self, t: Tracer, real: torch.Tensor, source: Source) -> None:
        UntraceableValue.__init__(self, real, source, "tensor-layout", type=type(real).__name__, layout=real.layout,
                                  why="a sparse tensor")
        self._cls, self._computed = type(real), None
        self.real: Final = real
        self._tracer: Final = t
        self._parts: Final[dict[str, Value]] = {}

    def as_input(self) -> tuple[torch.fx.Node, torch.Tensor]:
        if self._computed is None:
            assert self.source is not None, "it existed before"
            with _disable_current_modes():  # somebody may look at it who runs an operator on fakes
                self._computed = self._tracer.graph_input(self.real, self.source)
            self._guard_facts()
        return self._computed

    def _guard_facts(self) -> None:
        assert self.source is not None, "it existed before"
        facts = SparseFacts()
        self._tracer.guard(ConstIs(ApplySource(self.source, facts, "sparse_facts"), facts(self.real)))

    def part(self, t: Tracer, name: str) -> Value:
        """`self.indices()` and its like: an input of the graph, with a size that may vary, and another tensor each time."""
        if name in self._parts:
            return t.emit("detach", [self._parts[name]])
        with torch._C.DisableTorchFunctionSubclass(), _disable_current_modes():
            if self.source is None or self.real.requires_grad or torch.is_inference_mode_enabled() or self.real.is_inference():
                self.refuse(t)
            try:
                found = getattr(self.real, name)()
            except RuntimeError:  # as of indices that were not coalesced
                self.refuse(t)
        self._guard_facts()
        source = ApplySource(self.source, getattr(torch.Tensor, name), name)
        if not isinstance(found, torch.Tensor):
            return t.wrap(found, source)
        t.guard(TypeIs(source, torch.Tensor))
        part = self._parts[name] = GivenTensor(t, found, source)
        t.new_source_state(_PARTS)[str(_memory(part.fake))] = True
        return part

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "is_leaf":
            self.as_input()  # whose guard holds it
            return t.make(self.real.is_leaf)
        return super().tp_getattro(t, name)


@dataclass(frozen=True)
class SparseFacts:
    """What the fake of a sparse tensor tells: what a graph that computes with the tensor relies on."""

    def __call__(self, tensor: torch.Tensor) -> tuple[object, ...]:
        with torch._C.DisableTorchFunctionSubclass():
            coo = tensor.layout is torch.sparse_coo
            return (str(tensor.layout), tuple(tensor.shape), tensor.sparse_dim(), tensor.dense_dim(), str(tensor.dtype),
                    str(tensor.device), tensor.requires_grad, tensor.is_leaf, tensor.is_inference(),
                    coo and tensor.is_coalesced(), "" if coo else _index_type(tensor))


def _index_type(tensor: torch.Tensor) -> str:
    rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    return str((tensor.crow_indices() if rows else tensor.ccol_indices()).dtype)


class SparseMethodValue(Value):
    """A method of a sparse tensor, bound."""

    def __init__(self, owner: SparseValue, name: str) -> None:
        super().__init__(None)
        self.owner: Final = owner
        self.name: Final = name

    def pytype(self) -> type:
        return type(getattr(self.owner.fake, self.name))

    def describe(self) -> str:
        return f"`Tensor.{self.name}` of a sparse tensor"

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        self.owner.refuse(t)

    def tp_call(self, t: Tracer, args: Args, kwargs: Kwargs) -> Value:
        owner, name = self.owner, self.name
        if name in _TOLD and all(arg.is_constant() for arg in (*args, *kwargs.values())):
            told = protocol.fold(t, lambda: getattr(owner.fake, name)(
                *[arg.as_constant() for arg in args], **{key: arg.as_constant() for key, arg in kwargs.items()}))
            return told
        if name == "is_coalesced" and isinstance(owner, GivenSparse) and owner.fake.layout is torch.sparse_coo:
            return t.make(owner.real.is_coalesced())
        if name in _MADE_OF and isinstance(owner, GivenSparse) and not args and not kwargs:
            return owner.part(t, name)
        if name in tensor_methods.METHODS and name not in _PLAIN:
            owner.refuse(t)
        return t.emit(name, [owner, *args], kwargs)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push(self.owner)
        cg.asm.load_attr(self.name)


def check(t: Tracer, node: torch.fx.Node) -> None:
    """Breaks the graph at a call whose result, or effect, the fakes of its sparse arguments do not tell."""
    parts = t.new_source_state(_PARTS)
    if parts and any(str(_memory(each.meta.get("example_value"))) in parts for each in schemas.written(node)):
        written = f"`{schemas.name_of(node.target)}` writes to them"
        t.break_("tensor-layout", layout="of a sparse tensor's elements", why=written)
    sparse = [each for each in schemas.tensors_at(node) if is_sparse(each)]
    if not sparse:
        return
    why = _why_unknown(node)
    if not why and any(is_fixed(size) for each in schemas.tensors_at(node) for size in each.shape):
        why = "it would fix a size that varies"
    if why:
        t.break_("tensor-layout", layout=sparse[0].layout, why=f"`{schemas.name_of(node.target)}`: {why}")


def _memory(fake: object) -> int | None:
    if not isinstance(fake, torch.Tensor) or fake.layout is not torch.strided:
        return None
    return int(fake.untyped_storage()._cdata)


def is_fixed(size: Any) -> bool:
    """Whether it is a symbol that something decided on."""
    return isinstance(size, torch.SymInt) and size.node.maybe_as_int() is not None


def _why_unknown(node: torch.fx.Node) -> str:
    if node.target is not getattr and not schemas.is_aten(node.target):
        return "not an operator of ATen"
    if schemas.written(node):
        return "it writes to a tensor"
    result = node.meta["example_value"]
    if not isinstance(result, torch.Tensor):
        return "its result is no tensor"
    base = schemas.view_base(node)
    if not is_sparse(result) and base is not None and is_sparse(base.meta["example_value"]):
        return "its result depends on which elements there are"
    return ""
