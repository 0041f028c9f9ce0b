"""Functions of torch that take the user's functions: branches, loops and checkpoints.

With a predicate known while tracing, `torch.cond` is the branch itself. A checkpoint is traced through: what it saves
is decided by whoever compiles the graph.
"""

from __future__ import annotations

import torch
import torch.utils.checkpoint

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


@handles(torch.utils.checkpoint.checkpoint)
def _checkpoint(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    options = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")
    function = args[0] if args else kwargs["function"]
    passed = {key: value for key, value in kwargs.items() if key not in options and key != "function"}
    return t.call(function, args[1:], passed)
