"""An ATen graph as data: what a debug folder keeps of each graph that the native backend was given.

`graph_record` writes JSON (operators by name, arguments as plain values, the inputs' metadata, torch's version); `read_record`
builds the graph again, with fake values as metadata, so that every stage can run over it. Nothing in a record is executed:
operators are looked up in torch's registry. Graphs with sizes that vary are rebuilt at the sizes they were compiled for."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from fxjit import debug, torch_private
from fxjit.errors import InvalidArgument
from fxjit.homes import module_of

from ..decompositions import define_own_operators
from ..lower.table import meta_of

make_fx: Any = torch_private.optional("torch.fx.experimental.proxy_tensor.make_fx")
FakeTensorProp: Any = torch_private.optional("torch.fx.passes.fake_tensor_prop.FakeTensorProp")

FORMAT = 1
#: Modules whose functions occur in ATen graphs as well as operators.
_MODULES = {"_operator": "operator", "operator": "operator", "math": "math", "builtins": "builtins", "torch": "torch",
            "torch.fx.experimental.symbolic_shapes": "torch"}
#: Constants of a graph are kept up to so many elements.
_KEPT_ELEMENTS = 4096
_NAMED = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


class NotRecordable(Exception):
    """The graph has something that is no plain data."""


def write_record(gm: torch.fx.GraphModule, name: str) -> None:
    """Adds the record to the debug folder of the compile under way, if there is one."""
    if debug.folder() is not None:
        debug.write(f"aten_{name}.json", graph_record(gm, name))


def graph_record(gm: torch.fx.GraphModule, name: str) -> str:
    """The record as text. What cannot be recorded is said in it."""
    record: dict[str, Any] = {"format": FORMAT, "torch": torch.__version__.partition("+")[0], "name": name}
    try:
        record["nodes"] = [_node_record(gm, node) for node in gm.graph.nodes]
    except NotRecordable as why:
        record["missing"] = str(why)
    return json.dumps(record, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A graph read back, and the metadata of its inputs."""

    name: str
    gm: torch.fx.GraphModule
    inputs: tuple[dict[str, Any], ...]

    def example_inputs(self, seed: int = 0) -> list[Any]:
        """Tensors like those that the graph was compiled for: normal numbers, zeros and ones where it takes integers (which
        are valid indices of anything that is not smaller)."""
        generator = torch.Generator().manual_seed(seed)
        return [_example(each, generator) for each in self.inputs]


def read_record(text: str) -> Recorded:
    """Builds the graph again. InvalidArgument says what is wrong with the text, or with this torch."""
    try:
        record = json.loads(text)
        name, version, form = record["name"], record["torch"], record["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidArgument(f"this is no record of a graph ({type(error).__name__}: {error})") from None
    running = torch.__version__.partition("+")[0]
    if form != FORMAT or version != running:
        raise InvalidArgument(f"the graph was recorded with torch {version} (format {form}); this is torch {running} "
                              f"(format {FORMAT}): compile it again")
    if "missing" in record:
        raise InvalidArgument(f"the graph {name} could not be recorded: {record['missing']}")
    define_own_operators()
    try:
        gm, inputs = _rebuild(record["nodes"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"the record of {name} is damaged ({type(error).__name__}: {error})") from error
    return Recorded(name, gm, tuple(inputs))


# -- writing -------------------------------------------------------------------------------------------------------


def _node_record(gm: torch.fx.GraphModule, node: torch.fx.Node) -> dict[str, Any]:
    found: dict[str, Any] = {"name": node.name, "op": node.op}
    if node.op == "placeholder":
        found["value"] = _metadata(meta_of(node))
    elif node.op == "get_attr":
        found["value"] = _constant(getattr(gm, str(node.target), None), str(node.target))
    elif node.op == "call_function":
        found["target"] = _target_name(node.target)
        found["kwargs"] = {key: _plain(value) for key, value in node.kwargs.items()}
    elif node.op != "output":
        raise NotRecordable(f"{node.op} {node.target}")
    if node.op in ("call_function", "output"):
        found["args"] = [_plain(value) for value in node.args]
    return found


def _target_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module, name = _MODULES.get(module_of(target)), getattr(target, "__name__", "")
    if module is None or getattr(importlib.import_module(module), name, None) is not target:
        raise NotRecordable(f"the call of {target}")
    return f"{module}:{name}"


def _metadata(value: Any) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise NotRecordable(f"an input in the layout {value.layout}")
        numbers = {"shape": value.shape, "stride": value.stride()}
        return {"dtype": str(value.dtype), "device": str(value.device),
                **{key: [_hint(each) for each in sizes] for key, sizes in numbers.items()}}
    if isinstance(value, (torch.SymInt, torch.SymFloat, int, float)):
        return {"number": _hint(value)}
    raise NotRecordable(f"an input that is a {type(value).__name__}")


def _hint(number: Any) -> Any:
    """A number, or what a symbol stood for when the graph was compiled."""
    if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        hint = number.node.hint
        if hint is None:
            raise NotRecordable("a size that is known by data only")
        return hint
    return number


def _constant(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, torch.Tensor) or value.numel() > _KEPT_ELEMENTS:
        raise NotRecordable(f"the constant {name}")
    elements = torch.view_as_real(value.detach().cpu()) if value.is_complex() else value.detach().cpu()
    if value.is_complex() or value.dtype in (torch.bfloat16, torch.float16):
        elements = elements.double()
    return {**_metadata(value), "elements": _plain(elements.tolist())}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _plain(_hint(value))
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (list, tuple)):
        items = [_plain(each) for each in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, slice):
        return {"slice": [_plain(each) for each in (value.start, value.stop, value.step)]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind, key in _NAMED.items():
        if isinstance(value, kind):
            return {key: str(value).removeprefix("torch.")}
    raise NotRecordable(f"an argument that is a {type(value).__name__}")


# -- reading -------------------------------------------------------------------------------------------------------


def _rebuild(nodes: list[dict[str, Any]]) -> tuple[torch.fx.GraphModule, list[dict[str, Any]]]:
    graph, root = torch.fx.Graph(), torch.nn.Module()
    made: dict[str, torch.fx.Node] = {}
    inputs: list[dict[str, Any]] = []
    for each in nodes:
        op, name = each["op"], each["name"]
        if op == "placeholder":
            made[name] = graph.placeholder(name)
            inputs.append(each["value"])
        elif op == "get_attr":
            root.register_buffer(name, _from_elements(each["value"]))
            made[name] = graph.get_attr(name)
        elif op == "output":
            graph.output(*_values(each["args"], made))
        else:
            kwargs = {key: _value(value, made) for key, value in each["kwargs"].items()}
            made[name] = graph.create_node("call_function", _target(each["target"]), tuple(_values(each["args"], made)), kwargs,
                                           name=name)
    gm = torch.fx.GraphModule(root, graph)
    return _with_metadata(gm, inputs), inputs


def _with_metadata(gm: torch.fx.GraphModule, inputs: list[dict[str, Any]]) -> torch.fx.GraphModule:
    """Fake values for every node. Where numbers are inputs, the graph is traced again with them as constants."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fakes = [each["number"] if "number" in each else _empty(each) for each in inputs]
    if any("number" in each for each in inputs):
        with mode:
            gm = make_fx(gm, tracing_mode="fake")(*fakes)
    FakeTensorProp(gm, mode).propagate_dont_convert_inputs(*fakes)
    return gm


def _target(name: str) -> Callable[..., Any]:
    if ":" in name:
        module, _, attribute = name.partition(":")
        if module not in _MODULES.values():
            raise ValueError(f"{name} is no operator")
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        return found
    namespace, operator, overload = name.split(".")
    made: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    return made


def _values(values: list[Any], made: dict[str, torch.fx.Node]) -> list[Any]:
    return [_value(each, made) for each in values]


def _value(value: Any, made: dict[str, torch.fx.Node]) -> Any:
    if isinstance(value, list):
        return _values(value, made)
    if not isinstance(value, dict):
        return value
    ((key, inside),) = value.items()
    if key == "node":
        return made[inside]
    if key == "tuple":
        return tuple(_values(inside, made))
    if key in _NAMED.values():
        return getattr(torch, inside)
    return {"slice": lambda: slice(*_values(inside, made)), "complex": lambda: complex(*inside),
            "float": lambda: float(inside), "device": lambda: torch.device(inside)}[key]()


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name} is no type of tensors")
    return found


def _empty(each: dict[str, Any]) -> torch.Tensor:
    return torch.empty_strided(each["shape"], each["stride"], dtype=_dtype(each["dtype"]), device=each["device"])


def _from_elements(each: dict[str, Any]) -> torch.Tensor:
    dtype = _dtype(each["dtype"])
    numbers = _value(each["elements"], {})
    if dtype.is_complex:
        flat = torch.view_as_complex(torch.tensor(numbers, dtype=torch.float64).reshape(*each["shape"], 2)).to(dtype)
    else:
        flat = torch.tensor(numbers, dtype=dtype).reshape(each["shape"])
    return _empty(each).copy_(flat)


def _example(each: dict[str, Any], generator: torch.Generator) -> Any:
    if "number" in each:
        return each["number"]
    dtype, found = _dtype(each["dtype"]), _empty(each)
    if dtype.is_floating_point or dtype.is_complex:
        numbers = torch.randn(each["shape"], generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    else:
        numbers = torch.randint(0, 2, each["shape"], generator=generator)
    return found.copy_(numbers)
