"""Autograd's facts about inputs that are views: writes that eager refuses, to memory in which elements overlap and, while
gradients are recorded, to leaves and to views that autograd cannot follow; views that may not be used behind a write to their
base; and views of inputs made without recording.

Fake tensors know nothing of the first, and the guard of an input nothing of the second. A graph that fails in the middle, after
it has written, cannot be run again: what the program did before would be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
import torch.fx

from fxjit import _C, schemas, torch_private
from fxjit.errors import RestartTrace, leave_trace
from fxjit.guards.kinds import PythonCheck
from fxjit.overlap import have_common_element
from fxjit.tensor_wrappers import is_part_of_nested, storages

from .tracer import Tracer
from .values import sparse
from .values.choices import choices
from .values.given_data import TAKEN_DATA, with_given_data
from .values.observed import HOOKED
from .values.tensor import TensorValue, check_history

#: How a view came about; 0: by an operator, while gradients were recorded.
_creation_meta: Any = torch_private.get_or("torch._C._autograd._get_creation_meta", lambda view: 0)
#: Under `no_grad`, and in inference mode.
_UNRECORDED = (3, 4)
_set_versions: Any = torch_private.get_or(
    "torch._C._autograd._unsafe_set_version_counter", lambda tensors, versions: None)
_Rest = TypeVar("_Rest")

#: For what an input is a view of, or the input itself: a fake tensor of its memory, and the version it began with.
_BASES = "what inputs are views of"

#: The memory of inference tensors among the inputs, and of those that were ones: whether it is one.
_UNCOUNTED = "inputs that count no writes"


#: Fake tensors of inputs that are other objects than the program's, and their layouts.
_ALIASES = "aliases of tensors of subclasses"
#: Memories of inputs that are views of nested tensors.
_PARTS = "memories of nested tensors"


def note_input(t: Tracer, tensor: torch.Tensor, fake: torch.Tensor, is_alias: bool) -> None:
    """`is_alias`: the graph is given another object over the tensor's memory."""
    if is_alias:
        t.new_source_state(_ALIASES)[str(id(fake))] = fake, _layout(fake), type(tensor)
    if tensor.is_inference() or not counts_writes(tensor):
        t.new_source_state(_UNCOUNTED)[str(_memory(fake))] = tensor.is_inference()
    if is_part_of_nested(tensor):
        t.new_source_state(_PARTS).update(dict.fromkeys(map(str, storages(fake))))


def as_at_the_start(
    t: Tracer, tensor: torch.Tensor, make: Callable[[], tuple[torch.Tensor, _Rest]]
) -> tuple[torch.Tensor, _Rest]:
    """The fake tensor of an input, and what else `make` gives, with versions as at the start of the trace: a view that is met
    behind a write to its base was there before. Breaks the graph where autograd then has no history of it, and eager raises."""
    with torch._C.DisableTorchFunctionSubclass():
        base = tensor._base if tensor._is_view() else None
        key = str(id(tensor if base is None else base))
    bases = t.new_source_state(_BASES)
    known, began = bases.get(key, (None, 0))
    if known is None or known._version == began:
        made = make()
        if known is None and not made[0].is_inference():
            bases[key] = made[0], made[0]._version
        return made
    now = known._version
    _set_versions((known,), (began,))
    try:
        made = make()
    finally:
        _set_versions((known,), (now,))
    check_history(t, made[0])
    return made


def check_written(t: Tracer, node: torch.fx.Node) -> None:
    """Breaks the graph at what `node` writes, where that is not followed."""
    _break_at_overlap(t, node)
    _break_at_shared(t, node)
    _break_at_uncounted(t, node)
    _break_at_part(t, node)
    _check_given_data(t, node)
    _break_at_hooked(t, node)
    sparse.check(t, node)
    for fake, layout, cls in t.new_source_state(_ALIASES).values():
        if not _is_same(_layout(fake), layout):
            t.break_("tensor-subclass", type=cls.__qualname__, why="the graph cannot give the program's object another shape")
    for choice in choices(t):
        if choice.is_distinguished_by(node.meta["example_value"]):
            choice.distinguish(t)


def _break_at_overlap(t: Tracer, node: torch.fx.Node) -> None:
    """Breaks the graph at a write to a tensor of which several elements are one in memory (`expand`)."""
    if any(_has_internal_overlap(each.meta.get("example_value")) for each in node.all_input_nodes):
        for each in schemas.written(node):
            if _has_internal_overlap(each.meta.get("example_value")):
                t.break_(
                    "operator-raised",
                    operator=schemas.name_of(node.target),
                    error="RuntimeError: several elements of the written tensor are one in memory",
                )


def _break_at_shared(t: Tracer, node: torch.fx.Node) -> None:
    """Breaks the graph at a write to elements that are those of another operand, which eager refuses unless both are the same
    view and the operator goes by element: `x.t().add_(x)`, `x.index_add_(0, rows, x)`."""
    if any(isinstance(each, (list, tuple)) for each in node.args[:1]):
        return
    places = schemas.written(node)
    given: list[torch.fx.Node] = []
    if places:
        torch.fx.map_arg((node.args, node.kwargs), given.append)
    for place in [*places, *_own_places(node)]:
        if place in given:
            given.remove(place)  # once: `x.index_add_(0, rows, x)` reads it, too
    given = list(filter(_is_strided, given))
    for place in filter(_is_strided, places):
        sharing = [each.meta["example_value"] for each in given if _memory(each.meta["example_value"]) == _memory(
            place.meta["example_value"])]
        into = schemas.part_written(node, place) if sharing else None
        for other in sharing:
            if into is not None and not (_is_dense(into) and _is_dense(other) and have_common_element(into, other)):
                continue  # of others eager does not know
            if into is None or not _is_same(_layout(into), _layout(other)) or not schemas.goes_by_element(node):
                t.break_(
                    "operator-raised",
                    operator=schemas.name_of(node.target),
                    error="RuntimeError: elements of an operand are written to",
                )


def _own_places(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensor that a call reads first and writes with `out=`: `torch.addmm(a, x, y, out=a)` is `a.addmm_(x, y)`."""
    out = node.kwargs.get("out")
    if not isinstance(out, torch.fx.Node) or node.args[:1] != (out,):
        return []
    return [out] if hasattr(torch.Tensor, schemas.name_of(node.target) + "_") else []


def _is_strided(node: torch.fx.Node) -> bool:
    fake = node.meta.get("example_value")
    return isinstance(fake, torch.Tensor) and fake.layout is torch.strided


def _is_dense(fake: torch.Tensor) -> bool:
    """Whether its elements fill their memory, with the sizes at hand."""
    numbers: Any = [each.node.hint if isinstance(each, torch.SymInt) else each for each in (*fake.shape, *fake.stride())]
    if None in numbers:
        return False
    expected = 1
    for stride, size in sorted(zip(numbers[fake.dim():], numbers[:fake.dim()], strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _layout(fake: torch.Tensor) -> tuple[Any, ...]:
    return *fake.shape, *fake.stride(), fake.storage_offset()


def _is_same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether these are the same numbers and symbols: a comparison of symbols would be a guard."""
    return len(a) == len(b) and all(
        x is y or str(x) == str(y) for x, y in zip(a, b, strict=True)
    )


def _break_at_uncounted(t: Tracer, node: torch.fx.Node) -> None:
    """Breaks the graph at a write to a former inference tensor, or outside of that mode to one: eager raises behind it, where a
    handler may stand, and what the graph did before stays done."""
    uncounted = t.new_source_state(_UNCOUNTED)
    allowed = torch.is_inference_mode_enabled()
    memories = [str(_memory(each.meta.get("example_value"))) for each in schemas.written(node)] if uncounted else ()
    if any(each in uncounted and not (allowed and uncounted[each]) for each in memories):
        t.break_(
            "operator-raised",
            operator=schemas.name_of(node.target),
            error="RuntimeError: no version counter counts the write",
        )


def _check_given_data(t: Tracer, node: torch.fx.Node) -> None:
    """Starts again, to break the graph at the first operator that takes the new data of a leaf, where these are written to
    afterwards, which the leaf itself would count."""
    taken = t.new_source_state(TAKEN_DATA)
    if not taken or node.target is with_given_data:
        return
    written = [each.meta.get("example_value") for each in schemas.written(node)]
    if any(str(memory) in taken for each in written if isinstance(each, torch.Tensor) for memory in storages(each)):
        t.break_points.takes_given_data = False
        leave_trace(RestartTrace("data that a leaf was given, and that an operator took, are written to"))


def _break_at_hooked(t: Tracer, node: torch.fx.Node) -> None:
    """Breaks the graph at a write to a tensor that gets a hook when the graph has run, or to what shares its memory: the hook
    is for gradients of what the tensor was before."""
    hooked = [each.node for each in t.new_source_state(HOOKED).values() if not each.fake.is_leaf]
    if hooked and schemas.storages_of(hooked) & schemas.storages_of(schemas.written(node)):
        t.break_("tensor-hook", function="Tensor.register_hook", why="the tensor is written to behind it")


def _break_at_part(t: Tracer, node: torch.fx.Node) -> None:
    """Breaks the graph at a write to a view of a nested tensor that autograd would record: eager raises there."""
    memories = t.new_source_state(_PARTS)
    if not memories or not torch.is_grad_enabled():
        return
    given = [each.meta.get("example_value") for each in node.all_input_nodes]
    written = [each.meta.get("example_value") for each in schemas.written(node)]
    if any(isinstance(each, torch.Tensor) and each.requires_grad for each in given) and any(
        str(memory) in memories for each in written if isinstance(each, torch.Tensor) for memory in storages(each)
    ):
        t.break_(
            "operator-raised",
            operator=schemas.name_of(node.target),
            error="RuntimeError: a view of a nested tensor is written to",
        )


def _has_internal_overlap(fake: object) -> bool:
    if not isinstance(fake, torch.Tensor) or fake.layout is not torch.strided:
        return False
    # Strides of `expand` are plain zeros: a symbol is not asked, which would be a guard.
    return any(
        type(stride) is int and stride == 0 and not (type(size) is int and size < 2)
        for size, stride in zip(fake.shape, fake.stride(), strict=True)
    )


def guard_written_inputs(t: Tracer, graph: torch.fx.Graph, values: Iterable[TensorValue]) -> None:
    """Inputs that require gradients and that the graph writes to are ones that may be written to. Those that got other `data`
    count writes to it. Views of what is written to are ones that may be used behind it."""
    values = tuple(value for value in values if value.source is not None)
    inputs = [(value, value.real) for value in values if value.real is not None]
    given = [value for value in values if value.new_data is not None]
    with torch._C.DisableTorchFunctionSubclass():  # these queries are none of the program's
        recorded = {id(real) for _, real in inputs if real.requires_grad and not real.is_leaf}
        views = {id(real) for _, real in inputs if real._is_view()}
    shared = Counter(_memory(value.fake) for value, _ in inputs)
    if not recorded and not views and not given and len(shared) == len(inputs):
        return
    written = {_memory(each.meta.get("example_value")) for node in graph.nodes for each in schemas.written(node)}
    for value in given:
        if _memory(value.fake) in written and value.source is not None:
            t.guard(PythonCheck((value.source,), counts_writes, "it counts writes"))
    for value, real in inputs:
        memory = _memory(value.fake)
        if memory not in written or value.source is None:
            continue
        if id(real) in recorded and may_be_written(real):
            t.guard(PythonCheck((value.source,), may_be_written, "autograd lets it be written to"))
        elif (id(real) in views or shared[memory] > 1) and keeps_history(real):
            t.guard(PythonCheck((value.source,), keeps_history, "autograd lets it be used behind a write to its base"))


def guard_unrecorded_views(t: Tracer, graph: torch.fx.Graph, values: Iterable[TensorValue]) -> None:
    """A view made under `no_grad` requires grad as the base does: that of a view is its base's. No parameter is a view."""
    with torch._C.DisableTorchFunctionSubclass():
        inputs = [
            value
            for value in values
            if value.source is not None
            and value.real is not None
            and value.real.requires_grad
            and not isinstance(value.real, torch.nn.Parameter)
        ]
        if not inputs:
            return
        viewed = {_memory(made) for made in map(_unrecorded_view, graph.nodes) if made is not None}
    for value in inputs:
        if value.source is not None and _memory(value.fake) in viewed:
            holds = views_require_grad if views_require_grad(value.real) else views_do_not_require_grad
            t.guard(PythonCheck((value.source,), holds, "what it is a view of requires grad, or not, as in the trace"))


def _unrecorded_view(node: torch.fx.Node) -> torch.Tensor | None:
    made = node.meta.get("example_value") if node.op != "placeholder" else None
    made = made[0] if isinstance(made, (tuple, list)) and made else made
    return made if isinstance(made, torch.Tensor) and made._is_view() and int(_creation_meta(made)) in _UNRECORDED else None


def views_require_grad(tensor: Any) -> bool:
    """Whether a view that is made of it under `no_grad` requires grad."""
    with torch._C.DisableTorchFunctionSubclass():
        base = tensor._base if tensor._is_view() else None
        return bool((tensor if base is None else base).requires_grad)


def views_do_not_require_grad(tensor: Any) -> bool:
    return not views_require_grad(tensor)


def _memory(fake: object) -> object:
    return fake.untyped_storage()._cdata if isinstance(fake, torch.Tensor) and fake.layout is torch.strided else fake


def counts_writes(tensor: Any) -> bool:
    """Whether it is no former inference tensor."""
    return _C.writes_are_counted((tensor,), (0,))


def may_be_written(tensor: Any) -> bool:
    """Whether autograd lets a tensor that requires gradients be written to while they are recorded."""
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.is_leaf:
            return False
        if not tensor._is_view():
            return True
        base = tensor._base
        return int(_creation_meta(tensor)) == 0 and (base is None or not (base.is_leaf and base.requires_grad))


def keeps_history(tensor: Any) -> bool:
    """Whether autograd lets a tensor be used behind a write to what it is a view of: no view that was made without recording or
    with others at once, where gradients are recorded now."""
    with torch._C.DisableTorchFunctionSubclass():
        return not tensor._is_view() or int(_creation_meta(tensor)) == 0 or not tensor._base.requires_grad
