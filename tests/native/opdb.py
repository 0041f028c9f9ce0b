"""torch's own operator database (`op_db`), each operator compiled with its sample inputs and compared with eager.

    python tests/native/opdb.py                          # float32, forward and gradients, every operator
    python tests/native/opdb.py --dtype int64 --only add mul
    python tests/native/opdb.py --dynamic --route compile

Two routes: `kernels` gives a graph of some samples to the native backend, with a kernel for everything that has a
lowering; `compile` goes through `fxjit.compile`. Values are held to the tolerance that torch's tests have for the
operator and the type, or to eager's own distance from float64; types, shapes and strides to the letter, and so is, on
the second route, what shares memory with an input (AOTAutograd by itself copies where dropout does nothing).
`test_opdb.py` runs a fixed share of this.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

import fxjit
from fxjit.backends.aot.backend import BackendConfig
from fxjit.backends.aot.driver import compile_with_aot
from fxjit.backends.graph.facts import has_symbols
from fxjit.backends.native import joint_passes
from fxjit.backends.native.decompositions import kept_whole, table
from fxjit.backends.native.pipeline import compile_graph

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool, torch.complex64,
    )
}  # fmt: skip
# The database seeds the generator inside the calls of random operators, which no graph holds: here it is seeded outside.
for _module in list(sys.modules.values()):
    if getattr(_module, "__name__", "").startswith("torch.testing._internal") and hasattr(_module, "wrapper_set_seed"):
        _module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
# Operators whose result is memory as it is found, or differs between two eager calls for another reason.
UNDEFINED = {
    "empty": "memory as it is found", "empty_like": "memory as it is found", "new_empty": "memory as it is found",
    "new_empty_strided": "memory as it is found", "empty_strided": "memory as it is found",
    "empty_permuted": "memory as it is found",
    "resize_": "new elements are memory as it is found", "resize_as_": "new elements are memory as it is found",
}  # fmt: skip
# Differences that stay, with the reason. None is of values.
KNOWN = {
    "ormqr": "strides: of a gradient, as AOTAutograd lays it out",
    "rot90": "strides: of a gradient, for which AOTAutograd makes the cotangent contiguous where sizes are symbols",
    **dict.fromkeys(("fft.fft", "fft.ifft", "fft.rfft", "fft.ihfft"),
                    "strides: of a gradient, likewise; through `fxjit.compile` they are eager's"),
    "tensordot": "strides: of a gradient; torch's fake tensors of half types convert an expanded operand, then take its layout",
    "nn.functional.max_unpool2d": "strides: torch's fake tensors promise plain ones, its kernel gives channels-last ones",
    "nn.functional.max_unpool2d.grad": "strides: torch's fake tensors promise plain ones, its kernel gives channels-last ones",
}
BATCH = 16
#: Where the samples are made and run.
DEVICE = torch.device("cpu")


@dataclass
class Sample:
    """A call: `function` takes the tensors among the arguments, and gives the tensors of the result."""

    number: int
    function: Callable[..., list[torch.Tensor]]
    tensors: list[torch.Tensor]


@dataclass
class Report:
    samples: int = 0
    failures: list[str] = field(default_factory=list)
    known: int = 0
    seconds: float = 0.0


def operators(only: Sequence[str] = ()) -> list[OpInfo]:
    return [op for op in op_db if not only or op.name in only or op.full_name in only]


def samples(op: OpInfo, dtype: torch.dtype, grad: bool, limit: int) -> Iterator[Sample]:
    """Some samples of the database's, evenly spread over all there are; those that eager refuses are left out."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = list(op.sample_inputs(str(DEVICE), dtype, requires_grad=grad))
    step = max(1, -(-len(every) // limit))
    for number, given in list(enumerate(every))[::step]:
        leaves, spec = pytree.tree_flatten((given.input, given.args, given.kwargs))
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        # Samples share tensors; each call gets its own, laid out alike.
        tensors = [copy_of(leaves[k]) for k in places]
        if all(each.layout is torch.strided for each in tensors):
            yield Sample(number, caller(op, leaves, spec, places), tensors)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    detached = tensor.detach()
    copy = detached.clone() if detached.layout is not torch.strided else laid_out_like(detached)
    return copy.requires_grad_(tensor.requires_grad)


def laid_out_like(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides and the same offset in its storage."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1
    flat = tensor.as_strided((extent,), (1,)).clone()
    copy = flat.as_strided(tensor.shape, tensor.stride())
    return torch._neg_view(copy) if tensor.is_neg() else copy.conj() if tensor.is_conj() else copy


def caller(op: OpInfo, leaves: list[Any], spec: Any, places: list[int]) -> Callable[..., list[torch.Tensor]]:
    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        out = op(first, *args, **kwargs)
        return [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]

    return call


# Running


def eager_results(sample: Sample, tensors: list[torch.Tensor], grad: bool) -> list[torch.Tensor]:
    """Outputs, then gradients."""
    outputs = sample.function(*tensors)
    return outputs + (gradients(outputs, tensors) if grad else [])


def gradients(outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return gradients_of_batch([outputs], [tensors])[0]


def gradients_of_batch(
    outputs: Sequence[Sequence[torch.Tensor]], tensors: Sequence[Sequence[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """Those of each sample, from one call: a compiled batch has one backward graph, which is freed behind it."""
    leaves = [(k, each) for k, sample in enumerate(tensors) for each in sample if each.requires_grad]
    differentiable = [each for sample in outputs for each in sample if each.requires_grad]
    found: list[list[torch.Tensor]] = [[] for _ in tensors]
    if leaves and differentiable:
        weights = [cotangent(each) for each in differentiable]
        each_gradient = torch.autograd.grad(differentiable, [leaf for _, leaf in leaves], weights, allow_unused=True)
        for (k, _), gradient in zip(leaves, each_gradient, strict=True):
            found[k] += [gradient] if gradient is not None else []
    return found


def cotangent(output: torch.Tensor) -> torch.Tensor:
    """Laid out as the output: AOTAutograd compiles backward graphs for such ones, and copies others. Every type holds it."""
    values = (torch.arange(output.numel(), dtype=torch.float64) * 0.37).cos().mul(8).round().div(8).reshape(output.shape)
    return torch.empty_like(output, requires_grad=False).copy_(values)


def through_kernels(batch: list[Sample], counts: list[int], dynamic: bool) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The calls as one graph, compiled by the native backend with a kernel for each operator that has a lowering."""
    graph = torch.fx.Graph()
    results: list[torch.fx.Node] = []
    given: list[list[torch.fx.Node]] = [
        [graph.placeholder(f"a{k}_{j}") for j in range(len(sample.tensors))] for k, sample in enumerate(batch)
    ]
    for sample, nodes, count in zip(batch, given, counts):
        out = graph.call_function(sample.function, tuple(nodes))
        results += [graph.call_function(getitem, (out, k)) for k in range(count)]
    graph.output(tuple(results))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    example = fakes([tensor for sample in batch for tensor in sample.tensors], dynamic)
    for node, value in zip(graph.find_nodes(op="placeholder"), example):
        node.meta["example_value"] = value

    def compiler(aten: torch.fx.GraphModule, inputs: Sequence[Any], name: str) -> Any:
        return compile_graph(aten, inputs, name, lone_kernels=True)

    with kept_whole(has_symbols(gm)):
        return compile_with_aot(gm, example, BackendConfig(compiler, "native", table, joint_passes))


def fakes(tensors: list[torch.Tensor], dynamic: bool) -> list[torch.Tensor]:
    if not dynamic:
        return list(tensors)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    out = []
    for tensor in tensors:
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK] * tensor.dim())
        out.append(mode.from_tensor(tensor, symbolic_context=context))
    return out


def through_compile(batch: list[Sample], counts: list[int], dynamic: bool) -> Callable[..., tuple[torch.Tensor, ...]]:
    functions = [(sample.function, len(sample.tensors)) for sample in batch]

    def program(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = []
        at = 0
        for function, count in functions:
            results += function(*tensors[at : at + count])
            at += count
        return tuple(results)

    fxjit.reset()
    return fxjit.compile(program, backend="native", dynamic=True if dynamic else None)


ROUTES = {"kernels": through_kernels, "compile": through_compile}


# Comparing


def tolerance(op: OpInfo, dtype: torch.dtype) -> tuple[float, float]:
    """Torch's default for the type, or the widest that one of its own tests allows the operator."""
    rtol, atol = torch.testing._comparison.default_tolerances(dtype)
    for decorator in op.decorators:
        overrides = getattr(decorator, "decorators", [decorator])
        for each in overrides:
            if isinstance(each, toleranceOverride) and dtype in each.d:
                atol, rtol = max(atol, each.d[dtype].atol), max(rtol, each.d[dtype].rtol)
    return rtol, atol


Exact = Callable[[], "torch.Tensor | None"]


def difference(op: OpInfo, actual: torch.Tensor, expected: torch.Tensor, exact: Exact) -> str | None:
    """What is wrong with the result, or None."""
    if actual.dtype is not expected.dtype or actual.shape != expected.shape or actual.layout is not expected.layout:
        return f"{actual.dtype} {tuple(actual.shape)} {actual.layout}, eager {expected.dtype} {tuple(expected.shape)}"
    if actual.layout is torch.strided and expected.numel():
        if any(size > 1 and a != b for size, a, b in zip(expected.shape, actual.stride(), expected.stride())):
            return f"strides {actual.stride()}, eager {expected.stride()} of {tuple(expected.shape)}"
    if actual.is_conj() != expected.is_conj() or actual.is_neg() != expected.is_neg():
        return "a lazy conjugation"
    rtol, atol = tolerance(op, expected.dtype)
    try:
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    except (AssertionError, NotImplementedError) as problem:
        reference = exact()
        if reference is not None and no_further(actual, expected, reference, rtol, atol):
            return None
        return " ".join(str(problem).split())[:300]
    return None


def no_further(actual: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor, rtol: float, atol: float) -> bool:
    """Whether the result is about as near to the one of float64 as eager's is there or on average, or as a whole is nearer."""
    if exact.shape != actual.shape or not actual.dtype.is_floating_point or not exact.dtype.is_floating_point:
        return False
    a, e, x = actual.double(), expected.double(), exact.double()
    if bool((a.isnan() & ~e.isnan()).any()):
        return False
    # Eager's NaN may come of a half type's overflow on the way, where what the result is held in has the number.
    same = (a == e) | (a.isnan() & e.isnan()) | (a == exact.to(actual.dtype).double())
    errors, ours = (e - x).abs().nan_to_num(0.0, 0.0), torch.where(same, 0.0, (a - x).abs())
    bound = 2 * (errors + errors.mean()) + atol + rtol * x.abs()
    return bool((same | (ours <= bound)).all()) or bool(ours.max() <= errors.max() and ours.mean() <= errors.mean())


def shares(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[int]:
    """Which inputs' memory the result is in."""
    if result.layout is not torch.strided or not result.untyped_storage().nbytes():
        return []
    place = result.untyped_storage().data_ptr()
    return [k for k, each in enumerate(tensors) if each.untyped_storage().data_ptr() == place]


def exact_results(sample: Sample, dtype: torch.dtype, grad: bool) -> list[torch.Tensor] | None:
    """The call in float64, where it means the same."""
    if not dtype.is_floating_point:
        return None
    wide = [
        copy_of(each).detach().double().requires_grad_(each.requires_grad) if each.dtype is dtype else copy_of(each)
        for each in sample.tensors
    ]
    try:
        return eager_results(sample, wide, grad)
    except Exception:
        return None


# One operator


def check(
    op: OpInfo, dtype: torch.dtype, *, grad: bool = True, dynamic: bool = False, route: str = "kernels", limit: int = 24
) -> Report:
    """Runs the operator's samples; the failures say which sample and what differed."""
    report = Report()
    if dtype not in op.supported_dtypes(DEVICE.type) or op.name in UNDEFINED:
        return report
    grad = grad and dtype in op.supported_backward_dtypes(DEVICE.type) and op.supports_autograd
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usable = [sample for sample in samples(op, dtype, grad, limit) if runs_in_eager(sample, grad)]
        for at in range(0, len(usable), BATCH):
            check_batch(op, dtype, usable[at : at + BATCH], grad, dynamic, route, report)
    report.seconds = time.perf_counter() - start
    return report


def runs_in_eager(sample: Sample, grad: bool) -> bool:
    try:
        torch.manual_seed(0)
        results = eager_results(sample, [copy_of(each) for each in sample.tensors], grad)
    except Exception:
        return False
    return all(each.layout is torch.strided for each in results)


def check_batch(
    op: OpInfo, dtype: torch.dtype, batch: list[Sample], grad: bool, dynamic: bool, route: str, report: Report
) -> None:
    """The samples as one graph; where that fails, one by one."""
    try:
        wrong = run_batch(op, dtype, batch, grad, dynamic, route)
    except Exception as problem:
        if len(batch) > 1:
            for sample in batch:
                check_batch(op, dtype, [sample], grad, dynamic, route, report)
            return
        if route == "kernels" and depends_on_data(problem):
            check_batch(op, dtype, batch, grad, dynamic, "compile", report)
            return
        last = traceback.extract_tb(problem.__traceback__)[-1]
        text = " ".join(str(problem).split())[:300]
        wrong = {batch[0].number: f"{type(problem).__name__}: {text} ({last.filename.rpartition('/')[2]}:{last.lineno})"}
    report.samples += len(batch)
    for number, text in wrong.items():
        if op.full_name in KNOWN and KNOWN[op.full_name].partition(":")[0] in text:
            report.known += 1
        else:
            report.failures.append(f"sample {number}: {text}")


def depends_on_data(problem: BaseException) -> bool:
    """A graph of fixed shapes cannot hold the call, or torch has the shape wrong; fxjit.compile breaks the graph there, or
    calls the program."""
    names = ("that torch says is", "DataDependent", "DynamicOutputShape", "GuardOnDataDependent", "UnsupportedOperator",
             "UnsupportedFake")  # fmt: skip
    while problem is not None:
        if any(name in type(problem).__name__ or name in str(problem) for name in names):
            return True
        problem = problem.__cause__  # type: ignore[assignment]
    return False


def run_batch(
    op: OpInfo, dtype: torch.dtype, batch: list[Sample], grad: bool, dynamic: bool, route: str
) -> dict[int, str]:
    torch.manual_seed(7)
    ours = [[copy_of(each) for each in sample.tensors] for sample in batch]
    theirs = [[copy_of(each) for each in sample.tensors] for sample in batch]
    outputs = [sample.function(*tensors) for sample, tensors in zip(batch, theirs)]
    expected = [out + (gradients(out, tensors) if grad else []) for out, tensors in zip(outputs, theirs)]
    compiled = ROUTES[route](batch, [len(each) for each in outputs], dynamic)
    torch.manual_seed(7)
    flat = list(compiled(*(tensor for tensors in ours for tensor in tensors)))
    wrong: dict[int, str] = {}
    parts = iter(flat)
    results = [list(itertools.islice(parts, len(out))) for out in outputs]
    found = gradients_of_batch(results, ours) if grad else [[] for _ in batch]
    for sample, tensors, want, out, before, mine, given in zip(batch, ours, expected, outputs, theirs, results, found):
        alike = all(shares(a, tensors) == shares(b, before) for a, b in zip(mine, out))
        if route == "compile" and len(mine) == len(out) and not alike:
            wrong[sample.number] = "shares memory with other inputs than eager's result does"
            continue
        mine = mine + given
        text = compare(op, sample, mine, want, dtype, grad)
        if text is None:
            text = compare(op, sample, tensors, before, dtype, None)
        if text is not None:
            wrong[sample.number] = text
    return wrong


def compare(
    op: OpInfo, sample: Sample, mine: list[torch.Tensor], want: list[torch.Tensor], dtype: torch.dtype, grad: bool | None
) -> str | None:
    """`grad` None: the inputs after the call."""
    if len(mine) != len(want):
        return f"{len(mine)} results, eager {len(want)}"
    for k, (a, b) in enumerate(zip(mine, want)):
        def exact(k: int = k) -> torch.Tensor | None:
            found = exact_results(sample, dtype, bool(grad)) if grad is not None else None
            return found[k] if found is not None and len(found) == len(want) else None

        text = difference(op, a.detach(), b.detach(), exact)
        if text is not None:
            return f"{'input' if grad is None else 'result'} {k}: {text}"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=sorted(DTYPES))
    parser.add_argument("--route", default="kernels", choices=sorted(ROUTES))
    parser.add_argument("--dynamic", action="store_true", help="symbolic sizes")
    parser.add_argument("--forward", action="store_true", help="no gradients")
    parser.add_argument("--limit", type=int, default=24, help="samples an operator")
    parser.add_argument("--only", nargs="*", default=(), help="these operators")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th operator from the K-th on")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: there its own kernels are compared with")
    parser.add_argument("--start", type=int, default=0, help="leave out this many operators")
    options = parser.parse_args(argv)
    global DEVICE
    DEVICE = torch.device(options.device)
    part, parts = map(int, options.part.split("/"))
    total = bad = 0
    for op in operators(options.only)[options.start :][part::parts]:
        report = check(
            op, DTYPES[options.dtype], grad=not options.forward, dynamic=options.dynamic, route=options.route,
            limit=options.limit,
        )  # fmt: skip
        total, bad = total + report.samples, bad + len(report.failures)
        state = "ok  " if not report.failures else "FAIL"
        known = f" ({report.known} known: {KNOWN[op.full_name]})" if report.known else ""
        print(f"{state} {op.full_name} {report.samples} {report.seconds:.1f}s{known}", flush=True)
        for failure in report.failures:
            print(f"     {op.full_name} {failure}", flush=True)
    print(f"{total} samples, {bad} differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
