"""Fake execution: what torch raises where an operator cannot be run on fake tensors, and torch's decompositions in the place
of composite kernels.

Where a torch lacks one of the exceptions, it is never raised, and what torch raises instead is an operator's own error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from . import torch_private

#: A branch depends on a symbol that only a run knows.
DECIDES_ON_DATA: Final[type[Exception]] = torch_private.optional(
    "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode")
#: A shape or a branch depends on numbers in a tensor.
DATA_DEPENDENT: Final[tuple[type[Exception], ...]] = (
    torch_private.optional("torch._subclasses.fake_tensor.DataDependentOutputException"),
    torch_private.optional("torch._subclasses.fake_tensor.DynamicOutputShapeException"),
    DECIDES_ON_DATA,
)
#: There is no fake kernel for the operator, or for these tensors.
UNSUPPORTED: Final[tuple[type[Exception], ...]] = (
    torch_private.optional("torch._subclasses.fake_tensor.UnsupportedOperatorException"),
    torch_private.optional("torch._subclasses.fake_tensor.UnsupportedFakeTensorException"),
)
#: Symbols that an operator made are nowhere in its result.
SYMBOL_NOT_FOUND: Final[type[Exception]] = torch_private.optional(
    "torch.fx.experimental.symbolic_shapes.PendingUnbackedSymbolNotFound")
#: A context under which composite operators run as torch's decompositions in Python, which do without what their C++ looks at.
python_dispatcher: Final[Callable[[], contextlib.AbstractContextManager[Any]]] = torch_private.get_or(
    "torch._dispatch.python.enable_python_dispatcher", contextlib.nullcontext)
