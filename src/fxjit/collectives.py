"""The collectives of torch.distributed that write to the tensors they are given, as functional ones: each starts an operator
that makes a new tensor, waits for it and copies. The front end traces these bodies in the collective's place
(frontend/callables/collectives.py).

`made_functional` is for code of the program's own that a graph calls as one function, such as a `torch.autograd.Function` with
its `backward`: while it is traced on fake tensors, or by AOTAutograd, its collectives are made functional there. An operator of
c10d writes to memory behind autograd's back and gives a handle that the running program waits for: in a traced graph it would
neither be seen to write nor be waited for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
import torch.distributed
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fxjit import torch_private

# -- the bodies: `outs` and `given` are lists of tensors ---------------------------------------------------------------


def all_reduce(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int, reduction: str, order: Any) -> None:
    in_memory = outs[0].permute(order)
    in_memory.copy_(wait(start(in_memory, reduction, group)))


def broadcast(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int, root: int, order: Any) -> None:
    in_memory = outs[0].permute(order)
    in_memory.copy_(wait(start(in_memory, root, group)))


def all_gather(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int) -> None:
    gathered = wait(start(given[0].view(-1), size, group))
    if len(outs) == 1:
        outs[0].copy_(gathered.view(outs[0].shape))
        return
    for out, part in zip(outs, gathered.chunk(size), strict=True):
        out.copy_(part.view(out.shape))


def reduce_scatter(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int, reduction: str) -> None:
    parts = given[0].view(-1) if len(given) == 1 else torch.cat([each.view(-1) for each in given])
    reduced = wait(start(parts, reduction, size, group))
    outs[0].copy_(reduced.view(outs[0].shape))


def all_to_all(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int, received: Any, sent: Any) -> None:
    """`received` and `sent` are the rows of each rank's part, or nothing: then the parts are equal."""
    received = received or [outs[0].shape[0] // size] * size
    sent = sent or [given[0].shape[0] // size] * size
    outs[0].copy_(wait(start(given[0], received, sent, group)))


def all_reduce_together(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int, reduction: str) -> None:
    for out, made in zip(outs, [wait(each) for each in start(outs, reduction, group)], strict=True):
        out.copy_(made)


def all_gather_together(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int) -> None:
    for out, made in zip(outs, [wait(each) for each in start([each.view(-1) for each in given], size, group)], strict=True):
        out.copy_(made.view(out.shape))


def reduce_scatter_together(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int, reduction: str) -> None:
    parts = [each.view(-1) for each in given]
    for out, made in zip(outs, [wait(each) for each in start(parts, reduction, size, group)], strict=True):
        out.copy_(made.view(out.shape))


def wait_for_nothing() -> None:
    """What the handle of collectives that are over waits for."""


# -- whether a call has a functional form ------------------------------------------------------------------------------


class NotFunctional(Exception):
    """A collective has no functional form, with these arguments or at all."""


def wait_operator() -> Any:
    torch_private.get("torch.distributed._functional_collectives.all_reduce")  # registers what they do to fake tensors
    return torch_private.get("torch.ops._c10d_functional.wait_tensor")


def require(fits: bool, why: str) -> None:
    if not fits:
        raise NotFunctional(why)


def reduction_name(op: Any) -> str:
    """The operator's name for a kind of reduction."""
    kinds: Mapping[str, Any] = torch.distributed.ReduceOp.RedOpType.__members__
    name = next((name for name, kind in kinds.items() if op == kind), "PREMUL_SUM")
    require(name != "PREMUL_SUM", f"a graph has no reduction {op}")
    return name.lower()


def require_plain(tensor: torch.Tensor, name: str) -> None:
    plain = tensor.is_contiguous() and not tensor.is_complex() and tensor.layout is torch.strided
    require(plain, f"`{name}` is not contiguous, or is complex")


def memory_order(tensor: torch.Tensor, name: str) -> tuple[int, ...]:
    """The dimensions of a dense tensor as they lie in memory. Elements are sent in the order of memory, whatever the dimensions
    are on the other ranks."""
    order = tuple(range(tensor.dim()))
    if tensor.layout is torch.strided and not tensor.is_contiguous():
        order = tuple(sorted(order, key=lambda each: (tensor.stride(each), tensor.shape[each]), reverse=True))
        tensor = tensor.permute(order)
    require_plain(tensor, name)
    return order


def require_fit(whole: list[torch.Tensor], part: list[torch.Tensor], size: int) -> None:
    """Whether `whole` is a tensor of `size` times as many rows as the tensor `part`, or a list of so many tensors like it. Some
    backends take other shapes too, and eager says what it has to say where these do not fit."""
    fits = len({(each.dtype, each.device) for each in (*whole, *part)}) == 1 and len(part) == 1
    shape = part[0].shape
    if len(whole) == 1:
        fits = fits and bool(shape) and whole[0].shape == (shape[0] * size, *shape[1:])
    else:
        fits = fits and len(whole) == size and all(each.shape == shape for each in whole)
    require(fits, "the tensors' sizes or types do not fit each other")


def require_divisible(tensor: torch.Tensor, rows: Any, size: int) -> None:
    """Whether a tensor's rows can be divided among the ranks: as `rows` says, or into equal parts."""
    fits = tensor.dim() > 0 and (bool(rows) or bool(tensor.shape[0] % size == 0))
    require(fits, "the tensors' sizes or types do not fit each other")


def root_in_group(group: Any, root: int | None, root_of_group: int | None) -> int:
    """The place in the group of the rank that a broadcast sends from, which is given as its rank among all or in the group."""
    require((root is None) != (root_of_group is None), "`src` and `group_src` are both given, or neither")
    if root_of_group is not None:
        return root_of_group
    assert root is not None
    require(root in torch.distributed.get_process_group_ranks(group), f"rank {root} is not in the group")
    return torch.distributed.get_group_rank(group, root)


# -- in code that a graph calls as one function ------------------------------------------------------------------------


class _Done:
    """The handle of a collective that is over."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


#: Of a call of a process group: the body, its operator, what is written, what is read, and the body's other arguments.
_Form = tuple[Callable[..., None], Any, list[torch.Tensor], list[torch.Tensor], tuple[Any, ...]]


def _all_reduce_of(group: Any, tensors: Any, opts: Any) -> _Form:
    start = torch_private.get("torch.ops._c10d_functional.all_reduce")
    return all_reduce, start, tensors, [], (reduction_name(opts.reduceOp), memory_order(tensors[0], "tensor"))


def _broadcast_of(group: Any, tensors: Any, opts: Any) -> _Form:
    start = torch_private.get("torch.ops._c10d_functional.broadcast")
    return broadcast, start, tensors, [], (opts.rootRank, memory_order(tensors[0], "tensor"))


def _all_gather_of(group: Any, outs: Any, given: Any, opts: Any) -> _Form:
    (outs,), (given,) = _lists(outs), _lists(given)
    require_fit(outs, given, group.size())
    start = torch_private.get("torch.ops._c10d_functional.all_gather_into_tensor")
    return all_gather, start, outs, given, ()


def _reduce_scatter_of(group: Any, outs: Any, given: Any, opts: Any) -> _Form:
    (outs,), (given,) = _lists(outs), _lists(given)
    require_fit(given, outs, group.size())
    start = torch_private.get("torch.ops._c10d_functional.reduce_scatter_tensor")
    return reduce_scatter, start, outs, given, (reduction_name(opts.reduceOp),)


def _all_to_all_of(group: Any, out: Any, given: Any, received: Any, sent: Any, opts: Any) -> _Form:
    require_divisible(out, received, group.size())
    require_divisible(given, sent, group.size())
    start = torch_private.get("torch.ops._c10d_functional.all_to_all_single")
    return all_to_all, start, [out], [given], (list(received), list(sent))


def _lists(value: Any) -> list[list[torch.Tensor]]:
    """A tensor, a list of one, or a list of one list: as a list of lists."""
    listed = value if isinstance(value, (list, tuple)) else [value]
    return [list(listed[0])] if isinstance(listed[0], (list, tuple)) else [list(listed)]


#: Methods of process groups that all calls of a collective come down to, by the names that they have in any release.
_FORMS: Final[dict[str, Callable[..., _Form]]] = {
    "allreduce": _all_reduce_of, "broadcast": _broadcast_of,
    "allgather": _all_gather_of, "_allgather_base": _all_gather_of, "all_gather_single": _all_gather_of,
    "reduce_scatter": _reduce_scatter_of, "_reduce_scatter_base": _reduce_scatter_of,
    "reduce_scatter_single": _reduce_scatter_of,
    "alltoall_base": _all_to_all_of, "all_to_all_single": _all_to_all_of,
}  # fmt: skip


def _rewritten(original: Any, form: Callable[..., _Form]) -> Callable[..., Any]:
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in pytree.tree_leaves(args) if isinstance(each, torch.Tensor)]
        if all(type(each) in (torch.Tensor, torch.nn.Parameter) for each in tensors):
            return original(group, *args, **kwargs)  # of another thread, or not of the traced program
        require(not kwargs and hasattr(args[-1], "asyncOp"), "it is called in another way than torch.distributed calls it")
        body, start, outs, given, rest = form(group, *args)
        for each in tensors:
            if body not in (all_reduce, broadcast):  # which look for themselves
                require_plain(each, "tensor")
            require(not (torch.is_grad_enabled() and each.requires_grad), "a tensor requires a gradient")
        body(start, wait_operator(), outs, given, group.group_name, group.size(), *rest)
        return _Done()

    return call


@contextlib.contextmanager
def _rewriting() -> Iterator[None]:
    groups: Any = torch.distributed.ProcessGroup
    originals = {name: vars(groups)[name] for name in _FORMS if name in vars(groups)}
    for name in originals:
        setattr(groups, name, _rewritten(getattr(groups, name), _FORMS[name]))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(groups, name, original)


class _Refusing(TorchDispatchMode):
    """Raises `NotFunctional` at an operator of c10d, which all other collectives come down to."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_in_place(func):
            raise NotFunctional(f"it communicates by `c10d.{func._opname}`")
        return func(*args, **(kwargs or {}))


def is_in_place(target: Any) -> bool:
    """Whether this is an operator of c10d: a collective that writes to its arguments, or a message."""
    return isinstance(target, OpOverload) and target.namespace == "c10d"


@contextlib.contextmanager
def made_functional() -> Iterator[None]:
    """Inside, collectives are functional ones; one that has no such form raises `NotFunctional`."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        yield
        return
    with _Refusing(), _rewriting():
        yield
