"""The call plan of a graph: all that a call of its compiled artifacts needs besides them, as plain data that the store keeps.

An index counts the captured graph's inputs or its outputs, as the field says. The outputs of a forward graph are the program's,
then the intermediates that some of these are views of, then the saved activations.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
from torch._C._functionalization import ViewMeta


class OutputKind(enum.Enum):
    """AOTAutograd's kinds of outputs, by its names: its module takes half a second to import, which no stored graph wants."""

    non_alias = enum.auto()
    alias_of_input = enum.auto()
    is_input = enum.auto()
    alias_of_intermediate_save_as_output = enum.auto()
    alias_of_intermediate = enum.auto()
    alias_of_intermediate_base_is_user_output = enum.auto()
    unsafe_view_alias = enum.auto()
    custom_function_view = enum.auto()


#: An input of a backward graph that says whether any of several tangents is defined: those tangents, as bits; the device.
TangentMask = tuple[int, str]


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One input of the captured graph."""

    #: As AOTAutograd traced it.
    requires_grad: bool
    #: Whether the graph writes to its storage.
    mutates_data: bool


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """One output of the captured graph."""

    #: AOTAutograd's kind: a tensor of its own, an input, a view of an input or of an intermediate.
    kind: OutputKind
    #: Of what it is or views: the index of an input, of an output, or of an intermediate base, as the kind says.
    base_index: int | None
    #: Whether the caller gets it with a gradient.
    requires_grad: bool
    #: The views that lead from the base to it; None where only the result itself has the sizes.
    view_steps: tuple[ViewMeta, ...] | None


@dataclass(frozen=True, slots=True)
class TangentLayout:
    """How a tangent must lie in memory for the backward graph: in a memory format, or with this size and stride."""

    memory_format: torch.memory_format | None
    #: In elements, a number each dimension.
    size: tuple[int, ...] | None
    #: In elements, a number each dimension.
    stride: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class BackwardRecord:
    """The data that the autograd node of a training graph carries from forward to backward."""

    #: How many of the forward graph's outputs go to the caller; the others are saved.
    num_returned: int
    #: How many of the saved values, the last of them, are sizes.
    num_saved_symbols: int
    #: How many of the saved tensors, the last of them, may be written to before backward reads them.
    num_saved_unchecked: int
    #: Output indices of views and inputs, which the node returns without autograd's knowledge.
    aliases: tuple[int, ...]
    #: Output indices of tensors that never have a gradient.
    non_differentiable: tuple[int, ...]
    #: Output indices of tensors that share storage with nothing that the caller has.
    fresh: tuple[int, ...]
    #: Output indices whose tangents the backward graph takes, in its order.
    tangents: tuple[int, ...]
    #: For each of the tangents: whether a contiguous one will do, and the layout for one that does not.
    tangent_layouts: tuple[tuple[bool, TangentLayout | None], ...]
    #: The backward graph's last inputs.
    tangent_masks: tuple[TangentMask, ...]
    #: For each input's gradient: the tangents that it depends on, as bits.
    gradient_dependencies: tuple[int, ...]
    #: For each saved tensor whose writes are checked: the tangents that it meets in the backward graph, as bits. Empty where
    #: each meets all.
    met_tangents: tuple[int, ...]
    #: Which of the saved tensors the node returns, too. Empty where `met_tangents` is.
    activation_outputs: tuple[int, ...]
    #: Whether it was compiled with deterministic algorithms off, and must not run with them on.
    nondeterministic: bool
    #: Whether outputs are views that are made anew from what the node returns.
    regenerates_views: bool
    #: Whether eager's autograd nodes save no tensor, and can then be gone through again.
    saves_nothing: bool


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How compiled artifacts are called without AOTAutograd's wrappers."""

    inputs: tuple[InputRecord, ...]
    outputs: tuple[OutputRecord, ...]
    #: How many intermediates the outputs are views of.
    num_intermediate_bases: int
    #: Input indices that the compiled graph itself writes to.
    mutated_in_graph: tuple[int, ...]
    #: Those among them on whose contents before that an output depends, or its derivative, of a training graph.
    read_before_written: tuple[int, ...]
    #: Input indices whose version counter a call adds one to.
    bumps_version: tuple[int, ...]
    #: Input indices that are written to, and keep their version counter.
    preserves_version: tuple[int, ...]
    #: Whether the graph uses random numbers.
    uses_rng: bool
    #: Whether it was compiled under autocast, whose conversions are then in the graphs: it is off while they run.
    autocast: bool
    #: Of an inference graph: (output index, input index) for each output that is an input.
    returned_inputs: tuple[tuple[int, int], ...]
    #: Whether an inference graph's caller records gradients, which the graph must not.
    disables_grad: bool
    #: Of a training graph; None for an inference graph.
    backward: BackwardRecord | None
