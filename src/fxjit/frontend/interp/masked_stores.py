"""`x[mask] = y[mask]`: a masked store of a masked selection, as `torch.where`.

By itself the selection has a size that only data tells, and breaks the graph. Where the next instructions store it under
the same mask in a tensor of the same shape, both are one operator of known size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeGuard

import torch

from fxjit.frontend.values import overrides
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.tensor import TensorValue

if TYPE_CHECKING:
    from fxjit.frontend.interp.machine import Machine
    from fxjit.frontend.tracer import Tracer

_STORE: Final = ("LOAD_FAST", "LOAD_FAST", "STORE_SUBSCR")


def run(m: Machine, source: Value, key: Value) -> bool:
    """Whether `source[key]` and its store, the three instructions behind it, were put in the graph: the machine goes on behind
    these."""
    following = m.instructions[m.pc: m.pc + 3]
    if tuple(each.opname for each in following) != _STORE:
        return False
    stored, again = (m.locals.get(str(each.argval)) for each in following[:2])
    if stored is None or again is None:
        return False
    mask, x, y = key.realize(), stored.realize(), source.realize()
    if again.realize() is not mask or not (_is_plain(mask) and _is_plain(x) and _is_plain(y)) or not _fits(m.t, x, y, mask):
        return False
    spread: Value = mask
    for _ in range(x.fake.dim() - mask.fake.dim()):
        spread = m.t.emit("unsqueeze", [spread, m.t.make(-1)])
    m.t.emit("copy_", [x, m.t.emit(torch.where, [spread, y, x])])
    m.pc += 3
    return True


def _is_plain(value: Value) -> TypeGuard[TensorValue]:
    """Whether it is a strided tensor of torch's own class, which the graph has as it is."""
    return (isinstance(value, TensorValue) and value.cls is torch.Tensor and value.fake.layout is torch.strided
            and value.new_data is None and value.set_late is None)


def _fits(t: Tracer, x: TensorValue, y: TensorValue, mask: TensorValue) -> bool:
    """Whether eager stores without raising or converting anything, and nobody sees how."""
    if overrides.entered_transforms(t) or overrides.entered_modes(t) or overrides.innermost(t) is not None:
        return False
    sizes = list(map(str, x.fake.shape))
    if mask.fake.dtype is not torch.bool or not mask.fake.dim() or list(map(str, mask.fake.shape)) != sizes[:mask.fake.dim()]:
        return False
    if list(map(str, y.fake.shape)) != sizes or y.fake.dtype is not x.fake.dtype:
        return False
    if len({each.fake.device for each in (x, y, mask)}) > 1:
        return False
    if x.fake.is_inference() is not torch.is_inference_mode_enabled():
        return False
    if x.fake.requires_grad and (torch.is_inference_mode_enabled() or x.fake.is_leaf):
        return False
    return all(stride != 0 for stride in x.fake.stride() if isinstance(stride, int))
