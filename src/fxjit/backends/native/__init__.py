"""`native`: our own compiler. C++/OpenMP kernels on a CPU; what has no kernel is called from ATen.

Works under our front end and under torch.compile (`backend="fxjit"`, or this callable).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fxjit import torch_private
from fxjit.backends.door import needs

if TYPE_CHECKING:
    import torch.fx

    from fxjit.backends.aot.runtime.call_plan import CallPlan


@needs("compiled graphs")
def native(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend: a graph of torch functions and its example inputs in, a callable out."""
    # Loaded at the first compile: AOTAutograd takes a second to import.
    from fxjit.backends.aot.backend import BackendConfig
    from fxjit.backends.aot.driver import compile_with_aot
    from fxjit.backends.aot.known_masks import with_known_masks
    from fxjit.backends.graph.facts import has_symbols

    from .decompositions import kept_whole, table
    from .runtime.cc import abandon, compiling

    _start_compilers(example_inputs)
    store: dict[str, Any] = {}
    if torch_private.is_on("compiled graphs on the disk", thoroughly=True):
        from .stored import store_entry

        store = {"store_entry": store_entry}

    with compiling(), kept_whole(has_symbols(gm)):
        return compile_with_aot(with_known_masks(gm), example_inputs, BackendConfig(
            _compile_aten, "native", table, own_joint_passes, abandon=abandon, is_unprofitable=_is_unprofitable,
            captured_passes=_captured_passes, **store))


def _start_compilers(example_inputs: Sequence[Any]) -> None:
    """Starts the processes that compile kernels for a GPU, if an input is on one: they are warm when the graph is traced."""
    import torch

    devices = (each.device for each in example_inputs if isinstance(each, torch.Tensor))
    device = next((each for each in devices if each.type == "cuda"), None)
    if device is not None:
        from .runtime.gpu import start_compilers

        start_compilers(device)


@needs("compiled graphs")
def aot_eager_decomp_partition(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """AOTAutograd's graphs by this backend's decompositions and partitioner, run node by node."""
    from fxjit.backends.aot.backend import BackendConfig
    from fxjit.backends.aot.driver import compile_with_aot
    from fxjit.backends.aot.node_by_node import run_nodes

    from .decompositions import table

    return compile_with_aot(gm, example_inputs, BackendConfig(run_nodes, "aot_eager_decomp_partition", table, joint_passes))


def joint_passes(joint: torch.fx.GraphModule) -> None:
    """Instead of functorch's own pass (`cse`), which imports the whole of inductor for one of its functions.

    Aliases go first: the partitioner knows no `detach`, and keeps what a derivative reads through one (of tanh, sigmoid, exp)
    where it could compute that again."""
    from .passes.batch_norm import open_batch_norm
    from .passes.cleanup import drop_aliases, share_equal
    from .passes.group_norm import open_group_norm
    from .passes.softmax import open_log_softmax

    drop_aliases(joint.graph)
    share_equal(joint.graph)
    open_log_softmax(joint.graph)
    open_group_norm(joint.graph)
    open_batch_norm(joint.graph)


def _captured_passes(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    from fxjit.backends.aot.attention_by_hand import with_attention

    from .choose.attention import is_attention_preferred

    return with_attention(gm, is_attention_preferred)


def own_joint_passes(joint: torch.fx.GraphModule) -> None:
    """Those, upcasts where low precision is slow, and the layout of images."""
    import torch

    from .choose.upcast import upcast_slow_calls
    from .passes.convolution import write_out_ways

    write_out_ways(joint.graph)
    upcast_slow_calls(joint.graph)
    joint_passes(joint)
    if joint.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default):
        from .choose.channels_last_on_gpu import use_channels_last_on_gpu
        from .choose.convolution_gradients import use_channels_last_in_training
        from .passes.convolution import convolve_rows

        convolve_rows(joint.graph)
        use_channels_last_in_training(joint)
        use_channels_last_on_gpu(joint.graph)


def _is_unprofitable(gm: torch.fx.GraphModule, plan: CallPlan | None, graphs: Mapping[str, Callable[..., Any]]) -> bool:
    from .choose.profitability import is_unprofitable

    return is_unprofitable(gm, plan, graphs)


def _compile_aten(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str) -> Callable[[list[Any]], Any]:
    from .entry import compile_aten  # all of the compiler, which a graph that the disk has does without

    return compile_aten(gm, example_inputs, name)


__all__ = ["aot_eager_decomp_partition", "joint_passes", "native"]
