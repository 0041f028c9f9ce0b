"""LSTM, GRU and RNN of float32 by our own kernels (executor/_recurrent.c), in the place of ATen's layers.

Compiled graphs call `recurrent` where they have the operator `fxjit::recurrent` (executor/aten_calls.py). What our kernels do
not run (other types, projections, autocast, a processor without AVX2, wrong sizes, which ATen refuses) is ATen's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from fxjit import _C, config
from fxjit.backends.aot.recurrent import KINDS, Derivative, Layers, call_by, run_aten

Tensor = torch.Tensor
#: Of each step: gates of a unit.
GATES: Final = (4, 3, 1, 1)
#: Steps from which packing the weights is worth it.
LEAST_STEPS: Final = 3
#: Up to which size the training of an LSTM is ours. Of larger ones the weights of a step leave the cache, and oneDNN's products
#: for all steps are faster than ours: 1024 units, 32 rows, 20 steps 0.88 to 0.92 of its speed, 512 units 1.00 to 1.07.
LARGEST_LSTM: Final = 768


@dataclass(slots=True)
class Direction:
    """One direction of a layer, by the names of _recurrent.h's direction_t; what is not there is None."""

    w_input: Tensor
    w_hidden: Tensor
    b_input: Tensor | None
    b_hidden: Tensor | None
    h_first: Tensor
    c_first: Tensor | None
    h_last: Tensor | None = None
    c_last: Tensor | None = None
    gates: Tensor | None = None
    h_before: Tensor | None = None
    cells: Tensor | None = None
    d_h_last: Tensor | None = None
    d_c_last: Tensor | None = None
    d_h_first: Tensor | None = None
    d_c_first: Tensor | None = None
    d_w_input: Tensor | None = None
    d_w_hidden: Tensor | None = None
    d_b_input: Tensor | None = None
    d_b_hidden: Tensor | None = None

    def numbers(self) -> list[int]:
        return [_address(getattr(self, name)) for name in Direction.__slots__]


@dataclass(slots=True)
class Layer:
    """A layer over the rows of all its steps, by the names of layer_t."""

    kind: int
    batch: int
    starts: Tensor
    x: Tensor
    out: Tensor
    each: list[Direction]
    #: What its results are multiplied with on their way to the next layer.
    noise: Tensor | None = None
    numbers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.each[0].w_hidden.shape[1]
        self.numbers = [self.kind, len(self.starts) - 1, self.batch, self.x.shape[1], size, len(self.each), len(self.x)]

    def run(self, d_out: Tensor | None = None, d_x: Tensor | None = None, backward: bool = False) -> None:
        places = [_address(each) for each in (self.starts, self.x, d_out, self.out, d_x)]
        directions = [number for each in self.each for number in each.numbers()]
        directions += [0] * (2 * len(Direction.__slots__) - len(directions))
        (_C.recurrent_backward if backward else _C.recurrent_forward)((*self.numbers, *places, *directions))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def recurrent(*arguments: Any) -> tuple[Tensor, ...]:
    """`fxjit::recurrent`, as compiled graphs call it."""
    with torch.no_grad():
        return call_by((run_own, run_aten), *arguments)


def run_own(call: Layers) -> tuple[Sequence[Tensor], Derivative | None] | None:
    """Our kernels' results and their derivative; None for what they do not run."""
    if not is_supported(call):
        return None
    return Stack(call).forward()


def is_supported(call: Layers) -> bool:
    """Whether our kernels run the call."""
    if not config.cpp.own_recurrent or call.autocast is not None or not _C.program_can("recurrent"):
        return False
    tensors = call.tensors
    if any(each.dtype is not torch.float32 or each.device.type != "cpu" or each.layout is not torch.strided or each.numel() == 0
           for each in tensors):
        return False
    directions, packed = 2 if call.both_ways else 1, call.batch_sizes is not None
    if call.x.dim() != (2 if packed else 3) or any(each.dim() != 3 for each in call.states):
        return False
    rows, batch, size = call.states[0].shape
    if packed:
        assert call.batch_sizes is not None
        steps = call.batch_sizes.numel()
        fits = int(call.batch_sizes[0]) == batch and int(call.batch_sizes.sum()) == len(call.x)
    else:
        steps, given = call.x.shape[:2] if not call.batch_first else call.x.shape[1::-1]
        fits = given == batch
    gates, features = GATES[KINDS.index(call.kind)] * size, call.x.shape[-1]
    per = 4 if call.biases else 2
    if call.kind == "lstm" and size > LARGEST_LSTM and any(call.wanted):
        return False
    if not fits or steps < LEAST_STEPS or rows != call.layers * directions or len(call.parameters) != rows * per:
        return False
    if any(each.shape != (rows, batch, size) for each in call.states):
        return False
    for at in range(0, len(call.parameters), per):
        wide = features if at < directions * per else size * directions
        w_input, w_hidden, *biases = call.parameters[at:at + per]
        if w_input.shape != (gates, wide) or w_hidden.shape != (gates, size) or any(each.shape != (gates,) for each in biases):
            return False
    return True


class Stack:
    """A call on its way through its layers."""

    def __init__(self, call: Layers) -> None:
        self.call = call
        self.kind = KINDS.index(call.kind)
        self.directions = 2 if call.both_ways else 1
        self.batch, self.size = call.states[0].shape[1:]
        self.keep = any(call.wanted)
        self.states = [each.contiguous() for each in call.states]
        self.parameters = [each.contiguous() for each in call.parameters]
        x = call.x.transpose(0, 1) if call.batch_first else call.x
        self.shape = x.shape[:-1]
        self.x = x.reshape(-1, x.shape[-1]).contiguous()
        if call.batch_sizes is None:
            self.starts = torch.arange(0, len(self.x) + 1, self.batch)
        else:
            self.starts = torch.zeros(call.batch_sizes.numel() + 1, dtype=torch.int64)
            torch.cumsum(call.batch_sizes, 0, out=self.starts[1:])
        self.layers: list[Layer] = []

    def forward(self) -> tuple[Sequence[Tensor], Derivative | None]:
        call, x, rows = self.call, self.x, len(self.x)
        last = [torch.empty_like(each) for each in self.states]
        gates = None
        for layer in range(call.layers):
            out = x.new_empty(rows, self.directions * self.size)
            each = [self._direction(layer * self.directions + way, last) for way in range(self.directions)]
            for direction in each:
                if gates is None or self.keep or self.directions > 1:
                    gates = x.new_empty(rows, GATES[self.kind] * self.size)
                direction.gates = gates
                if self.keep:
                    direction.h_before, direction.cells = x.new_empty(rows, self.size), x.new_empty(rows, self.size)
            made = Layer(self.kind, self.batch, self.starts, x, out, each)
            made.run()
            x = out
            if call.dropout and call.train and layer + 1 < call.layers:  # as ATen's dropout draws and multiplies
                made.noise = torch.empty_like(out).bernoulli_(1 - call.dropout).div_(1 - call.dropout)
                x = out * made.noise
            if self.keep:
                self.layers.append(made)
        shaped = x.view(*self.shape, x.shape[-1])
        return [shaped.transpose(0, 1) if call.batch_first else shaped, *last], self.backward if self.keep else None

    def _direction(self, number: int, last: list[Tensor]) -> Direction:
        """The direction of a layer, of all of them by its number."""
        per = 4 if self.call.biases else 2
        w_input, w_hidden, *biases = self.parameters[number * per:(number + 1) * per]
        b_input, b_hidden = biases or (None, None)
        h_first, *c_first = (each[number] for each in self.states)
        h_last, *c_last = (each[number] for each in last)
        return Direction(w_input, w_hidden, b_input, b_hidden, h_first, next(iter(c_first), None), h_last,
                         next(iter(c_last), None))

    def backward(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradients of x, the states and the parameters, given those of the results."""
        with torch.no_grad():
            return self._backward(grads)

    def _backward(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        call, rows = self.call, len(self.x)
        out, *last = grads
        d_last = [None if each is None else each.contiguous() for each in last]
        if out is not None:
            out = (out.transpose(0, 1) if call.batch_first else out).reshape(rows, -1).contiguous()
        x_wanted, *wanted = call.wanted
        count = len(self.states)
        d_states = [torch.empty_like(each) if wants else None for each, wants in zip(self.states, wanted[:count], strict=True)]
        d_parameters = [torch.empty_like(each) if wants else None
                        for each, wants in zip(self.parameters, wanted[count:], strict=True)]
        per = 4 if call.biases else 2
        for layer in range(call.layers - 1, -1, -1):
            made = self.layers[layer]
            for way, direction in enumerate(made.each):
                number = layer * self.directions + way
                direction.d_h_last, direction.d_c_last = _at(d_last, number)
                direction.d_h_first, direction.d_c_first = _at(d_states, number)
                own = [*d_parameters[number * per:(number + 1) * per], None, None]
                direction.d_w_input, direction.d_w_hidden, direction.d_b_input, direction.d_b_hidden = own[:4]
            d_x = torch.empty_like(made.x) if layer or x_wanted else None
            made.run(out, d_x, backward=True)
            for direction in made.each:  # the next derivative has others
                for name in Direction.__slots__:
                    if name.startswith("d_"):
                        setattr(direction, name, None)
            out = d_x
            if layer and (noise := self.layers[layer - 1].noise) is not None:
                assert out is not None
                out.mul_(noise)
        if out is not None:
            out = out.view(*self.shape, out.shape[-1])
            out = out.transpose(0, 1) if call.batch_first else out
        return [out if x_wanted else None, *d_states, *d_parameters]


def _at(states: Sequence[Tensor | None], number: int) -> tuple[Tensor | None, Tensor | None]:
    """One direction's part of what there is of hidden states and cells."""
    parts = [None if each is None else each[number] for each in states]
    return parts[0], parts[1] if len(parts) > 1 else None
