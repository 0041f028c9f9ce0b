"""Fingerprints of captured graphs: two graphs of the same text compile to the same code, in this process or another.

The text has the nodes, everything about the inputs but their numbers (which of them share memory, too), and the state of the
process that decides what torch makes of the nodes; where sizes or numbers vary, also what is known of their symbols
(`assumptions`): a compile that assumes more of them is one whose guards the text does not have. Whatever might mean another
thing next time has no text: sizes that data decides, code of the program's own (functions, subclasses of tensors, modes; of
operators and autograd Functions, what operators.py cannot say all of), modules, tensors held by the graph.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import torch
import torch.fx
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from fxjit import process_state, torch_private
from fxjit.applied import applied_class
from fxjit.copied_context import in_copied_context
from fxjit.homes import module_of, package_of
from fxjit.schemas import MODULE_STATE, OBSERVED, inner_graphs

from .operators import TORCHS, Unknown, function_text, is_torchs, operator_text

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_C: Any = torch._C
_DeviceContext: Final = torch_private.optional("torch.utils._device.DeviceContext")
_NAMESPACES: tuple[Any, ...] = (
    torch, torch.nn.functional, _C, _C._nn, torch.linalg, torch.fft, torch.special, _C._linalg, _C._fft, _C._special,
    torch.nn.init, operator, math,
)  # fmt: skip
_BUILTINS = (getattr, setattr, abs, round, pow, divmod, max, min, sum, len, int, float, bool)
#: What the front end notes about a node that changes nothing in what AOTAutograd makes of it.
_NOTES = frozenset({"example_value", "stack_trace", "only_if_used", MODULE_STATE})
#: Registrations for these keys say how tensors look or run elsewhere, or under a transform, where no graph is kept; they do
#: not say what an operator is. torch registers some itself (torch 2.15: `to_dense` under transforms; any: losses under vmap).
_ELSEWHERE = ("/Meta", "/CUDA", "/MPS", "/XPU", "/HPU", "/MTIA", "/PrivateUse1", "/PythonTLSSnapshot",
              "/FuncTorchDynamicLayerFrontMode", "/FuncTorchDynamicLayerBackMode", "/FuncTorchBatched",
              "/FuncTorchBatchedDecomposition")
_ATOMS = (type(None), bool, int, str, torch.dtype, torch.layout, torch.memory_format, type(Ellipsis))


class NoText(Exception):
    """The graph has no text; why."""


def fingerprint(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """The text of a graph of torch functions, called with such inputs now. Raises NoText."""
    queryable = repr(sorted((name, read()) for name, read in process_state.QUERYABLE.items()))
    return "\n".join([*_state(), queryable, *_inputs(gm, example_inputs), *_nodes(gm), assumptions(shape_env_of(gm))])


# Sizes that vary


def shape_env_of(gm: torch.fx.GraphModule) -> ShapeEnv | None:
    """The ShapeEnv of the symbols among the graph's inputs; None where there are none."""
    for node in gm.graph.find_nodes(op="placeholder"):
        for number in _numbers(node.meta.get("example_value")):
            if isinstance(number, (torch.SymInt, torch.SymFloat)):
                return cast("ShapeEnv", number.node.shape_env)
    return None


def _numbers(value: Any) -> tuple[Any, ...]:
    """The symbols of an input: the input itself, its sizes, strides and offset."""
    if isinstance(value, torch.Tensor):
        return (*value.shape, *value.stride(), value.storage_offset(), getattr(value, "item_memo", None))
    return (value,)


def assumptions(env: ShapeEnv | None) -> str:
    """All that is known of symbols: their values now, ranges and equalities, and what was decided by them."""
    if env is None:
        return ""
    values = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    sizes = {name: value for name, value in values.items() if value.is_Integer}  # code does not depend on what a float was
    tables: tuple[Any, ...] = (sizes, env.var_to_range, env.replacements)
    return repr([*(sorted((str(name), str(value)) for name, value in table.items()) for table in tables),
                 [str(guard.expr) for guard in env.guards]])


# The process


def process_text() -> str:
    """The state of the process that decides what torch makes of a graph, but for what backends query: entries guard that, and
    some of it reads otherwise once the compiler is imported. Raises NoText."""
    return "\n".join(_state())


def _state() -> Iterator[str]:
    get, deterministic = _C, cast(Any, torch.utils.deterministic)
    autocast = [(name, torch.get_autocast_dtype(name)) for name in ("cpu", "cuda") if torch.is_autocast_enabled(name)]
    devices = _default_devices()
    odd = {
        "autocast of another device": get._is_any_autocast_enabled() and not autocast,
        "a mode": devices is None or get._len_torch_dispatch_stack(),
        "a transform": get._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0,
        "an operator of torch's done anew": _any_redefined(),
    }
    for what, present in odd.items():
        if present:
            raise NoText(what)
    yield repr((
        autocast, torch.is_autocast_cache_enabled(),
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        deterministic.fill_uninitialized_memory, get._is_torch_function_enabled(),
        [getattr(get, f"_get_{name}_sdp_enabled")() for name in ("cudnn", "flash", "mem_efficient", "math", "overrideable")],
        get._get_sdp_priority_order(), torch.backends.mha.get_fastpath_enabled(),
        torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy, torch.backends.cpu.get_cpu_capability(),
        in_copied_context(functorch_config.get_hash)(), devices,
    ))  # fmt: skip


def _default_devices() -> list[str] | None:
    """Of the default devices that are set, which are modes of `__torch_function__`; None where there is another such mode."""
    modes = torch.overrides._get_current_function_mode_stack() if _C._len_torch_function_stack() else []
    return [str(mode.device) for mode in modes] if all(type(mode) is _DeviceContext for mode in modes) else None


#: Registrations that do nothing anew; they are asked about for each frame.
_harmless: set[str] = set()


def _any_redefined() -> bool:
    unknown = torch.library._impls - _harmless
    if any(map(_redefines, unknown)):
        return True
    _harmless.update(unknown)
    return False


def _redefines(name: str) -> bool:
    return name.startswith("aten/") and not name.endswith(_ELSEWHERE)


# The inputs


def _inputs(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Iterator[str]:
    places = gm.graph.find_nodes(op="placeholder")
    if len(places) != len(example_inputs):
        raise NoText("inputs that nobody described")
    memories: dict[int, int] = {}
    for node, example in zip(places, example_inputs, strict=True):
        fake = node.meta.get("example_value")
        _check_value(fake)
        if isinstance(fake, torch.SymInt) and isinstance(example, (int, torch.SymInt)):
            yield str(fake.node.expr)
            continue
        if type(example) not in (torch.Tensor, torch.nn.Parameter, FakeTensor) or not isinstance(fake, torch.Tensor):
            raise NoText(f"an input of type {type(example).__name__}")
        if example.layout is not torch.strided or example.device.type != "cpu":
            raise NoText("an input that is not on the CPU")
        storage = example.untyped_storage()  # a fake one for what another part of the graph gives (graph/split.py)
        memory = memories.setdefault(storage._cdata, len(memories))
        yield repr((
            type(example).__name__, example.dtype, tuple(example.shape), example.stride(), example.storage_offset(),
            storage.nbytes(), memory, example.requires_grad, example.is_leaf, example._is_view(), example.is_inference(),
            torch._C._dispatch_keys(example).raw_repr(), tuple(map(str, _numbers(fake))), MODULE_STATE in node.meta,
        ))  # fmt: skip


# The nodes


def _nodes(gm: torch.fx.GraphModule) -> Iterator[str]:
    places: dict[torch.fx.Node, int] = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr" and (held := next(inner_graphs(node), None)) is not None:
            places[node] = len(places)
            yield from ("the graph", *map(_stand_in, held.graph.find_nodes(op="placeholder")), *_nodes(held), "ends")
            continue
        if node.op in ("get_attr", "call_module"):
            raise NoText("something that the graph holds")
        notes = {name: value for name, value in node.meta.items() if name not in _NOTES}
        observed = notes.pop(OBSERVED, None)
        if notes:
            raise NoText(f"a node with {', '.join(sorted(notes))}")
        _check_value(node.meta.get("example_value"))
        places[node] = len(places)
        if node.op != "placeholder":
            target = node.target if node.op == "output" else _target(node)
            effects = "" if observed is None else f" {sorted(observed.written)} {observed.random}"
            yield f"{node.op} {target} {_argument(node.args, places)} {_argument(node.kwargs, places)}{effects}"


def _stand_in(node: torch.fx.Node) -> str:
    """What a subgraph was traced for. The graph around it decides that."""
    fake = node.meta.get("example_value")
    if not isinstance(fake, torch.Tensor) or fake.layout is not torch.strided:
        raise NoText("a subgraph of other values than tensors")
    return repr((fake.dtype, fake.device.type, tuple(map(str, _numbers(fake)[:-1])), fake.requires_grad))


def _check_value(value: Any) -> None:
    """Refuses results that depend on numbers which are known only when the graph runs."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols  # with sympy, which no stored graph wants

    if isinstance(value, (list, tuple)):
        for each in value:
            _check_value(each)
    elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, torch.Tensor)) and free_unbacked_symbols(value):
        raise NoText("a number that data decides")


def _argument(value: Any, places: dict[torch.fx.Node, int]) -> str:
    if isinstance(value, torch.fx.Node):
        return f"%{places[value]}"
    if isinstance(value, _ATOMS):
        if type(value) not in _ATOMS:
            raise NoText(f"an argument of type {type(value).__name__}")
        return repr(value)
    if type(value) is float:
        return value.hex()
    if type(value) is complex:
        return f"complex({value.real.hex()}, {value.imag.hex()})"
    if type(value) is torch.device and value.type == "cpu":
        return "cpu"
    if isinstance(value, (list, tuple)):
        opening = "[" if isinstance(value, list) else "("
        return f"{opening}{', '.join(_argument(each, places) for each in value)},)"
    if isinstance(value, dict) and all(type(name) is str for name in value):
        return "{" + ", ".join(f"{name!r}: {_argument(each, places)}" for name, each in value.items()) + "}"
    if type(value) is slice:
        return f"slice{_argument((value.start, value.stop, value.step), places)}"
    raise NoText(f"an argument of type {type(value).__name__}")


def _target(node: torch.fx.Node) -> str:
    target: Any = node.target
    if node.op == "call_method":
        if target == "data" or not _is_torchs(getattr(torch.Tensor, target, None)):
            raise NoText(f"the method {target}")
        return str(target)
    if target is getattr and node.args[1] == "data":
        raise NoText("writes that autograd must not see")  # graph/facts.py
    if isinstance(target, torch._ops.OpOverload):
        return f"operator {target}{_definition(target)}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        overloads = [cast("torch._ops.OpOverload", getattr(target, name)) for name in target.overloads()]
        return f"operators {target}{[*map(_definition, overloads)]}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        name = target.name()
        if package_of(type(target)) == "torch" and getattr(torch.ops.higher_order, name, None) is target:
            return f"higher-order {name}"
        raise NoText(f"the higher-order operator {name}")
    known = _known().get(id(target))
    if known is not None and known[0] is target and (target in _BUILTINS or _is_torchs(target)):
        return known[1]
    if (applied := applied_class(target)) is not None:
        return f"{target.__name__} {_text(function_text, applied)}"
    if isinstance(target, types.FunctionType) and _is_torchs(target) and _by_name(target) is target:
        return f"{module_of(target)}.{target.__qualname__}"
    if isinstance(target, types.FunctionType) and _is_torchs(target) and isinstance(getattr(target, "stands_for", None), str):
        return str(target.stands_for)  # type: ignore[attr-defined]  # a function of NumPy's
    raise NoText(f"the function {getattr(target, '__name__', target)}")


def _definition(operator: torch._ops.OpOverload) -> str:
    """The definition of an operator, beside its name."""
    return "" if operator.namespace in TORCHS else f" {_text(operator_text, operator)}"


def _text(text_of: Callable[[Any], str], what: Any) -> str:
    try:
        return text_of(what)
    except Unknown as why:
        raise NoText(str(why)) from None


@functools.cache
def _known() -> dict[int, tuple[Any, str]]:
    """Functions that graphs call, by id: the function itself, and where it is found."""
    found = {id(each): (each, f"builtin {each.__name__}") for each in _BUILTINS}
    for namespace in _NAMESPACES:
        for name, value in list(vars(namespace).items()):
            if callable(value) and id(value) not in found:
                found[id(value)] = (value, f"{namespace.__name__}.{name} {getattr(value, '__name__', '')}")
    return found


def _is_torchs(function: Any) -> bool:
    """Whether the code is torch's or ours, or C."""
    if isinstance(function, types.FunctionType):
        return is_torchs(function)
    return isinstance(function, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType))


def _by_name(function: types.FunctionType) -> Any:
    found: Any = sys.modules.get(module_of(function))
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found
