"""Effects of a call in an FX graph: which arguments it writes to, what its result is a view of, whether it uses random numbers.

ATen operators declare that in their schemas and tags, also where the graph calls them as methods of tensors or as functions of
torch. The tables below are for what has no schema: Python's in-place operators, and functions of torch that are written in
Python. For any other callee, a function of the program's own, the front end notes in `node.meta` what it saw when the function
ran on fake tensors (`Observed`); without such a note it may write to all its arguments.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import keyword
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fxjit import torch_private
from fxjit.homes import module_of, package_of
from fxjit.origins import Whose, origin_of
from fxjit.tensor_wrappers import is_sparse, is_wrapper_class, storages

Node = torch.fx.Node
Arguments = dict[str, Any]
_CALLS = ("call_function", "call_method")
#: The key in `node.meta` of an `Observed`.
OBSERVED = "fxjit_observed"
#: The key in `node.meta` of a placeholder that is a parameter or a buffer of a module (passes/constants.py).
MODULE_STATE = "fxjit_module_state"

#: Namespaces of operators that do nothing but compute on tensors.
_OF_TENSORS = frozenset({"aten", "prims", "quantized"})

#: Methods of Python's in-place operators that tensors have. `@=`, which they lack, makes a new tensor.
IN_PLACE_METHODS = frozenset(
    name for name in dir(operator)
    if name.startswith("__i") and hasattr(operator, "__" + name[3:]) and hasattr(torch.Tensor, name)
) | {"__setitem__"}  # fmt: skip
IN_PLACE_FUNCTIONS = frozenset(getattr(operator, name) for name in IN_PLACE_METHODS)
#: Parameters of torch's Python functions that have them write, where they are given and not False: to which parameter.
_WRITES_IF = {"inplace": "input", "out": "out", "max_norm": "weight"}
#: What normalisations over a batch update in training, at a pace that they are given. Few schemas declare it.
_STATISTICS = ("running_mean", "running_var")
_PACES = ("momentum", "exponential_average_factor")
_TRAINING = ("training", "train", "use_input_stats")
_WITHOUT_UPDATE = ("_functional", "_no_training", "_no_update")
#: Composite dropouts: their result is the input itself where they drop nothing.
_DROPOUTS = frozenset(f"{kind}dropout{end}" for kind in ("", "alpha_", "feature_", "feature_alpha_") for end in ("", "_")) | {
    "dropout1d", "dropout2d", "dropout3d"}  # fmt: skip
#: Operators whose result is in their first argument's memory, which they don't declare, so that autograd takes it for new.
_UNDECLARED_VIEWS = frozenset({"_unsafe_view"})
#: Parameters of operators that lay out their result in its argument's storage as they are told, and operators without such
#: parameters that do so inside.
_LAYOUTS = frozenset({"stride", "storage_offset"})
STRIDED_INSIDE = frozenset({"fill_diagonal_"})
#: Namespaces of torch's functional collectives.
_COLLECTIVES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional"})
_KNOWN_PACKAGES = frozenset({"torch", "math", "_operator", "operator", "builtins", "fxjit"})


@dataclass(frozen=True, slots=True)
class Observed:
    """Effects of a callee without a schema, seen in a run on fake tensors."""

    #: Positions among the leaves of the call's arguments.
    written: frozenset[int]
    random: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """One overload of an operator, or one Python function: its parameters and what is declared of them."""

    #: All parameters, those that may be positional first; the kind of each, where it is known; what they are if not given.
    names: tuple[str, ...]
    positional: int
    kinds: dict[str, str]
    defaults: Arguments
    #: Parameters that are written to: always, or if another parameter is given and not False.
    written: tuple[str, ...]
    written_if: tuple[tuple[str, str], ...] = ()
    #: For each result: the parameter in whose memory it is, None for new memory.
    bases: tuple[str | None, ...] = ()
    #: Whether it updates the running statistics that it is given without declaring it.
    updates_statistics: bool = False

    def bind(self, node: Node) -> Arguments:
        """The call's arguments by name. Surplus positional ones continue a list, as in `x.resize_(2, 3)`."""
        given = dict(zip(self.names[: self.positional], node.args, strict=False)) | node.kwargs
        if "input" in given and "self" in self.names:
            given.setdefault("self", given["input"])  # what torch's functions call it
        return self.defaults | given

    def fits(self, arguments: Arguments) -> bool:
        """Whether a list stands where a list is expected, and no list elsewhere: overloads differ in that."""
        for name, kind in self.kinds.items():
            given = arguments.get(name)
            if given is not None and not isinstance(given, Node) and isinstance(given, (list, tuple)) != (kind == "list"):
                return kind == "numbers"
        return True


def written(node: Node) -> list[Node]:
    """The tensors among the arguments that the call writes to."""
    if node.op not in _CALLS:
        return []
    observed = node.meta.get(OBSERVED)
    if isinstance(observed, Observed):
        return [leaf for place, leaf in enumerate(_leaves(node)) if place in observed.written]
    if not is_known(node.target):
        return list(filter(_may_be_tensor, node.all_input_nodes))
    given: list[Any] = [node.kwargs.get("out")]
    if node.target in IN_PLACE_FUNCTIONS or node.target in IN_PLACE_METHODS:
        given.append(node.args[0])
    elif not any(each.written or each.written_if or each.updates_statistics for each in signatures(node.target)):
        return []
    for signature, arguments in _bound(node):
        given += [arguments.get(name) for name in signature.written]
        given += [arguments.get(name) for flag, name in signature.written_if if arguments.get(flag) not in (None, False)]
    leaves = dict.fromkeys([*_nodes_in(given), *updated_statistics(node)])
    return list(filter(_may_be_tensor, leaves))


def writes(node: Node) -> bool:
    """Whether the call writes to an argument, or takes a graph that writes at all."""
    return bool(written(node)) or any(writes(each) for graph in inner_graphs(node) for each in graph.graph.nodes)


def updated_statistics(node: Node) -> list[Node]:
    """The running statistics that the call updates without declaring it, as `batch_norm` does in training."""
    for signature, arguments in _bound(node):
        if signature.updates_statistics and _trains(arguments):
            return list(_nodes_in(arguments.get(name) for name in _STATISTICS))
    return []


def replaced_statistics(node: Node) -> tuple[list[Node], tuple[int, ...]]:
    """The running statistics that the call reads for nothing but the next ones, as `batch_norm` does in training, and which of
    its results those are."""
    for signature, arguments in _bound(node):
        if set(_STATISTICS) <= set(signature.names) and any(arguments.get(name) is True for name in _TRAINING):
            results = [place for overload in overloads_of(node.target) for place, each in enumerate(overload._schema.returns)
                       if each.name and each.name.startswith(_STATISTICS)]
            return list(_nodes_in(arguments.get(name) for name in _STATISTICS)), tuple(results)
    return [], ()


def view_base(node: Any) -> Node | None:
    """The argument in whose memory the call's single result is: a view's base, or what an in-place operator wrote to."""
    if isinstance(node, Node):
        for signature, arguments in _bound(node):
            base = arguments.get(signature.bases[0]) if len(signature.bases) == 1 and signature.bases[0] is not None else None
            if isinstance(base, Node):
                return base
    return None


@functools.cache
def views_first_argument(overload: OpOverload) -> bool:
    """Whether the ATen operator's one result is a view of its first argument, which it does not write to. Composite operators,
    as `reshape` and `contiguous`, give a view or a copy."""
    signature = _of_schema(overload)
    composite = has_kernel(overload, "CompositeImplicitAutograd")
    return len(signature.bases) == 1 and signature.bases[0] == signature.names[0] and not signature.written and not composite


def has_kernel(overload: OpOverload, key: str) -> bool:
    """Whether the dispatcher has a kernel for the key. It does not know TorchScript's own operators (`aten::size`), which a
    function that torch.func transforms gets to, and raises where it is asked about one."""
    name = overload.name()
    return torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def reaches_beyond(node: Node) -> bool:
    """Whether the call may get at memory of an argument's storage that is none of its elements, or give the argument another
    shape. What is called without a schema may."""
    if node.op not in _CALLS or not is_known(node.target):
        return node.op in _CALLS and bool(written(node))
    return any(map(_reaches_beyond, overloads_of(node.target)))


@functools.cache
def _reaches_beyond(overload: OpOverload) -> bool:
    signature = _of_schema(overload)
    is_told = not _LAYOUTS.isdisjoint(signature.names) and signature.bases[:1] == signature.names[:1]
    return is_told or torch.Tag.inplace_view in overload.tags or overload._opname in STRIDED_INSIDE


def returns_alias(target: Any) -> bool:
    """Whether a result of the operator shares memory with an argument. Without a schema it may."""
    declared = signatures(target)
    return not declared or any(base is not None for signature in declared for base in signature.bases)


def uses_rng(node: Node) -> bool:
    """Whether the call may use random numbers, or takes or stands for a graph that may."""
    if any(uses_rng(each) for graph in inner_graphs(node) for each in graph.graph.nodes):
        return True
    if node.op not in _CALLS:
        return False
    observed = node.meta.get(OBSERVED)
    if isinstance(observed, Observed):
        return observed.random
    return not is_known(node.target) or (target_uses_rng(node.target) and not _is_deterministic(node))


def acts_outside(node: Node) -> bool:
    """Whether the call may do more than compute on tensors: an operator or function of the program's own, a collective, for
    which other processes wait; or whether it takes or stands for a graph that may."""
    if any(acts_outside(each) for graph in inner_graphs(node) for each in graph.graph.nodes):
        return True
    if node.op != "call_function":
        return node.op == "call_module"
    target = node.target
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return _namespace(target) not in _OF_TENSORS
    return not is_known(target) or module_of(target).startswith("torch.distributed")


def drops_nothing(node: Node) -> bool:
    """Whether it is a dropout outside training or with a probability of 0, whose result is its input."""
    return node.op in _CALLS and name_of(node.target) in _DROPOUTS and _is_deterministic(node)


def target_uses_rng(target: Any) -> bool:
    """Whether the operator or function may use random numbers, by some arguments."""
    if isinstance(target, types.FunctionType):
        told: bool | None = getattr(target, "uses_rng", None)
        return is_known(target) and (_function_uses_rng(target) if told is None else told)
    return any(torch.Tag.nondeterministic_seeded in each.tags for each in overloads_of(target))


def communicates(target: Any) -> bool:
    """Whether the operator is one of torch's collectives, or waits for one: these are called as often, and in the same
    order, as on the other ranks."""
    return isinstance(target, (OpOverload, OpOverloadPacket)) and _namespace(target) in _COLLECTIVES


def _namespace(target: OpOverload | OpOverloadPacket) -> str:
    name = target._qualified_op_name if isinstance(target, OpOverloadPacket) else target.namespace
    return name.partition("::")[0]


def runs_once(target: Any) -> bool:
    """Whether the callee may do something else when it is called a second time with the same arguments, once they and the
    random generators are as they were: an operator that is neither ATen's nor ours, or a function of the program's own.
    Functions that an installed package gave to `allow_in_graph` (einops') are taken at their word: they only compute."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return str(target).partition(".")[0] not in ("aten", "fxjit")
    if isinstance(target, types.FunctionType) and not hasattr(target, "runs_once"):
        return not is_known(target) and not getattr(target, "is_opaque", False) and not _is_of_a_package(target)
    # What our wrappers call was rehearsed, or is NumPy's: it does nothing else than write to tensors, which is seen.
    return not is_known(target) and (not getattr(target, "is_opaque", False) or getattr(target, "runs_once", False))


_definitions: Final[Any] = torch_private.get_or("torch._library.custom_ops.OPDEFS", {})


def only_computes(target: Any) -> bool:
    """Whether the callee is an operator that an installed package declared by `torch.library.custom_op` to write to nothing and
    to draw nothing. It is taken at its word, as what packages give to `allow_in_graph` is: where the graph fails, it may run
    again."""
    overloads = overloads_of(target) if isinstance(target, (OpOverload, OpOverloadPacket)) else ()
    return bool(overloads) and all(map(_is_declared_to_compute, overloads))


def _is_declared_to_compute(overload: OpOverload) -> bool:
    definition = _definitions.get(overload._schema.name)
    if definition is None or overload._schema.is_mutable or torch.Tag.nondeterministic_seeded in overload.tags:
        return False
    return _is_of_a_package(definition._init_fn)


def _is_of_a_package(fn: types.FunctionType) -> bool:
    """Whether an installed package has its code; torch and fxjit do not count."""
    return origin_of(fn.__code__.co_filename).whose is Whose.PACKAGE and package_of(fn) not in ("torch", "fxjit")


def may_raise_on(overload: OpOverload, given: Sequence[Sequence[torch.Tensor]]) -> bool:
    """Whether the operator may raise because of the numbers that it is given, `given` being the tensors of each argument that
    has any: it looks things up by integers, or divides by them, draws by probabilities, factorises a matrix, or is there to
    check something."""
    if overload.namespace not in ("aten", "prims", "prim"):  # `prim.device`: a query
        return True
    dtypes = {each.dtype for value in given for each in value}
    if not dtypes or overload is torch.ops.aten.copy_.default or returns_alias(overload):
        return False
    if not overload._schema.returns or torch.Tag.nondeterministic_seeded in overload.tags or _refuses_numbers(overload._opname):
        return True
    if all(each.is_floating_point or each.is_complex or each is torch.bool for each in dtypes):
        return False
    if any(part in overload._opname for part in _DIVISIONS):
        return True
    # Integers alone are no places in something.
    return torch.Tag.pointwise not in overload.tags and (len(given) > 1 or not _DYNAMIC.isdisjoint(overload.tags))


#: Of data-dependent results.
_DYNAMIC = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
#: No schema tells the kernels that look at numbers and refuse some, nor that only these raise on a zero.
_DIVISIONS = ("div", "rem", "mod", "pow")
_REFUSING = frozenset({"binary_cross_entropy", "histc", "histogram", "masked_scatter", "segment_reduce", "cholesky"})


def _refuses_numbers(name: str) -> bool:
    return name in _REFUSING or "linalg" in name or "histogramdd" in name


def is_known(target: Any) -> bool:
    """Whether the callee's effects are known here: a method of tensors, an operator, a function of Python, torch or fxjit,
    unless that is a wrapper of the program's own function (`is_opaque`)."""
    if isinstance(target, (str, torch._ops.OperatorBase, OpOverloadPacket)):
        return True
    package = package_of(target) or "builtins"
    return package in _KNOWN_PACKAGES and not getattr(target, "is_opaque", False)


def signatures(target: Any) -> tuple[Signature, ...]:
    """Declared signatures of the callee, one for each overload; none for an undeclared one."""
    if isinstance(target, types.FunctionType):
        return (_of_function(target),) if is_known(target) else ()
    overloads = overloads_of(target)
    if not overloads and isinstance(target, str) and is_in_place_name(target):
        return (Signature(("self",), 1, {}, {}, ("self",), bases=("self",)),)
    return tuple(map(_of_schema, overloads))


def name_of(target: Any) -> str:
    """The callee's name, an operator's without its overload."""
    if isinstance(target, OpOverload):
        return target._opname
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


def inner_graphs(node: Node) -> Iterator[torch.fx.GraphModule]:
    """The graphs that a higher-order operator is given, or that the node stands for."""
    for each in (node, *node.all_input_nodes) if node.op in _CALLS else (node,):
        held = each.meta.get("example_value") if each.op == "get_attr" else None
        if held is None and each.op == "get_attr":
            held = getattr(each.graph.owning_module, str(each.target), None)
        if isinstance(held, torch.fx.GraphModule):
            yield held


class Observer(TorchDispatchMode):
    """Watches the operators of a run on fake tensors, for an `Observed`."""

    supports_higher_order_operators = True

    def __init__(self, refusals: tuple[type[Exception], ...] = ()) -> None:
        super().__init__()
        self._refusals = refusals
        #: What an operator said that cannot be run on fake tensors; reset where the run starts again.
        self.refused = ""
        self.random = False
        #: Whether an operator may raise because of its numbers, and whether one is to tell numbers, which no fake tensor has.
        self.may_raise = self.asked = False
        #: A collective that writes to its arguments, which no graph keeps in its place among others.
        self.collective = ""
        self._storages: set[int] = set()
        self._memory = _MemoryAccess(self) if refusals else contextlib.nullcontext()

    def __enter__(self) -> Observer:
        self._memory.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._memory.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(is_wrapper_class, types)):
            return NotImplemented  # its `__torch_dispatch__` makes calls of its own
        self.random = self.random or target_uses_rng(func)
        self.may_raise = self.may_raise or _may_raise(func, args, kwargs)
        self.asked = self.asked or (isinstance(func, OpOverload) and torch.Tag.data_dependent_output in func.tags)
        if isinstance(func, OpOverload) and func.namespace == "c10d":
            self.collective = func._opname
        if isinstance(func, OpOverload) and func._schema.is_mutable:
            given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
            for each in pytree.tree_leaves([given.get(name) for name in _of_schema(func).written]):
                if isinstance(each, torch.Tensor):
                    self._storages |= storages(each)
        try:
            return func(*args, **kwargs)
        except self._refusals as error:
            self.refused = f"{func}: {error}"
            raise

    def effects_on(self, node: Node) -> Observed:
        """The observed effects, for the node that makes the call."""
        return Observed(frozenset(place for place, leaf in enumerate(_leaves(node)) if self._has_written(leaf)), self.random)

    def _has_written(self, argument: Any) -> bool:
        values = pytree.tree_leaves(argument.meta.get("example_value")) if isinstance(argument, Node) else []
        return any(isinstance(each, torch.Tensor) and not storages(each).isdisjoint(self._storages) for each in values)


class _MemoryAccess(TorchFunctionMode):
    """Tells an observer of methods that give out the memory itself: fake tensors refuse them, but call no operator."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _GIVING_MEMORY:
            self.observer.refused = f"Tensor.{func.__name__}"
        return func(*args, **(kwargs or {}))


_GIVING_MEMORY = frozenset({torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__})


def _may_raise(func: Any, args: Any, kwargs: Any) -> bool:
    if not isinstance(func, OpOverload):
        return True
    given = (pytree.tree_leaves(each) for each in (*args, *kwargs.values()))
    tensors = [[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] for leaves in given]
    return may_raise_on(func, [each for each in tensors if each])


def _bound(node: Node) -> list[tuple[Signature, Arguments]]:
    """The overloads that the call may be of, with its arguments; all, if it seems to be of none."""
    if node.op not in _CALLS:
        return []
    every = [(signature, signature.bind(node)) for signature in signatures(node.target)]
    return [(signature, arguments) for signature, arguments in every if signature.fits(arguments)] or every


def _leaves(node: Node) -> list[Any]:
    return pytree.tree_leaves((node.args, node.kwargs))


def _nodes_in(given: Iterable[Any]) -> Iterator[Node]:
    for leaf in pytree.tree_leaves(list(given)):
        if isinstance(leaf, Node):
            yield leaf


def _may_be_tensor(node: Node) -> bool:
    """Unless its fake value says otherwise: nothing writes to a number."""
    value = node.meta.get("example_value", node.meta.get("val"))
    return value is None or any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _trains(arguments: Arguments) -> bool:
    """False where a flag says so. The graph's own value, or None, may be true."""
    return not any(arguments.get(name) is False for name in _TRAINING)


def _is_deterministic(node: Node) -> bool:
    """Whether arguments keep an operator that may use random numbers from it: outside training, or nothing is dropped."""
    names = ("p", "dropout_p", "dropout") if name_of(node.target) in _DROPOUTS else ("dropout_p", "dropout")
    bound = _bound(node)
    return bool(bound) and all(
        not _trains(arguments) or any(_is_zero(arguments.get(name)) for name in names) for _, arguments in bound)


def _is_zero(given: Any) -> bool:
    return isinstance(given, (int, float)) and given == 0


# Memory


def tensors_of(node: Node) -> Iterator[torch.Tensor]:
    """The fake tensors that the node of a captured graph gave."""
    for leaf in pytree.tree_leaves(node.meta.get("example_value")):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def tensors_at(node: Node) -> Iterator[torch.Tensor]:
    """The fake tensors that the node of a captured graph takes and gives."""
    for each in (*node.all_input_nodes, node):
        yield from tensors_of(each)


def touches_sparse(node: Node) -> bool:
    """Whether the call takes or gives a sparse tensor."""
    return node.op in _CALLS and any(map(is_sparse, tensors_at(node)))


def storages_of(nodes: Iterable[Node]) -> set[int]:
    """The storages of what the nodes gave; sparse tensors have none."""
    tensors = (tensor for node in nodes for tensor in tensors_of(node))
    return {place for tensor in tensors for place in storages(tensor)}


def all_nodes(graph: torch.fx.Graph) -> Iterator[Node]:
    """The nodes of a captured graph and of those that its higher-order operators take."""
    for node in graph.nodes:
        yield node
        if node.op == "get_attr":
            for inner in inner_graphs(node):
                yield from all_nodes(inner.graph)


def written_storages(graph: torch.fx.Graph, by: Callable[[Node], bool] = lambda node: True) -> set[int]:
    """The storages that the captured graph writes to, or only those nodes of it."""
    return {place for node in all_nodes(graph) if by(node) for place in storages_of(written(node))}


# Schemas


def overloads_of(target: Any) -> tuple[OpOverload, ...]:
    """The ATen operators that the callee may be: a method of tensors, or a function of torch's C++, is any of its name."""
    if isinstance(target, OpOverload):
        return (target,)
    if isinstance(target, OpOverloadPacket):
        return _overloads_in(target)
    if isinstance(target, types.MethodDescriptorType):
        return _aten(target.__name__) if target.__objclass__ is torch._C.TensorBase else ()
    if isinstance(target, types.BuiltinFunctionType):
        return _aten(target.__name__) if package_of(target) == "torch" else ()
    return _aten(target) if isinstance(target, str) else ()


def by_place(target: Any, args: tuple[Any, ...],
             kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The same call of an operator without arguments by names that are words of Python (`from`), in which FX writes calls."""
    for overload in overloads_of(target):
        placed, rest = list(args), dict(kwargs)
        for each in overload._schema.arguments[len(args):]:
            if each.kwarg_only or each.name not in rest:
                break
            placed.append(rest.pop(each.name))
        if not any(map(keyword.iskeyword, rest)):
            return tuple(placed), rest
    return None


_has_schemas: Final[Any] = torch_private.get_or("torch._C._jit_get_schemas_for_operator", lambda name: True)


#: Operators that torch has under a second name, of whose overloads no tag tells what kind they are.
_SECOND_NAMES: Final = {
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne", "multiply": "mul",
    "subtract": "sub", "divide": "div", "true_divide": "div", "negative": "neg", "absolute": "abs", "fix": "trunc",
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2",
    "arctanh": "atanh", "spmm": "mm", "dsmm": "mm", "hsmm": "hspmm",
}


def is_aten(target: Any) -> bool:
    """Whether the callee is ATen's, by any name that operators of Python's and methods of tensors have for it."""
    if isinstance(target, str) or getattr(operator, name_of(target), None) is target:
        return True
    overloads = overloads_of(target)
    return bool(overloads) and all(_namespace(each) == "aten" for each in overloads)


def first_name(name: str) -> str:
    """Of an operator that torch has under two names, in place or not, the one whose tags tell what kind it is."""
    plain = name.rstrip("_")
    return _SECOND_NAMES.get(plain, plain) + name[len(plain):]


@functools.cache
def _aten(name: str) -> tuple[OpOverload, ...]:
    name = first_name(name)
    found = getattr(torch.ops.aten, name, None) if _has_schemas(f"aten::{name}") else None
    return _overloads_in(found) if isinstance(found, OpOverloadPacket) else ()


@functools.cache
def _overloads_in(packet: OpOverloadPacket) -> tuple[OpOverload, ...]:
    """Those that the dispatcher has; the others are TorchScript's, of lists and strings."""
    every = (getattr(packet, name) for name in packet.overloads())
    return tuple(each for each in every if torch._C._dispatch_has_kernel(each.name()))


@functools.cache
def _of_schema(overload: OpOverload) -> Signature:
    arguments = sorted(overload._schema.arguments, key=lambda each: bool(each.kwarg_only))
    in_set = {each: argument.name for argument in arguments if argument.alias_info is not None
              for each in argument.alias_info.before_set}  # fmt: skip
    # The parts of a split are in a set of their own: the operator has one aliased argument.
    bases = [next((in_set[each] for each in result.alias_info.before_set if each in in_set), next(iter(in_set.values())))
             if result.alias_info is not None else None for result in overload._schema.returns]  # fmt: skip
    names = tuple(each.name for each in arguments)
    if overload._opname in _UNDECLARED_VIEWS:
        bases = [*names[:1]]
    written_to = tuple(each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write)
    return Signature(
        names,
        sum(not each.kwarg_only for each in arguments),
        {each.name: _kind(each.type) for each in arguments},
        {each.name: each.default_value for each in arguments if each.has_default_value()},
        written_to,
        bases=tuple(bases),
        updates_statistics=_updates_statistics(overload._opname, names) and not set(_STATISTICS) <= set(written_to),
    )


def _updates_statistics(name: str, parameters: tuple[str, ...]) -> bool:
    return set(_STATISTICS) <= set(parameters) and not set(_PACES).isdisjoint(parameters) and not name.endswith(_WITHOUT_UPDATE)


def _kind(type_: Any) -> str:
    """A list of tensors, a list of numbers (for which one number may stand), or no list."""
    if isinstance(type_, torch.OptionalType):
        return _kind(type_.getElementType())
    if isinstance(type_, torch.ListType):
        return "list" if isinstance(type_.getElementType(), (torch.TensorType, torch.OptionalType)) else "numbers"
    return "single"


# Functions that are written in Python


@functools.cache
def _of_function(function: types.FunctionType) -> Signature:
    parameters = inspect.signature(function).parameters.values()
    first = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    names = (*first, *(each.name for each in parameters if each.name not in first))
    return Signature(
        names, len(first), {},
        {each.name: each.default for each in parameters if each.default is not each.empty},
        names[:1] if is_in_place_name(function.__name__) else (),
        tuple((flag, name) for flag, name in _WRITES_IF.items() if flag in names and name in names),
        updates_statistics=_updates_statistics(function.__name__, names),
    )  # fmt: skip


def is_in_place_name(name: str) -> bool:
    """torch's convention for what writes to its first argument."""
    return name.endswith("_") and not name.startswith("__")


@functools.cache
def _function_uses_rng(function: types.FunctionType) -> bool:
    """Whether the code of a function of torch, or of those that it calls, names an operator that uses random numbers."""
    seen = {function}
    to_read = [function]
    while to_read:
        each = to_read.pop()
        held = [cell.cell_contents for cell in each.__closure__ or ()] + [getattr(each, "__wrapped__", None)]
        for name in _names_in(each.__code__):
            if target_uses_rng(name):
                return True
            held.append(each.__globals__.get(name))
        for other in held:
            # What subclasses override (torch.overrides) is called by everything and names everything.
            if isinstance(other, types.FunctionType) and other not in seen and is_known(other) and (
                    module_of(other) != "torch.overrides"):
                seen.add(other)
                to_read.append(other)
    return False


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def goes_by_element(node: torch.fx.Node) -> bool:
    """Whether each element that a call writes depends on that of the same place in the other operands only."""
    if node.target in IN_PLACE_FUNCTIONS:
        return node.target is not operator.imatmul
    return name_of(node.target) == "copy_" or any(torch.Tag.pointwise in each.tags for each in overloads_of(node.target))


def is_pure_by_element(name: str) -> bool:
    """Whether the operator of this name changes nothing, draws nothing, and makes each element of those of the same place."""
    packet = getattr(torch.ops.aten, name, None)
    tags = [getattr(packet, each).tags for each in packet.overloads()] if packet is not None else []
    return any(torch.Tag.pointwise in each for each in tags) and not any(
        torch.Tag.nondeterministic_seeded in each for each in tags) and not name.endswith("_")


def part_written(node: torch.fx.Node, place: torch.fx.Node) -> torch.Tensor | None:
    """What the call writes to of the tensor at `place`; None for a part that only a run shows. Nothing is asked of symbols."""
    fake = next(tensors_of(place))
    if node.target is not operator.setitem:
        return fake
    key: Any = torch.fx.map_arg(node.args[1], lambda number: number.meta.get("example_value"))
    parts = key if isinstance(key, tuple) else (key,)
    numbers = [bound for each in parts for bound in (
        (each.start, each.stop, each.step) if isinstance(each, slice) else (each,)) if bound is not None and bound is not ...]
    if not all(isinstance(each, (int, torch.SymInt)) and type(each) is not bool for each in numbers):
        return None
    mode: Any = getattr(fake, "fake_mode", None)
    environment = getattr(mode, "shape_env", None)
    with (torch.no_grad(), contextlib.nullcontext() if mode is None else mode,
          contextlib.nullcontext() if environment is None else environment.suppress_guards()):
        return fake[key]
