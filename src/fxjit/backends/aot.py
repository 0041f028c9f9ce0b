"""Through AOTAutograd: an FX graph of torch calls becomes functional ATen graphs (forward, backward, or inference), which
a compiler of graphs then takes one by one.

`aot_eager` and `aot_eager_decomp_partition` run those graphs as they are; `native` compiles them. Mutation of inputs,
aliasing of outputs and autograd's bookkeeping are AOTAutograd's part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

#: Takes an ATen graph and its fake inputs, gives a callable over a list of inputs that may empty it ("boxed").
GraphCompiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def compile_with_aot(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    forward: GraphCompiler,
    backward: GraphCompiler | None = None,
    inference: GraphCompiler | None = None,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    min_cut: bool = True,
) -> Callable[..., Any]:
    """A callable with the signature of `gm`. `backward` and `inference` default to `forward`; with `min_cut` the forward
    graph saves the least memory for the backward one, recomputing what is cheap."""
    # Imported here: it costs most of a second, and eager backends need none of it.
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    return aot_module_simplified(  # type: ignore[no-any-return]  # torch's function is typed as Callable
        gm,
        example_inputs,
        fw_compiler=forward,
        bw_compiler=backward or forward,
        inference_compiler=inference or forward,
        partition_fn=min_cut_rematerialization_partition if min_cut else default_partition,
        decompositions=dict(decompositions or {}),
        keep_inference_input_mutations=True,
    )


def run_as_is(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A graph compiler that compiles nothing."""
    def call(args: list[Any]) -> Any:
        values = list(args)
        args.clear()  # the caller hands them over: a tensor used up early is freed early
        return gm(*values)

    call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's calling convention for a list of inputs
    return call


def aot_eager(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """AOTAutograd's graphs, run by eager kernels: what fails here and not under `eager` is AOTAutograd's doing."""
    return compile_with_aot(gm, example_inputs, run_as_is, min_cut=False)


def aot_eager_decomp_partition(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """As `aot_eager`, with core ATen decompositions and the min-cut partitioner: what `native` starts from."""
    from torch._decomp import core_aten_decompositions

    return compile_with_aot(gm, example_inputs, run_as_is, decompositions=core_aten_decompositions())
