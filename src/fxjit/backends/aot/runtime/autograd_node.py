"""The autograd node of a training graph: forward saves what the backward graph wants, backward gives it the tangents.

One class of autograd functions is made for each compiled graph; what it does is in the methods of `AutogradNode`, over the
graph's call plan. Outputs that alias an input or an intermediate leave the node as `OutputAlias`, which autograd passes by,
and are made again as views around it (output_views.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from fxjit import _C, torch_private

from .call_plan import CallPlan
from .double_backward import NO_SECOND_DERIVATIVE, DoubleBackward, graph_is_retained, standing_for
from .output_views import OutputAlias
from .tangents import defined_tangents, mask_tensors, plain_tangent, runs_operators, with_layout

Boxed = Callable[[list[Any]], Any]


class AutogradNode:
    """Forward and backward of the autograd function of one compiled graph."""

    __slots__ = (
        "activation_outputs", "aliases", "all_defined", "backward_graph", "double_backward", "forward_graph", "fresh",
        "gradient_dependencies", "layouts", "masks", "met_tangents", "non_differentiable", "nondeterministic", "num_returned",
        "num_symbols", "num_unchecked", "saves_nothing", "several", "tangents",
    )  # fmt: skip

    def __init__(self, forward_graph: Boxed, backward_graph: Boxed, plan: CallPlan,
                 double_backward: DoubleBackward | None) -> None:
        record = plan.backward
        assert record is not None, "a training graph"
        self.forward_graph, self.backward_graph, self.double_backward = forward_graph, backward_graph, double_backward
        self.num_returned, self.num_symbols, self.num_unchecked = (
            record.num_returned, record.num_saved_symbols, record.num_saved_unchecked)
        self.aliases, self.fresh, self.non_differentiable = record.aliases, record.fresh, record.non_differentiable
        self.tangents, self.masks, self.nondeterministic = record.tangents, record.tangent_masks, record.nondeterministic
        self.layouts = tuple((index, *how) for index, how in zip(record.tangents, record.tangent_layouts, strict=True))
        # Eager gives no gradient (None, not zeros) to what only outputs depend on whose tangents are undefined.
        self.gradient_dependencies = record.gradient_dependencies
        self.met_tangents, self.activation_outputs = record.met_tangents, record.activation_outputs
        self.saves_nothing = record.saves_nothing
        self.several = len(self.tangents) > 1
        self.all_defined = (1 << len(self.tangents)) - 1

    def apply(self) -> Callable[..., Any]:
        """The callable over the graph's inputs that autograd records as one node."""
        backward = _as_function(self.backward)
        plain = type("CompiledGraph", (torch.autograd.Function,), {
            "forward": staticmethod(self.forward), "backward": staticmethod(backward),
        })  # fmt: skip
        # The engine reads the flag of the class that is applied. Compiled autograd reads that of the backward's class, and
        # refuses boxed gradients: there the node has none, and `backward` takes gradients as they come.
        node: Any = type("CompiledGraph", (plain,), {"boxed_grads_call": True})
        node._backward_cls._forward_cls = plain
        node._backward_cls.apply_boxed = backward
        # Function.apply looks for functorch and for default arguments; guards and graphs have seen to both.
        return torch._C._FunctionBase.__dict__["apply"].__get__(None, node)  # type: ignore[no-any-return]  # a descriptor of C

    def forward(self, ctx: Any, *args: Any) -> tuple[Any, ...]:
        kept = None
        if self.double_backward is not None:
            kept = ctx.kept = self.double_backward.keep(args)
        if kept is None:
            ctx.inputs = standing_for(args)
        outs = self.forward_graph(list(args))
        if type(outs) is not list:
            outs = list(outs)
        num_returned = self.num_returned
        saved = outs[num_returned:]
        if self.num_symbols:
            ctx.symbols = saved[-self.num_symbols:]
            del saved[-self.num_symbols:]
        for index, tensor in enumerate(saved):
            if tensor is not None and tensor._is_view():  # None: an operator left it undefined
                saved[index] = tensor.detach()
        if self.num_unchecked:
            ctx.unchecked = saved[-self.num_unchecked:]
            del saved[-self.num_unchecked:]
        if self.met_tangents:
            for index in self.activation_outputs:  # so that its version can be read: of an output autograd keeps another object
                saved[index] = saved[index].detach()
        if self.saves_nothing:
            ctx.has_saved = bool(saved)
        ctx.save_for_backward(*saved)
        if self.met_tangents:
            ctx.versions = [0 if tensor is None else tensor._version for tensor in saved]
        for index in self.fresh:
            # To autograd each is a tensor of its own, although the graph may have made it as a view of a buffer. Otherwise
            # writing to it in place would be refused.
            if outs[index]._is_view():
                outs[index] = torch.ops.aten._unsafe_view(outs[index], outs[index].shape)
        for index in self.aliases:
            outs[index] = OutputAlias(outs[index])
        if self.non_differentiable:
            ctx.mark_non_differentiable(*[outs[index] for index in self.non_differentiable])
            ctx._materialize_non_diff_grads = False
        ctx.set_materialize_grads(False)
        if self.several:
            ctx.like = [(outs[index].shape, outs[index].dtype, outs[index].device) for index in self.tangents]
        return tuple(outs[:num_returned])

    def backward(self, ctx: Any, *grads: Any) -> Any:
        given = grads[0] if len(grads) == 1 and type(grads[0]) is list else list(grads)
        del grads
        tangents, double_backward = self.tangents, self.double_backward
        for index in tangents:
            if given[index] is not None:
                break
        else:  # autograd came here through another compiled graph, by an output that nobody used
            return (None,) * len(self.gradient_dependencies)
        if double_backward is not None:
            # Kernels do not find the memory of batches of tangents (`is_grads_batched`), nor of classes that run operators.
            if ctx.kept is not None and (torch.is_grad_enabled() or any(
                    _is_batch(each) or runs_operators(each) for each in given if each is not None)):
                check_can_run(self.nondeterministic)
                return double_backward.gradients(ctx.kept, tangents, given)
            if not graph_is_retained():
                ctx.kept = None
        # Asking for saved tensors a second time is an error, be there any or not.
        try:
            saved = () if self.saves_nothing and not ctx.has_saved else ctx.saved_tensors
        except RuntimeError:  # written to since
            if not self.met_tangents:
                raise
            saved = self.activations_where_needed(ctx, given)
            if saved is None:
                raise
        args = [*ctx.symbols, *saved] if self.num_symbols else [*saved]
        del saved  # each is freed after its last use
        if self.num_unchecked:
            args += ctx.unchecked
        defined = defined_tangents(given, tangents, ctx.like) if self.several else self.all_defined
        for index, plain, layout in self.layouts:
            grad = given[index]
            if type(grad) is not torch.Tensor:
                grad = plain_tangent(grad, index)
            if not (plain and grad.is_contiguous()) and layout is not None:
                grad = with_layout(grad, layout)
            args.append(grad)
            del grad  # as `saved`
        given.clear()
        if self.masks:
            args += mask_tensors(self.masks, defined)
        check_can_run(self.nondeterministic)
        if torch.is_grad_enabled():
            inputs = getattr(ctx, "inputs", None)
            if inputs is None:  # what was kept has been let go of since
                inputs = torch.empty(0, requires_grad=True)
            return _NotTwice.apply(inputs, ctx, self.backward_graph, args)
        drop_saved_tensors(ctx)
        if defined == self.all_defined:
            return tuple(self.backward_graph(args))
        return tuple(grad if bits & defined else None
                     for grad, bits in zip(self.backward_graph(args), self.gradient_dependencies, strict=True))

    def activations_where_needed(self, ctx: Any, given: list[Any]) -> tuple[torch.Tensor, ...] | None:
        """The saved tensors, of which some were written to since, if these meet only tangents that are undefined: such as are
        parts of other losses, whose own nodes in eager this backward pass does not come to. None if others were."""
        try:
            kept = ctx._raw_saved_tensors
        except RuntimeError:  # freed: it is the second time
            return None
        defined = sum(1 << place for place, index in enumerate(self.tangents) if given[index] is not None)
        found = []
        for each, version, bits in zip(kept, ctx.versions, self.met_tangents, strict=True):
            tensor = each.data
            if tensor is None or (bits & defined and tensor._version != version):
                return None  # None: hooks of the program's keep it, or it was none
            found.append(tensor.detach())
        return tuple(found)


#: Of torch's older `vmap`, by which `autograd.grad` takes several tangents at once.
_is_batch: Any = torch_private.get_or("torch._C._functorch.is_legacy_batchedtensor", lambda tensor: False)
_skip_frames: Final = torch_private.get_or("torch._C._dynamo.eval_frame.set_code_exec_strategy", None)
_strategy: Final = torch_private.get_or("torch._C._dynamo.eval_frame._FrameExecStrategy", None)
_actions: Final = torch_private.get_or("torch._C._dynamo.eval_frame._FrameAction", None)


def _as_function(backward: Callable[..., Any]) -> Callable[..., Any]:
    """`backward` as the function that compiled autograd wants, and that no compiler takes apart."""

    def run(ctx: Any, *grads: Any) -> Any:
        return backward(ctx, *grads)

    run._torchdynamo_disable = True  # type: ignore[attr-defined]  # the mark of torch.compiler.disable
    _C.set_flags(run.__code__, _C.TRANSFORMED)
    if None not in (_skip_frames, _strategy, _actions):  # torch's frame evaluator passes it by, with all that it calls
        skip = _actions.SKIP
        _skip_frames(run.__code__, _strategy(skip, skip))
    return run


_C.set_flags(AutogradNode.forward.__code__, _C.TRANSFORMED)  # the frame hook passes them by
_C.set_flags(AutogradNode.backward.__code__, _C.TRANSFORMED)


#: Where torch does not say which transforms are at work, none is taken to be.
_interpreters: Final = torch_private.get_or("torch._C._functorch.peek_interpreter_stack", lambda: None)


def check_can_run(nondeterministic: bool) -> None:
    """Raises where the backward graph does not compute the gradients that autograd requests."""
    if nondeterministic and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError("torch.use_deterministic_algorithms(True) was set between a compiled graph's forward, "
                           "which was compiled without it, and its backward")
    if _interpreters() is not None:
        raise RuntimeError("a compiled graph's backward was called inside vmap, grad or vjp; compile the whole of it")


def drop_saved_tensors(ctx: Any) -> None:
    """Drops the node's saved tensors: they are in a list by now, from which each is freed after its last use."""
    drop = getattr(ctx, "maybe_clear_saved_tensors", None)
    if drop is not None:
        drop()


class _NotTwice(torch.autograd.Function):
    """An autograd node that keeps the graph connected under create_graph=True, and raises when a second derivative is
    requested."""

    @staticmethod
    def forward(ctx: Any, connected: torch.Tensor, node: Any, graph: Boxed, args: list[Any]) -> Any:
        drop_saved_tensors(node)
        return tuple(graph(args))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(NO_SECOND_DERIVATIVE)
