"""Every change that backends make to torch at run time, with the reason for each. None changes what a graph computes.

All but the registration are undone when their block ends: `patched` is around AOTAutograd, `replaced_kernels` around a
backend's compile. Pieces of torch that are never changed stay out of this file, as do operators that fxjit registers under
its own name.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
import torch.fx
from torch.fx import graph as fx_graph
from torch.fx.immutable_collections import immutable_list
from torch.utils import _pytree as pytree

from fxjit import _C, budget, config, torch_private

from ..graph.facts import is_check, mark_checks

# They give nothing and raise where a check fails. From torch 2.13 on AOTAutograd keeps the first by itself.
torch.fx.node.has_side_effect(torch.ops.aten._linalg_check_errors.default)
torch.fx.node.has_side_effect(torch.ops.aten._assert_async.default)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """All of them that hold while AOTAutograd compiles one graph."""
    with (no_float_tensors(), functorch_settings(), no_printed_graphs(), no_anomaly_warnings(), quick_nodes(), kept_checks(),
          no_progress_bars(), shared_random_states()):
        yield


class _NoProgress:
    """A progress bar that is off."""

    def update(self, count: int = 1) -> None:
        pass

    def set_description(self, text: str = "") -> None:
        pass

    def close(self) -> None:
        pass


def _progress(*args: Any, **keywords: Any) -> Any:
    return _NoProgress() if keywords.get("disable") else torch.hub.tqdm(*args, **keywords)  # type: ignore[attr-defined]  # theirs


def no_progress_bars() -> contextlib.AbstractContextManager[None]:
    """torch.fx makes a bar for each graph that it runs, also where it is off, as it is by default. tqdm takes a lock for that
    which all forked processes share: one that dies meanwhile, or a RecursionError there, leaves it taken for good."""
    return _replaced(torch.fx.interpreter, "tqdm", _progress)


def shared_random_states() -> contextlib.AbstractContextManager[None]:
    """AOTAutograd makes the states of three Philox generators twice for each graph, of empty tensors that go through all of its
    modes: a tenth of a small graph's compile. Nothing reads them where random numbers are eager's own, as they are here
    (`functorch_settings`), so they are made once."""
    state = torch_private.get_or("torch._decomp.decompositions_for_rng.PhiloxState", None)
    if state is None:
        return contextlib.nullcontext()
    fresh = _fresh_random_state(state)
    return _replaced(state, "reset", lambda one: one.__dict__.update(fresh))


@functools.cache
def _fresh_random_state(state: Any) -> dict[str, Any]:
    with torch_private.get("torch.utils._python_dispatch._disable_current_modes")():
        return dict(vars(state()))


@contextlib.contextmanager
def kept_checks() -> Iterator[None]:
    """Calls that nobody uses stay in AOTAutograd's graphs where they may raise, as in eager. They are marked when it drops dead
    code for the first time: what is dead later, AOTAutograd or fxjit has replaced."""
    eliminate, is_impure = torch.fx.Graph.eliminate_dead_code, torch.fx.Node.is_impure
    unmarked = [True]

    @functools.wraps(eliminate)
    def mark_first(graph: torch.fx.Graph, *args: Any, **keywords: Any) -> bool:
        if unmarked and not args and not keywords:
            unmarked.clear()
            mark_checks(graph)
        return eliminate(graph, *args, **keywords)

    @functools.wraps(is_impure)
    def is_impure_or_check(node: torch.fx.Node, *args: Any, **keywords: Any) -> bool:
        return is_check(node) or is_impure(node, *args, **keywords)

    with (_replaced(torch.fx.Graph, "eliminate_dead_code", mark_first),
          _replaced(torch.fx.Node, "is_impure", is_impure_or_check)):
        yield


def functorch_settings() -> contextlib.AbstractContextManager[Any]:
    """`cse` would import the whole of inductor for one of its functions; random numbers are eager's own; the backward graph is
    compiled with the forward graph, where an error can still be dealt with. The partitioner keeps what both budgets allow."""
    from torch._functorch import config as functorch_config

    share = min(config.memory_budget, functorch_config.activation_memory_budget)
    return functorch_config.patch(  # type: ignore[no-any-return]  # made by a factory without types
        cse=False, functionalize_rng_ops=False, force_non_lazy_backward_lowering=True, activation_memory_budget=share)


@contextlib.contextmanager
def no_float_tensors() -> Iterator[None]:
    """Symbolic floats stay what they are in AOTAutograd's graphs: its pass that makes tensors of them knows few operators,
    takes them for constants in the others, and calculates by rules of algebra, which round otherwise than Python does."""
    from torch._functorch._aot_autograd import graph_compile

    with _replaced(graph_compile, "tensorify_python_scalars", lambda *args, **keywords: None):
        yield


@contextlib.contextmanager
def no_printed_graphs() -> Iterator[None]:
    """AOTAutograd's graphs become Python only where that is asked for: it prints and compiles each of them several times,
    for logs and for callers that no one here is, which took an eighth of a large graph's first call."""
    from torch._functorch import aot_autograd as whole
    from torch._functorch._aot_autograd import graph_compile
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    aot_autograd: Any = whole
    logged = (graph_compile.aot_joint_log, graph_compile.aot_graphs_log)
    silent = not any(each.isEnabledFor(logging.INFO) for each in logged) and not config.environment("TORCH_TRACE")
    quiet: Any = functools.partial(aot_autograd.AOTConfig, enable_log=False) if silent else aot_autograd.AOTConfig
    with _replaced(aot_autograd, "AOTConfig", quiet), _use_lazy_graph_module(True):
        yield


@contextlib.contextmanager
def noted_state() -> Iterator[list[Any]]:
    """AOTAutograd's state of the graph that it traces, once there is one: its metadata, before any compiler is called. Empty
    where this torch makes none that is known."""
    from torch._functorch import aot_autograd as whole

    states: list[Any] = []
    create = torch_private.get_or("torch._functorch.aot_autograd.create_aot_state", None)

    def noted(*args: Any, **keywords: Any) -> Any:
        states.append(create(*args, **keywords))
        return states[-1]

    with contextlib.nullcontext() if create is None else _replaced(whole, "create_aot_state", noted):
        yield states


@contextlib.contextmanager
def noted_saves() -> Iterator[list[bool]]:
    """For each time that AOTAutograd differentiates: whether eager's nodes save a tensor on the way."""
    saves: list[bool] = []
    grad = torch.autograd.grad

    def noted(outputs: Any, inputs: Any, *args: Any, **keywords: Any) -> Any:
        saves.append(_saves_tensors(outputs, inputs))
        return grad(outputs, inputs, *args, **keywords)

    with _replaced(torch.autograd, "grad", noted):
        yield saves


def _saves_tensors(outputs: Any, inputs: Any) -> bool:
    """Stops at the first node that may: most networks begin their way back with one."""
    waiting, ends = ([each.grad_fn for each in pytree.tree_leaves(tensors) if isinstance(each, torch.Tensor)]
                     for tensors in (outputs, inputs))
    seen: set[Any] = set(ends)  # AOTAutograd's inputs are no leaves
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if _may_save(type(node)):
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False


@functools.cache
def _may_save(node: type) -> bool:
    """Whether nodes of a type save tensors; what holds another node, or the user's, is taken to."""
    if node.__name__ == "AccumulateGrad":
        return False
    plain = re.fullmatch(r"\w+Backward\d+", node.__name__) is not None
    return not plain or any(name.startswith("_raw_saved_") for name in dir(node))


@contextlib.contextmanager
def no_anomaly_warnings() -> Iterator[None]:
    """AOTAutograd differentiates under autograd's search for anomalies, which warns of the line that a failure comes from. Such
    a graph is no error yet: it runs as it was captured, and perhaps nobody ever asks for the gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Error detected in ")
        yield


_LEAVES = frozenset({torch.fx.Node, int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout})
_LISTS = frozenset({list, tuple, immutable_list})


class _PlainTrees:
    """torch's module for trees, as torch.fx's graphs use it: each new node's arguments are searched for symbolic numbers, by
    a walk that asks of each value which kind of tree it is. Nearly all are nodes and numbers, or lists of them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pytree, name)

    @staticmethod
    def tree_iter(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Iterator[Any]:
        _pause()
        if is_leaf is not None or not (type(tree) is tuple and len(tree) == 2 and type(tree[0]) is tuple):
            yield from pytree.tree_iter(tree, is_leaf)
            return
        arguments, keywords = tree
        for value in (*arguments, *keywords.values()) if isinstance(keywords, dict) else (*arguments, keywords):
            if type(value) in _LEAVES:
                yield value
            elif type(value) in _LISTS and all(type(each) in _LEAVES for each in value):
                yield from value
            else:
                yield from pytree.tree_iter(value)


def _pause() -> None:
    """Once for each node that AOTAutograd makes: signals are seen to, and the budget is looked at."""
    _C.safe_point()
    budget.spend("AOTAutograd")


_create_node: Final = torch.fx.Graph.create_node


@functools.wraps(_create_node)
def _create_node_after_pause(*args: Any, **kwargs: Any) -> torch.fx.Node:
    _pause()
    return _create_node(*args, **kwargs)


@contextlib.contextmanager
def quick_nodes() -> Iterator[None]:
    """A third of the time that it takes to make a node, and AOTAutograd makes each of a graph's some six times. Before torch
    2.13 nothing is searched for there."""
    searches = "tree_iter" in _create_node.__code__.co_names
    with (_replaced(fx_graph, "pytree", _PlainTrees()) if searches
          else _replaced(torch.fx.Graph, "create_node", _create_node_after_pause)):
        yield


def shared_with_compiled_autograd(backward: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """AOTAutograd hands a copy of the backward graph to its compiler and keeps the original for compiled autograd; a
    compiler's graph computes the same, so that both may be one: a deep copy of it is the graph itself."""
    backward.__dict__["__deepcopy__"] = lambda memo: backward
    return backward


def copied_deeply(graph: torch.fx.GraphModule) -> None:
    """From here on a deep copy of it is a copy."""
    graph.__dict__.pop("__deepcopy__", None)


@contextlib.contextmanager
def replaced_kernels(kernels: Iterable[tuple[Any, Any, Callable[..., Any] | None]]) -> Iterator[None]:
    """Operators with another Python kernel for a dispatch key, or with none of their own."""
    replaced: list[tuple[Any, Any, Any]] = []
    try:
        for operator, key, kernel in kernels:
            replaced.append((operator, key, operator.py_kernels.pop(key, None)))
            if kernel is not None:
                operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()
        yield
    finally:
        for operator, key, kernel in reversed(replaced):
            operator.py_kernels.pop(key, None)
            if kernel is not None:
                operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
