"""Writes that autograd must not see, or must have seen before it saves anything: `x.data[i] = v` leaves `x._version` as it was,
and `x.t_()` counts as a write before the graph goes on.

AOTAutograd writes an input's new contents or shape back with an operator that counts as a write, after the graph has run, and
a backward that saved the input or a view of it would then be refused, which eager runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.autograd.grad_mode import _unsafe_preserve_version_counter


def keep_versions(compiled: Callable[..., Any], gm: torch.fx.GraphModule, example_inputs: Sequence[Any],
                  meta: ViewAndMutationMeta | None) -> Callable[..., Any]:
    """`compiled`, after which inputs that the graph writes to through `.data` alone have the version they had."""
    reads_data = any(node.args[1] == "data" for node in gm.graph.find_nodes(op="call_function", target=getattr))
    if meta is None or not reads_data:
        return compiled
    changed = _changed_versions(gm, example_inputs)
    hidden = tuple(index for index, info in enumerate(meta.input_info) if info.mutates_data and index not in changed)
    if not hidden:
        return compiled

    def call(*args: Any) -> Any:
        written = tuple(args[index] for index in hidden if not args[index].is_inference())
        with _unsafe_preserve_version_counter(written):
            return compiled(*args)

    return call


def count_new_shapes_first(compiled: Callable[..., Any], meta: ViewAndMutationMeta | None) -> Callable[..., Any]:
    """`compiled`, to which inputs that it gives a new shape, but no new contents, come with that counted already."""
    reshaped = () if meta is None else tuple(index for index, info in enumerate(meta.input_info)
                                             if info.mutates_metadata and not info.mutates_data)
    if not reshaped:
        return compiled

    def call(*args: Any) -> Any:
        changed = tuple(args[index] for index in reshaped if not args[index].is_inference())
        torch.autograd.graph.increment_version(changed)
        with _unsafe_preserve_version_counter(changed):
            return compiled(*args)

    return call


def _changed_versions(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> set[int]:
    """The inputs whose version a run of the graph changes, by a run over fake tensors; all, where that cannot be done."""
    fakes = [each for each in example_inputs if isinstance(each, FakeTensor)]
    mode = fakes[0].fake_mode if fakes else FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        inputs = [torch.empty_like(each) if isinstance(each, torch.Tensor) else each for each in example_inputs]
        before = [each._version if isinstance(each, torch.Tensor) else 0 for each in inputs]
        try:
            torch.fx.Interpreter(gm).run(*inputs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return set(range(len(inputs)))
    return {index for index, each in enumerate(inputs) if isinstance(each, torch.Tensor) and each._version != before[index]}
