"""Each rule by which a graph runs as it was captured has a small program here that triggers it; what it gives is eager's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.differential import assert_same
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor

import fxjit
from fxjit import torch_compat
from fxjit.backends.aot import trace
from fxjit.backends.aot.rules import RULES
from fxjit.backends.native import pipeline
from fxjit.backends.native.index import UnprintableSize
from fxjit.counters import counters


@dataclass(frozen=True)
class Program:
    """A function, what makes its inputs, and how it is compiled."""

    run: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]]
    options: dict[str, Any] = field(default_factory=dict)


def leaf(*shape: int) -> torch.Tensor:
    return torch.rand(*shape).requires_grad_()


def parts(base: torch.Tensor) -> list[torch.Tensor]:
    """Two views that overlap."""
    return [base[:4], base[2:6]]


def halves(base: torch.Tensor) -> list[torch.Tensor]:
    return [base[:4], base[4:]]


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


def mode_off_inside_a_block(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode():
        doubled = x * 2
        with torch.inference_mode(False):
            return torch.ones(3) + 1, doubled


def set_by_mask(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[mask] = values
    return y.sin()


def fused_adam(*state: torch.Tensor) -> torch.Tensor:
    parameter, grad, average, square, step = state
    torch._fused_adam_([parameter], [grad], [average], [square], [], [step], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0,
                       eps=1e-8, amsgrad=False, maximize=False)
    return parameter + 1


def fused_sgd(parameter: torch.Tensor, grad: torch.Tensor, momentum: torch.Tensor) -> torch.Tensor:
    torch._fused_sgd_([parameter], [grad], [momentum], weight_decay=0.0, momentum=0.9, lr=0.1, dampening=0.0, nesterov=False,
                      maximize=False, is_first_step=False)
    return parameter + 1


def written_after_it_was_saved(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.exp()
    z = y * 2
    y.add_(1)
    return z, y.detach()


table = torch.nn.Embedding(8, 3, sparse=True)
recurrent = torch.nn.GRU(4, 3)


def two_lookups(words: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return (table(words) * table(others)).sum()


@fxjit.allow_in_graph
def write_within(x: torch.Tensor) -> torch.Tensor:
    return x.expand(3, 4).t().tril_()


def write_to_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * y


def with_its_detached(base: torch.Tensor) -> list[torch.Tensor]:
    view = base.view(2, 4)
    return [view[0], view.detach()[0]]


def write_to_strided_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.t().as_strided((2, 2), (2, 1)).t()[0].add_(1)
    return y


def write_to_windows(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.unfold(0, 2, 1).diagonal().add_(1)
    return y


def write_beyond_gaps(x: torch.Tensor) -> torch.Tensor:
    x.as_strided((6, 16), (16, 1)).mul_(2)
    return x + 1


def wrapper_and_view_of_its_part() -> list[torch.Tensor]:
    part = torch.rand(4)
    return [part[:], TwoTensor(part, torch.rand(4))]


def seen_as(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return x, x.view(dtype)


def write_to_half(x: torch.Tensor) -> torch.Tensor:
    half = x[: x.shape[0] // 2]
    half.mul_(2)
    return half


library = torch.library.Library("fxjit_test_rules", "DEF")
library.define("double_(Tensor(a!) x) -> Tensor(a!)")
library.impl("double_", lambda x: x.mul_(2), "CPU")
library.impl("double_", lambda x: x, "Meta")
library.define("half(Tensor x) -> Tensor")
library.impl("half", lambda x: x * 0.5, "CPU")
library.impl("half", lambda x: torch.empty_like(x), "Meta")

def derivative_forwards(x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, torch.ones_like(x)).sin()).tangent


def written_with_history(x: torch.Tensor) -> torch.Tensor:
    v = x.data
    v[:, 1] = x[:, 0]
    return v


def written_past_autograd(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    turned = y.t()
    with torch.no_grad():
        y[0] = 5.0
    turned.relu_()
    return x.float().mul_(x)


def views_of_one() -> list[torch.Tensor]:
    x = (leaf(4, 2) * 1)[1:3]
    return [x, x.view(2, 2)]


def without_memory(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y + 1
    y.untyped_storage().resize_(0)
    return z


PROGRAMS: dict[str, Program] = {
    "inference-mode-block": Program(mode_off_inside_a_block, lambda: [torch.rand(3)]),
    "storage-offset": Program(lambda x: torch.as_strided(x, (2,), (1,), 1) * 2, lambda: [torch.rand(4)]),
    "written-unfolding": Program(lambda x: (x.unfold(0, 2, 2).mul_(3), x + 1), lambda: [torch.rand(5)]),
    "overlapping-write": Program(lambda x: (x * 1).as_strided((2, 2), (1, 1)).mul_(2), lambda: [torch.rand(4)]),
    "overlapping-argument": Program(lambda x: x[1:3, :2].addmm_(torch.eye(2), x[:2, :2]), lambda: [torch.rand(4, 4)]),
    "reshaped-input": Program(lambda x: (x + x, x.unsqueeze_(0).squeeze_(0)), lambda: [leaf(3) * 1]),
    "mutates-view-of-leaf": Program(lambda x: x.detach().add_(1) * x, lambda: [leaf(4, 3)[:2]]),
    "recorded-past-input": Program(written_with_history, lambda: [leaf(3, 2)]),
    "unforeseen": Program(written_past_autograd, views_of_one),
    "mutates-data-and-metadata": Program(lambda x: x.zero_().unsqueeze_(0) + 1, lambda: [torch.rand(3, 4)[1]]),
    "overlapping-list": Program(lambda x: torch._foreach_add_([x, x[1:]], 1), lambda: [torch.rand(4)]),
    "observed-view": Program(lambda x: Reverse.apply(x), lambda: [leaf(3) * 1]),
    "forward-level": Program(derivative_forwards, lambda: [torch.rand(3)]),
    "resized-storage": Program(without_memory, lambda: [torch.rand(4)]),
    "no-autograd-kernel": Program(lambda x: torch.ops.fxjit_test_rules.half(x) + 1, lambda: [leaf(3)]),
    "mutates-aliased-wrapper": Program(write_to_first, wrapper_and_view_of_its_part),
    "wrapper-subclass": Program(lambda w: (w * 2).chunk(2), lambda: [TwoTensor(leaf(4), leaf(4))]),
    "data-dependent-shape": Program(set_by_mask, lambda: [leaf(4, 3), torch.tensor([True, False, True, True]), leaf(3, 3)]),
    "opaque-mutation": Program(fused_adam, lambda: [*torch.rand(4, 3), torch.tensor(1.0)]),
    "no-meta-kernel": Program(fused_sgd, lambda: [*torch.rand(3, 3)]),
    "mutates-expanded": Program(lambda x: write_within(x) + 1, lambda: [torch.rand(4)]),
    "mutates-saved-activation": Program(written_after_it_was_saved, lambda: [leaf(3)]),
    "sparse-gradients": Program(two_lookups, lambda: [torch.arange(6), torch.arange(6) + 1], {"dynamic": True}),
    "untracked-base": Program(write_to_first, lambda: parts(torch.rand(8)), {"dynamic": True}),
    "mixed-bases": Program(write_to_first, lambda: with_its_detached(torch.rand(8))),
    "view-of-as-strided": Program(write_to_strided_view, lambda: [torch.rand(4, 2)]),
    "mutates-overlapping": Program(write_to_windows, lambda: [torch.rand(4)]),
    "mutates-other-dtype": Program(write_to_first, lambda: [*seen_as(torch.rand(8), torch.int32)]),
    "unrecorded-view-of-leaf": Program(
        torch.no_grad()(lambda x: x.t() * 2), lambda: [torch.ones(6).view(2, 3).requires_grad_()]),
    "mutates-with-gaps": Program(write_beyond_gaps, lambda: [torch.rand(7, 16)[:6, :8]]),
    "no-functional-form": Program(lambda x: torch.ops.fxjit_test_rules.double_(x.clone()) + 1, lambda: [torch.rand(3)]),
    "refused-by-operator": Program(lambda x, at: x.sin().scatter_add(1, at, x),  # the gradient has the index's shape
                                   lambda: [leaf(3, 4), torch.zeros(1, 1, dtype=torch.int64)]),
    "no-derivative": Program(lambda x: torch.heaviside(x, x), lambda: [leaf(3)]),
    "mutates-aliased-input": Program(write_to_first, lambda: halves(leaf(8) * 1)),
    "overlapping-tangent": Program(lambda x: (x * 2).unfold(0, 3, 1), lambda: [leaf(6)]),
    "view-of-mutated-input": Program(write_to_half, lambda: [torch.rand(10, 18)[:, 9:]], {"dynamic": True}),
    "only-views": Program(lambda x: x.t(), lambda: [torch.rand(3, 4)]),
    "recurrent-under-transform": Program(torch.func.grad(lambda x: recurrent(x)[0].sum()), lambda: [torch.rand(3, 2, 4)]),
    "unprofitable": Program(lambda x: (x * 2).sin(), lambda: [leaf(3)], {"backend": "native"}),
}
#: Rules of single calls have tests of their own below.
OF_CALLS = {"input-aliasing", "double-backward", "uncounted-write"}
#: And of graphs that are too long (test_budget.py).
OF_TIME = {"over-budget"}
#: Rules of distributed tensors, which programs on several ranks meet (tests/distributed/test_dtensor.py).
OF_DISTRIBUTED = {"collective-in-place", "delayed-reduction", "returns-masked", "wrapper-view"}
#: Rules of the native executor, which a program meets nowhere but on a torch that is not whole, or by a size of its own kind.
OF_THE_EXECUTOR = {"no-executor", "uncomputable-size"}


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxjit.reset()
    counters.clear()


def outcome(run: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Results with their strides, the inputs afterwards, and gradients or the error that asking for them raises."""
    given = run(*inputs)
    results = [each for each in (given if isinstance(given, tuple) else (given,)) if isinstance(each, torch.Tensor)]
    leaves = [each for each in (*inputs, *table.parameters()) if isinstance(each, torch.Tensor) and each.requires_grad]
    differentiable = [each.sum() for each in results if each.requires_grad]
    gradients: Any = ()
    if leaves and differentiable:
        try:
            found = torch.autograd.grad(differentiable, leaves, allow_unused=True)
            gradients = [None if each is None else each.to_dense() for each in found]
        except RuntimeError as error:
            gradients = [type(error)]
    return results, [each.stride() for each in results], [*inputs], gradients


#: Rules for what AOTAutograd raised until this release of torch; from it on such graphs may be compiled.
TAKEN_SINCE = {"sparse-gradients": (2, 14), "mutates-with-gaps": (2, 14)}
#: Before this release tangents were made contiguous.
NEEDED_SINCE = {"overlapping-tangent": (2, 12)}


def test_each_rule_has_a_program() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert {rule.id for rule in RULES} == PROGRAMS.keys() | OF_CALLS | OF_THE_EXECUTOR | OF_TIME | OF_DISTRIBUTED
    assert {rule.id for rule in RULES if rule.stage == "call"} == OF_CALLS
    assert {rule.id for rule in RULES if rule.stage == "executor"} == OF_THE_EXECUTOR


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered:UserWarning")
@pytest.mark.parametrize("id", PROGRAMS)
def test_a_program_runs_as_captured_by_its_rule(id: str, caplog: pytest.LogCaptureFixture) -> None:
    program = PROGRAMS[id]
    outcomes = []
    compiled = fxjit.compile(program.run, **{"backend": "aot_eager", **program.options})
    with caplog.at_level(logging.INFO, "fxjit.compile"), fxjit.config.patch(small_graphs_as_captured=True):
        for run in (program.run, compiled):
            torch.manual_seed(0)
            outcomes.append(outcome(run, program.inputs()))
    assert_same(*outcomes)
    release = torch_compat.release(torch.__version__)
    if not counters["run_as_captured"] and not NEEDED_SINCE.get(id, (0, 0)) <= release < TAKEN_SINCE.get(id, (3, 0)):
        return
    assert counters["run_as_captured"] == {id: 1}
    assert sum(f"as it was captured ({id})" in each.getMessage() for each in caplog.records) == 1


def test_a_graph_that_a_pass_edits_wrongly_is_unforeseen_and_no_operators_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(joint: torch.fx.GraphModule) -> None:
        joint.graph.find_nodes(op="call_function")  # torch.fx asserts that there is a target

    monkeypatch.setattr(trace, "hold_opaque_outputs", edit)
    with fxjit.config.patch(small_graphs_as_captured=False):
        x = leaf(4)
        torch.testing.assert_close(fxjit.compile(torch.sin, backend="aot_eager")(x), x.sin())
    assert counters["run_as_captured"] == {"unforeseen": 1}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_call_whose_inputs_alias_otherwise_runs_as_captured(backend: str) -> None:
    compiled = fxjit.compile(write_to_first, backend=backend)
    apart, (x,) = [*torch.rand(2, 4)], [*torch.rand(1, 4)]
    expected = write_to_first(apart[0].clone(), apart[1])
    torch.testing.assert_close(compiled(apart[0].clone(), apart[1]), expected)
    assert not counters["run_as_captured"]
    same, other = x.clone(), x.clone()
    torch.testing.assert_close(compiled(same, same.view(4)), write_to_first(other, other.view(4)))
    torch.testing.assert_close(same, other)
    assert counters["run_as_captured"]["input-aliasing"] == 1


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_call_that_writes_to_what_counts_no_writes_runs_as_captured(backend: str) -> None:
    compiled = fxjit.compile(write_to_first, backend=backend)
    y, former = torch.rand(4), []
    torch.testing.assert_close(compiled(torch.ones(4), y), write_to_first(torch.ones(4), y))
    assert not counters["run_as_captured"]
    for run in (write_to_first, compiled):
        with torch.inference_mode():
            former.append(torch.ones(4))
        former[-1].data = torch.ones(4)
        with pytest.raises(RuntimeError, match="[Ii]nference tensor"):
            run(former[-1], y)
    assert former[0].tolist() == former[1].tolist() == [2, 2, 2, 2]
    assert counters["run_as_captured"]["uncounted-write"] == 1


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_graph_that_is_differentiated_twice_runs_as_captured(backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin().exp()

    with fxjit.config.patch(small_graphs_as_captured=False):
        compiled, x, seconds = fxjit.compile(function, backend=backend), leaf(4), []
        for run in (function, compiled, compiled):
            (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
            seconds.append(torch.autograd.grad(first.sum(), x)[0])
    for second in seconds[1:]:
        torch.testing.assert_close(second, seconds[0])
    assert counters["run_as_captured"] == {"double-backward": 1}


@pytest.mark.parametrize("id", sorted(OF_THE_EXECUTOR))
def test_an_aten_graph_that_the_executor_cannot_run_is_run_node_by_node(
    id: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(listing: Any) -> Any:
        raise UnprintableSize("a size for the test")

    if id == "no-executor":
        monkeypatch.setattr(pipeline._C, "program_can", lambda what: False)
    else:
        monkeypatch.setattr(pipeline, "encode", refuses)
    compiled = fxjit.compile(lambda x: (x * 2).sin() + x)
    with caplog.at_level(logging.INFO, "fxjit.compile"), fxjit.config.patch(small_graphs_as_captured=False):
        x = torch.rand(3)
        torch.testing.assert_close(compiled(x), (x * 2).sin() + x)
        assert counters["run_as_captured"] == {id: 1}
        assert any(f"({id})" in each.getMessage() for each in caplog.records)
        explained = fxjit.explain(compiled)(x)
    assert [(number, each.rule) for number, each in explained.run_as_captured] == [(1, id)]
