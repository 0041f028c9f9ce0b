"""Setting what a tensor requires: `requires_grad_()`, `requires_grad = True`.

A graph cannot make a leaf of the autograd graph that anybody could get hold of. A tensor that stays inside the graph, and an
input that no operator has taken yet, are set in it or before it (frontend/leaves.py); others are set when the graph has run.
An input that is to require none from then on is detached for the operators that take it afterwards; any other breaks the graph
there.
"""

from __future__ import annotations

from typing import Final, NoReturn

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.tensor_attributes import AttributedTensor
from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.tensor_wrappers import is_wrapper_class

#: What is known of a leaf whatever it requires.
_OF_A_LEAF: Final = frozenset({"requires_grad", "is_leaf", "grad_fn"})


class SettableTensor(AttributedTensor):
    """A tensor of which a program sets what it requires."""

    #: Whether it existed before, and is nothing that only stands for what did.
    may_be_set = False
    #: What `requires_grad` is set to when the graph has run; None where that is not written.
    set_late: bool | None = None

    def set_requires_grad(self, t: Tracer, value: Value) -> None:
        """`tensor.requires_grad = value`, which may raise even where `value` is what it is already."""
        if value.pytype() is not bool:
            self._refuse_requires_grad(t, "it is given another thing than a bool")
        if overrides.entered_transforms(t):
            self._refuse_requires_grad(t, "functions that are transformed cannot set it")
        wanted = protocol.truth(t, value)
        if wanted and self.fake.is_inference() and not torch.is_inference_mode_enabled():
            self._refuse_requires_grad(t, "an inference tensor is outside of inference mode")
        self.make_leaf(t, wanted)

    def make_leaf(self, t: Tracer, wanted: bool) -> None:
        """Whether a tensor is a leaf is not something an operator changes."""
        if self.now_requires_grad() == wanted:
            return
        if self.source is not None and not self._is_leaf(t):
            self._refuse_requires_grad(t, "it is no leaf of the autograd graph")
        if self.set_late is None and t.make_leaf(self, wanted):
            if self.source is None and t.takes_backward_passes():
                t.emit("requires_grad_", [self, t.make(wanted)])
        elif self._may_be_set_late(t, wanted):
            self.set_late = wanted
        else:
            self._refuse_requires_grad(t, "a graph cannot make a leaf of the autograd graph")
        if self.source is not None or self.set_late is not None:
            t.effects.call_later(setattr, (self, "requires_grad", wanted))

    def _is_leaf(self, t: Tracer) -> bool:
        return protocol.truth(t, protocol.getattr_(t, self, "is_leaf"))

    def now_requires_grad(self) -> bool:
        return self.fake.requires_grad if self.set_late is None else self.set_late

    def _may_be_set_late(self, t: Tracer, wanted: bool) -> bool:
        """Whether it can be set when the graph has run: which has no other operator that takes it."""
        fake, real = self.fake, self.real
        differentiable = fake.is_floating_point() or fake.is_complex()
        if not self._is_plain(self) or torch.is_inference_mode_enabled() or not differentiable:
            return False
        if real is None:
            return (wanted or self.set_late is not None) and not fake._is_view()
        return self.may_be_set and not real._is_view()

    def _refuse_requires_grad(self, t: Tracer, why: str) -> NoReturn:
        t.break_("value-set-attribute", name="requires_grad", value=self.describe(), type=self.cls.__name__, why=why)

    def of_a_late_leaf(self, t: Tracer, name: str) -> Value | None:
        """The attribute, where it is another one once the graph has run."""
        if self.set_late is None or name not in _OF_A_LEAF:
            return None
        return t.make({"requires_grad": self.set_late, "is_leaf": True}.get(name))

    def _is_plain(self, value: GraphTensor) -> bool:
        """Whether `value` and this tensor are of the common kind."""
        fakes = (self.fake, value.fake)
        if overrides.has_torch_function(self.cls) or is_wrapper_class(self.cls):
            return False
        return value.cls in (torch.Tensor, torch.nn.Parameter) and not any(
            fake.layout is not torch.strided or fake.is_inference() for fake in fakes)


def set_before(tensor: torch.Tensor) -> torch.Tensor:
    """Run-time helper of new bytecode: an input that requires a gradient when the graph begins."""
    return tensor.requires_grad_()


def unset_before(tensor: torch.Tensor) -> torch.Tensor:
    """The same of one that requires none from then on."""
    return tensor.requires_grad_(False)
