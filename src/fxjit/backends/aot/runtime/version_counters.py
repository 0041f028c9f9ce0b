"""Version-counter effects of a compiled graph's mutations.

Eager does not count every write: those through `.data` and of a batch norm's running statistics leave `x._version` as it was,
and `x.t_()` counts before the graph goes on. AOTAutograd counts all, after the graph has run, and a backward that saved the
input would then be refused. Kernels of compiled graphs count none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import _unsafe_set_version_counter
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from fxjit._C import left_unwritten, writes_are_counted

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta


@dataclass(frozen=True, slots=True)
class VersionCounterEffects:
    """Effects of a call on the version counters of its inputs, by input index."""

    #: Written to, with a counter that stays as it was.
    preserved: tuple[int, ...] = ()
    #: Written to, with a counter that goes up by one.
    bumped: tuple[int, ...] = ()
    #: Given a new shape and no new contents, with a counter that goes up by one before the graph runs.
    reshaped: tuple[int, ...] = ()


def reshaped_inputs(meta: ViewAndMutationMeta | None) -> tuple[int, ...]:
    """The inputs that the graph gives a new shape, but no new contents."""
    return () if meta is None else tuple(
        index for index, info in enumerate(meta.input_info) if info.mutates_metadata and not info.mutates_data)


def checking_counters(call: Callable[..., Any], places: tuple[int, ...], fallback: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, and `fallback` where one of these inputs has no version counter and is no inference tensor (any more)."""
    return lambda *args: call(*args) if writes_are_counted(args, places) else fallback(*args)


def preserving(call: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """`call`, after which the inputs at these places have the version they had."""
    def run(*args: Any) -> Any:
        written = tuple(args[index] for index in places if not args[index].is_inference())
        with _unsafe_preserve_version_counter(written):
            return call(*args)

    return run


def bumping(call: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """`call`, before which these inputs count one write more, unless it fails before it writes: kernels do not count theirs."""
    count = torch.autograd.graph.increment_version

    def run(*args: Any) -> Any:
        inputs = [args[index] for index in places]
        count(inputs)
        try:
            return call(*args)
        except Exception as error:
            if left_unwritten(error):
                counted = tuple(each for each in inputs if not each.is_inference())
                _unsafe_set_version_counter(counted, tuple(each._version - 1 for each in counted))
            raise

    return run


def bumping_once(call: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """`call`, after which each of these inputs has counted one write, by ATen's own count or by this."""
    count = torch.autograd.graph.increment_version

    def run(*args: Any) -> Any:
        inputs = [args[index] for index in places if not args[index].is_inference()]
        before = [each._version for each in inputs]
        outputs = call(*args)
        for each, version in zip(inputs, before, strict=True):
            if each._version == version:  # inputs may share a counter
                count([each])
        return outputs

    return run


def bumping_first(call: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """`call`, to which these inputs come with its write counted already."""
    def run(*args: Any) -> Any:
        changed = tuple(args[index] for index in places if not args[index].is_inference())
        torch.autograd.graph.increment_version(changed)
        with _unsafe_preserve_version_counter(changed):
            return call(*args)

    return run
