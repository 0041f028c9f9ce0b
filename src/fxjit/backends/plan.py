"""What a direct call (direct.py) has to know of a graph besides its compiled parts: plain data, which the disk can keep."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._C._functionalization import ViewMeta
from torch._functorch._aot_autograd.schemas import OutputType


@dataclass(frozen=True, slots=True)
class InputFacts:
    """Of one input of the graph; the names are AOTAutograd's, as in all that follows."""

    requires_grad: bool
    mutates_data: bool


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """Of one result of the graph."""

    output_type: OutputType
    base_idx: int | None
    requires_grad: bool
    #: The steps from the base to a result that is a view of it; None where only the result itself tells.
    view: tuple[ViewMeta, ...] | None


@dataclass(frozen=True, slots=True)
class Layout:
    """How a gradient must lie in memory for the backward graph: in a memory format, or with this size and stride."""

    memory_format: torch.memory_format | None
    size: tuple[int, ...] | None
    stride: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a graph is called directly. A number that stands for an input or a result is its place."""

    training: bool
    num_inputs: int
    input_info: tuple[InputFacts, ...]
    output_info: tuple[OutputFacts, ...]
    num_intermediate_bases: int
    #: Inputs that the graph writes to itself, those of them whose writes autograd counts, and those that keep their version.
    mutated_graph_handled_indices: tuple[int, ...]
    counted: tuple[int, ...]
    uncounted: tuple[int, ...]
    draws: bool
    #: Compiled under autocast, which is off while the parts run.
    autocast: bool
    #: Of an inference graph: results that are inputs, each with the input.
    given_back: tuple[tuple[int, int], ...]
    #: An inference graph that is to run without autograd recording, although its caller's records.
    switches_off: bool
    #: Of a training graph: how many of forward's results go to the caller, and how many of the last of the others are sizes,
    #: and tensors that may be written to before backward reads them.
    returned: int
    symbols: int
    unchecked: int
    #: Results that are views of an intermediate, results that are tensors of their own and have no gradient, all that are
    #: tensors of their own (and the intermediates), and those whose gradients the backward graph takes.
    aliased: tuple[int, ...]
    without_grad: tuple[int, ...]
    tensors: tuple[int, ...]
    wanted: tuple[int, ...]
    #: Of each gradient that is taken: whether it is to be contiguous, and how else it must lie.
    layouts: tuple[tuple[bool, Layout | None], ...]
    undetermined: bool
    #: What the backward graph is given after these gradients: which were given at all (unused.py).
    flags: tuple[tuple[int, str], ...]
    #: For each gradient that the backward graph gives: which of the results' gradients it depends on, as bits.
    reach: tuple[int, ...]
    #: Whether results of a training graph are views, which are to be made again.
    remade: bool
