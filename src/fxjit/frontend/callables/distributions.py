"""torch.distributions in traced code: its Python is traced as it stands but for what is here."""

from __future__ import annotations

from typing import Any

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.functions import FunctionValue

_lazy_property_and_property: Any = torch_private.optional("torch.distributions.utils._lazy_property_and_property")


@handles(_lazy_property_and_property)
def _lazy_property_of_class(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A lazy property read from its class: a `property`, which is made at once."""
    wrapped = args[0] if args else kwargs.get("wrapped")
    if not isinstance(wrapped, FunctionValue) or wrapped.fn is None or len(args) + len(kwargs) != 1:
        t.break_("class-instantiation-unsupported", cls="_lazy_property_and_property")
    return t.make(_lazy_property_and_property(wrapped.fn))
