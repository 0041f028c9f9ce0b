"""Random graphs of operators give what they give in eager: values, types, strides, gradients, and what they write.

Some run with the suite. `python tests/native/test_graphs.py 0 10000` runs these seeds and prints those that differ.
"""

from __future__ import annotations

import gc
import importlib.util
import pathlib
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

import fxjit
from fxjit import config
from fxjit.backends.native import pipeline
from fxjit.backends.native.decompositions import kept_whole, table


def beside(name: str) -> Any:
    """The module in this folder."""
    spec = importlib.util.spec_from_file_location(f"native_{name}", pathlib.Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


graphs = beside("graphs")
graphs.KINDS |= beside("layers").kinds(graphs.overlapping)

#: The last: a kernel that wants a size known by data stood before what finds it; a pass asked whether such a size is another.
SEEDS = (*range(20), 8104564, 8109681)
#: At NaN eager's vector code and its scalar code for what is left of a row give other derivatives.
UNSETTLED_AT_NAN = {"elu", "hardtanh", "relu6", "hardshrink", "hardswish", "logit"}
#: What `functionalize` says to dropout over symbolic sizes, to some writes to expansions of empty tensors, to those to
#: expansions of bools, of which it takes a difference, and to writes to views of strided views, or of overlapping ones
#: (the diagonal of an unfolding, say, whose own elements lie apart), and to `fill_diagonal_`.
NOT_FUNCTIONAL = ("Cannot call numel() on tensor with symbolic", "!value_.key_set().has(c10::DispatchKey::Functionalize)",
                  "with two bool tensors is not supported", "an as_strided() call", "being mutated that has internal overlap",
                  "whose output has alias annotations")  # fmt: skip
HALVES = {torch.float16, torch.bfloat16}
SLACK = {torch.float64: 1e-9, torch.float32: 3e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def results(run: Callable[..., Sequence[torch.Tensor]], inputs: list[torch.Tensor], seed: int = 5) -> list[torch.Tensor | None]:
    """What the program gives; then, where inputs require them, their gradients."""
    torch.manual_seed(seed)
    outputs = list(run(*inputs))
    leaves = [each for each in inputs if each.requires_grad]
    heads = [each for each in outputs if each.requires_grad]
    if not leaves or not heads:
        return [*outputs]
    return [*outputs, *torch.autograd.grad(heads, leaves, [weights(each) for each in heads], allow_unused=True)]


def weights(output: torch.Tensor) -> torch.Tensor:
    """Multiples of 1/8, which every type holds."""
    numbers = (torch.arange(output.numel(), dtype=torch.float64) * 0.37).cos().mul(8).round().div(8)
    return torch.empty_like(output, requires_grad=False).copy_(numbers.reshape(output.shape))


def wants_gradient(x: torch.Tensor) -> bool:
    """Not of elements that are one: a view made anew by its strides, as AOTAutograd makes some, shares their gradient out."""
    return x.dtype.is_floating_point and not graphs.overlapping(x)


def prepared(tape: graphs.Tape, grad: bool) -> list[torch.Tensor]:
    return [graphs.copied(x).requires_grad_(grad and wants_gradient(x)) for x in tape.inputs]


def widened(tape: graphs.Tape, grad: bool, seed: int = 5) -> list[torch.Tensor | None]:
    """The tape in float64 throughout, quotients of integers as well. What is drawn at random is not the same then."""
    inputs = [graphs.copied(x).double() if x.dtype.is_floating_point else graphs.copied(x) for x in tape.inputs]
    leaves = [x.requires_grad_(grad and wants_gradient(given)) for x, given in zip(inputs, tape.inputs, strict=True)]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return results(tape.replay, leaves, seed)
    finally:
        torch.set_default_dtype(before)


def settled(tape: graphs.Tape, k: int, grad: bool) -> torch.Tensor | None:
    """Result k in float64, if it is the same whatever is drawn at random."""
    exact = widened(tape, grad)[k]
    if exact is None or not tape.draws:
        return exact
    other = widened(tape, grad, 6)[k]
    return exact if other is not None and torch.allclose(exact, other, 0, 0, equal_nan=True) else None


def promised(tape: graphs.Tape) -> list[torch.Tensor]:
    """What torch's fake tensors say of all values. Their layout is not eager's where sizes of one make that ambiguous, nor for
    operators that torch describes by others (`copysign` by `where`), of operands in different layouts. What depends on data
    is eager's."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    values = [mode.from_tensor(graphs.copied(x)) for x in tape.inputs]
    real = tape.values(*map(graphs.copied, tape.inputs))
    for function, operands, writes in tape.steps:
        try:
            with mode:
                out = function(*[values[k] for k in operands])
        except (DataDependentOutputException, DynamicOutputShapeException):
            out = mode.from_tensor(graphs.copied(real[len(values)])) if not writes else None
        if not writes:
            values.append(out)
    return values


def drawn_in_order(tape: graphs.Tape) -> bool:
    """Whether all values lie as promised, so that random numbers, drawn in the order of memory, fall to the same elements."""
    return all(map(alike, promised(tape), tape.values(*map(graphs.copied, tape.inputs))))


def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the strides are the same where they matter."""
    return a.numel() == 0 or all(n == 1 or x == y for n, x, y in zip(a.shape, a.stride(), b.stride()))


def difference(
    tape: graphs.Tape, k: int, actual: torch.Tensor | None, expected: torch.Tensor | None, strides: bool, grad: bool
) -> str | None:
    if actual is None or expected is None:
        return None if actual is expected else f"{actual}, eager {expected}"
    if actual.dtype is not expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype} {tuple(actual.shape)}, eager {expected.dtype} {tuple(expected.shape)}"
    if strides and not alike(actual, expected) and not alike(actual, promised(tape)[tape.wanted[k]]):
        return f"strides {actual.stride()}, eager {expected.stride()} of {tuple(expected.shape)}"
    text = other_numbers(tape, k, actual, expected, grad)
    if text is not None and tape.draws and settled(tape, k, grad) is None and not drawn_in_order(tape):
        return None
    return text


def other_numbers(tape: graphs.Tape, k: int, actual: torch.Tensor, expected: torch.Tensor, grad: bool) -> str | None:
    first = f"{actual.flatten()[:8].tolist()}, eager {expected.flatten()[:8].tolist()}"
    if not expected.dtype.is_floating_point:
        return None if torch.equal(actual, expected) else first
    a, e = actual.double(), expected.double()
    if not HALVES.isdisjoint(tape.floats) and not bool(e.isfinite().all()):
        # Eager's halves may leave the type on the way, or become zero, where what computes in float32 has the number. Which
        # it is cannot be told of what is drawn at random.
        fits, exact = a.isfinite() & ~e.isfinite(), widened(tape, grad)[k]
        if exact is not None and not tape.draws:
            fits &= torch.isclose(a, exact.detach().double(), max(SLACK[each] for each in HALVES & tape.floats))
        e = torch.where(fits, a, e)
    if "xlogy" in tape.names:
        # Of a factor that is zero but for rounding, times the logarithm of zero.
        e = torch.where((a == 0) & e.isinf() | a.isinf() & (e == 0), a, e)
    if not torch.equal(a.isnan(), e.isnan()):
        return f"NaN at {int((a.isnan() != e.isnan()).sum())} places: {first}"
    same = (a == e) | a.isnan()
    gap = torch.where(same, 0.0, (a - e).abs())
    if bool((gap.isinf()).any()):
        return f"infinities: {first}"
    size = e[e.isfinite()].abs().max() if bool(e.isfinite().any()) else torch.tensor(0.0)
    # What was rounded on the way may be in a wider type now. Half types are computed in float32 and rounded once.
    slack = max(SLACK[each] for each in tape.floats | {expected.dtype})
    if gap.numel() == 0 or float(gap.max()) <= slack * float(size) + slack:
        return None
    exact = settled(tape, k, grad)
    if exact is None:
        return f"differs by {float(gap.max()):.3g} of {float(size):.3g}: {first}"
    exact = exact.detach().double()
    errors = torch.where(exact.isfinite() & e.isfinite(), (e - exact).abs(), 0.0)
    if float(gap.max()) <= 8 * float(errors.max()):
        return None
    return f"differs by {float(gap.max()):.3g} of {float(size):.3g}: {first}"


def compile_kernels(drawn: graphs.Tape, mode: str) -> Callable[..., Sequence[torch.Tensor]] | None:
    """The tape as an ATen graph without mutation, as AOTAutograd makes it, with a kernel for all that has a lowering. None
    where torch cannot make one: of sizes or branches that data decides, or by `functionalize`, which trips over some."""
    examples = [graphs.copied(x) for x in drawn.inputs]
    function = torch.func.functionalize(drawn.replay, remove="mutations")
    try:
        with kept_whole(mode == "symbolic"):
            gm = make_fx(function, decomposition_table=table(), tracing_mode=mode, _allow_non_fake_inputs=True)(*examples)
    except (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException):
        return None
    except RuntimeError as problem:
        # A size that only data tells, u0 say, meets another, or is given to ATen: `fxjit.compile` does not trace that.
        of_data = re.search(r"\bu\d+\b|SymIntArrayRef expected to contain only concrete integers", str(problem))
        if of_data or any(each in str(problem) for each in NOT_FUNCTIONAL):
            return None
        raise
    compiled = pipeline.compile_graph(gm, examples, lone_kernels=drawn.seed % 3 != 0)
    return lambda *inputs: compiled(list(inputs))


def compile_whole(drawn: graphs.Tape, dynamic: bool) -> Callable[..., Sequence[torch.Tensor]]:
    fxjit.reset()
    return fxjit.compile(drawn.replay, backend="native", dynamic=dynamic or None)


def differentiable(drawn: graphs.Tape) -> bool:
    """Whether eager gives gradients: not where a leaf, or what a derivative needs, is written to, nor settled ones at NaN."""
    try:
        given = results(drawn.replay, prepared(drawn, True))
    except (RuntimeError, NotImplementedError):
        return False
    finite = all(bool(x.isfinite().all()) for x in [*drawn.inputs, *given] if x is not None)
    return len(given) > len(drawn.wanted) and (finite or UNSETTLED_AT_NAN.isdisjoint(drawn.names))


def formulas(drawn: graphs.Tape) -> AbstractContextManager[None]:
    """oneDNN's gelu makes NaN of infinity, where eager without it has infinity, as it has in float64 and in what has gaps."""
    infinite = "gelu" in drawn.names and not all(bool(x.isfinite().all()) for x in drawn.inputs)
    return torch.backends.mkldnn.flags(enabled=False) if infinite else nullcontext()


def check(seed: int) -> str | None:
    """Runs a seed; what differs, or None. Two seeds in ten go through `fxjit.compile`, with gradients where there are any; two
    others have symbolic sizes."""
    as_kernels = config.patch(fallback_random=True, cache_graphs=False, small_graphs_as_captured=False)
    with as_kernels, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compare(graphs.tape(seed), seed % 10)


def compare(drawn: graphs.Tape, route: int) -> str | None:
    if not drawn.wanted:
        return None
    # `functionalize` by itself does not keep layouts where it turns writes into calls, such as dropout's; random numbers are
    # drawn in their order. It writes an input back as a whole, which ATen refuses where its elements lie on each other.
    written = drawn.mutates or not {"out", "out turned"}.isdisjoint(drawn.names)
    # Nor does it know that `meshgrid` gives views.
    expanded = any(size > 1 and stride == 0 for x in drawn.inputs for size, stride in zip(x.shape, x.stride()))
    unknown = drawn.draws or expanded or any(name.startswith("meshgrid") for name in drawn.names)
    whole = route >= 8 or "dropout" in drawn.names or (written and unknown)
    grad = whole and differentiable(drawn)
    theirs, ours = (prepared(drawn, grad) for _ in range(2))
    with formulas(drawn):
        expected = results(drawn.replay, theirs)
    symbolic = route in (3, 6) or drawn.seed % 20 == 9
    compiled = None if whole else compile_kernels(drawn, "symbolic" if symbolic else "fake")
    if compiled is None:
        whole, compiled = True, compile_whole(drawn, symbolic)
    try:
        actual = results(compiled, ours)
    except RuntimeError as refusal:
        # Sizes that depend on data meet others: tracing takes both for equal, which `fxjit.compile` does not trace at all.
        if whole or "gave a result of shape" not in str(refusal):
            raise
        whole, ours = True, prepared(drawn, grad)
        actual = results(compile_whole(drawn, symbolic), ours)
    for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
        # Mutation is made functional by rules of torch's that do not always keep strides, and views become copies.
        gives = k < len(drawn.wanted)
        strides = gives and e is not None and (whole or (not written and not e._is_view()))
        text = difference(drawn, k, detached(a), detached(e), strides, grad)
        if text is not None:
            return f"{f'v{drawn.wanted[k]}' if gives else 'gradient'}: {text}\n{drawn.describe()}"
    slack = max([1e-3, *(SLACK[each] for each in drawn.floats)])
    for k, (a, e) in enumerate(zip(map(torch.Tensor.detach, ours), map(torch.Tensor.detach, theirs))):
        if not torch.equal(a.isnan(), e.isnan()) or not torch.allclose(a.double(), e.double(), slack, slack, equal_nan=True):
            return f"input {k} after the call: {a.flatten()[:6].tolist()}, eager {e.flatten()[:6].tolist()}\n{drawn.describe()}"
    return None


def detached(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.detach()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph(seed):
    problem = check(seed)
    assert problem is None, problem


def main(first: int, last: int) -> int:
    gc.freeze()
    gc.set_threshold(100_000)  # graphs are many small objects
    ran = bad = 0
    for seed in range(first, last):
        try:
            problem = check(seed)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            problem = (
                f"{type(error).__name__}: {str(error)[:400]} ({where.filename}:{where.lineno})\n{graphs.tape(seed).describe()}"
            )
        ran += 1
        if problem is not None:
            bad += 1
            print(f"FAIL {seed}: {problem}\n", flush=True)
        if ran % 100 == 0:
            print(f"{ran} graphs, {bad} differ", flush=True)
    print(f"{ran} graphs, {bad} differ", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
