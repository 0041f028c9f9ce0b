"""Functions of torch that take the user's functions and would be operators of a higher order in a graph.

With a predicate known while tracing, `torch.cond` is the branch itself.
"""

from __future__ import annotations

import torch

from fxjit.frontend.callables.table import handles
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Tracer, Value


@handles(torch.cond)
def _cond(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("pred", "true_fn", "false_fn", "operands"), args, strict=False)) | kwargs
    predicate = given["pred"]
    if predicate.pytype() is torch.Tensor:
        t.break_("tensor-operator", function="torch.cond", error="a predicate that is a tensor")
    branch = given["true_fn"] if protocol.truth(t, predicate) else given["false_fn"]
    operands = protocol.unpack(t, given["operands"]) if "operands" in given else []
    return t.call(branch, operands, None)

