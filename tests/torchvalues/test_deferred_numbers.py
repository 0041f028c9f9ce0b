"""Numbers out of tensors that a program passes on, sums up or checks: made when the graph has run, without a break."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import assert_same, assert_same_as_eager, number_of_breaks, outcome
from torch import Tensor

import fxjit

pytestmark = pytest.mark.usefixtures("nothing_compiled")


class Meter:
    """As those of training scripts are written."""

    def __init__(self) -> None:
        self.sum, self.count, self.avg, self.best = 0.0, 0, 0.0, -1.0

    def update(self, value: float, count: int = 1) -> None:
        self.sum += value * count
        self.count += count
        self.avg = self.sum / self.count
        self.best = max(self.best, value)


def _raise_unless(fine: Any) -> None:
    if not fine:
        raise ValueError("not fine")


def metered(x: Tensor, meter: Any) -> Any:
    loss = (x * 2).mean()
    meter.update(loss.item(), x.size(0))
    return x + 1


def summed(x: Tensor, meter: Any) -> Any:
    total, losses = 0.0, []
    for row in x:
        losses.append(row.sum().item())
        total += float(row.max()) * 2
    return total / 3, losses, sum(losses) / len(losses), -total, abs(total), round(total, 2), max(losses), min(total, 0.5)


def counted(x: Tensor, meter: Any) -> Any:
    correct, flag = (x > 0).sum(), (x > 100).any()
    count = correct.item()
    return count, count / x.numel(), 100.0 * count, int(flag), flag.item(), count * count - 1, float(count), int(correct)


def written_behind(x: Tensor, meter: Any) -> Any:
    y = x.clone()
    first, given = y[0, 0].item(), x[0, 0].item()
    y.mul_(2)
    x.add_(1)
    torch._foreach_mul_([y], 3.0)
    return first, given, y[0, 0].item(), x[0, 0].item()


def written_buffer(x: Tensor, meter: Any) -> Any:
    mean = torch.zeros(4)
    before = mean[0].item()
    torch.nn.functional.batch_norm(x, mean, torch.ones(4), training=True)
    return before, mean[0].item()


def one_object(x: Tensor, meter: Any) -> Any:
    number = x.sum().item()
    meter.last = number
    return [number, number], number is None, isinstance(number, float), type(number), {"loss": number}


def logged(x: Tensor, meter: Any) -> Any:
    meter.__dict__.setdefault("log", []).append({"loss": x.sum().item(), "half": x.half().sum().item()})
    return x * 2


def elements(x: Tensor, meter: Any) -> Any:
    return x[:1, :1].item(), x[0, 0].double().item(), x[0, 0].to(torch.bfloat16).item(), x[0, 1].long().tolist()


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(
    "fn", [metered, summed, counted, written_behind, written_buffer, one_object, logged, elements], ids=lambda fn: fn.__name__
)
def test_passed_on(fn: Callable[..., Any], backend: str) -> None:
    compiled, meters = fxjit.compile(fn, backend=backend), (Meter(), Meter())
    for seed, rows in enumerate((4, 4, 8, 2)):  # of whole numbers all sums and means are exact
        whole = torch.randint(-9, 9, (rows, 4), generator=torch.Generator().manual_seed(seed)).float()
        x = whole.requires_grad_(fn in (metered, summed))
        same = x.detach().clone().requires_grad_(x.requires_grad)
        expected, found = fn(x, meters[0]), compiled(same, meters[1])
        assert_same(found, expected)
        assert_same(vars(meters[1]), vars(meters[0]))
        assert torch.equal(x, same)
    assert not number_of_breaks()


def test_a_number_that_is_there_twice_is_one_object() -> None:
    found, *_ = fxjit.compile(one_object, backend="eager")(torch.ones(2, 2), SimpleNamespace())
    assert found[0] is found[1]


CHECKS: dict[str, Callable[[Tensor], Any]] = {
    "equal to one": lambda x: (x == x).all().item() == 1,
    "truth": lambda x: (x == x).all().item(),
    "finite": lambda x: math.isfinite(x.sum().item()),
    "not a number": lambda x: not math.isnan(x.sum()),
    "infinite": lambda x: not math.isinf(float(x.sum())),
    "below": lambda x: x.sum().item() < 1e8,
    "below a number between floats": lambda x: x.flatten()[0].item() <= 16777217.0,
    "between": lambda x: -100 <= x.min().item() <= 100,
    "both": lambda x: x.min().item() >= -100 and x.max().item() <= 100,
    "either": lambda x: x.min().item() >= -100 or x.max().item() <= 100,
    "itself": lambda x: float(x.sum()) == float(x.sum()),
    "two": lambda x: x.max().item() >= x.min().item(),
    "count": lambda x: (x > 0).sum().item() > 0,
    "count and a float": lambda x: (x > 0).sum().item() > 0.5,
    "count and a whole float": lambda x: (x > 0).sum().item() != 0.0,
    "count and no number": lambda x: (x > 0).sum().item() < math.inf,
    "flag": lambda x: int((x < 200).any()) == True,  # noqa: E712
    "class": lambda x: 0 <= int(x.argmax()) < 16,
    "number itself": lambda x: x.abs().sum().item(),
    "negated": lambda x: -x.sum().item() < 1e8,
}
INPUTS = {
    "fine": torch.linspace(-1, 2, 12).reshape(3, 4), "nan": torch.tensor([[1.0, math.nan]]),
    "inf": torch.tensor([[1.0, math.inf]]), "large": torch.tensor([[16777218.0, 1e9]]),
    "negative": torch.full((2, 2), -1e9), "zero": torch.zeros(2, 3),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("check", CHECKS)
def test_checked(check: str) -> None:
    """Each input in a frame that was compiled for the first, as often as it takes until nothing is speculated on any more."""
    def program(x: Tensor) -> Any:
        y = x * 1
        if not CHECKS[check](y):
            raise ValueError("not fine")
        return y + 1

    def asserted(x: Tensor) -> Any:
        for row in x:
            _raise_unless(CHECKS[check](row.reshape(1, -1)))
        assert CHECKS[check](x), "not fine"
        return x + 1

    for fn in (program, asserted):
        for backend in ("eager", "native") if check in ("both", "count", "finite") else ("eager",):
            fxjit.reset()
            compiled = fxjit.compile(fn, backend=backend)
            for name in ("fine", "nan", "fine", "inf", "large", "negative", "zero", "fine"):
                x = INPUTS[name]
                assert_same(outcome(compiled, (x.clone(),)), outcome(fn, (x.clone(),)), f"{fn.__name__} of {name}")


#: Conditions that are decided before the function that computes them returns.
DECIDED_INSIDE = ("not a number", "infinite", "between", "both", "either", "class")


@pytest.mark.parametrize("check", sorted(set(CHECKS) - {"flag", *DECIDED_INSIDE}))
def test_a_check_does_not_break(check: str) -> None:
    def program(x: Tensor) -> Any:
        y = x * 1
        assert CHECKS[check](y)
        return y + 1

    fxjit.compile(program, backend="eager")(INPUTS["fine"])
    assert not number_of_breaks()


def test_checks_of_several_numbers_do_not_break() -> None:
    def program(x: Tensor) -> Any:
        y = x * 1
        assert -100 <= y.min().item() <= 100
        if y.min().item() < -100 or y.max().item() > 100 or not math.isfinite(y.sum()):
            raise ValueError("not fine")
        for row in y:
            assert (row == row).all().item() == 1
        return y + 1

    fxjit.compile(program, backend="eager")(INPUTS["fine"])
    assert not number_of_breaks()


USES: dict[str, Callable[[Tensor, Any], Any]] = {
    "slice": lambda x, n: x[:n], "index": lambda x, n: x[n], "size": lambda x, n: torch.zeros(n),
    "list": lambda x, n: [0] * n, "list to the right": lambda x, n: n * [0], "range": lambda x, n: list(range(n)),
    "printf": lambda x, n: "%d" % n, "text": lambda x, n: f"{n}", "str": lambda x, n: str(n), "repr": lambda x, n: repr(n),
    "tensor times": lambda x, n: x * n, "times tensor": lambda x, n: n * x, "tensor plus": lambda x, n: x.clone().add_(n),
    "in place": lambda x, n: x.clone().__iadd__(n), "power of a tensor": lambda x, n: x**n, "compared": lambda x, n: x < n,
    "compared to the left": lambda x, n: n < x, "equal": lambda x, n: x == n, "matrix": lambda x, n: x @ n,
    "alpha": lambda x, n: x.add(x, alpha=n), "tensor of it": lambda x, n: torch.tensor(n),
    "tensors": lambda x, n: torch.tensor([n, 1]), "function": lambda x, n: torch.full((2,), n), "power": lambda x, n: 2**n,
    "floor": lambda x, n: 7 // n, "mod": lambda x, n: n % 2, "array": lambda x, n: np.float64(2) * n,
    "array of it": lambda x, n: np.array([n]), "numpy": lambda x, n: np.isnan(n), "complex": lambda x, n: n * 1j,
    "fraction": lambda x, n: Fraction(1, 2) * n, "none plus": lambda x, n: n + None, "text plus": lambda x, n: "a" + n,
    "bool": lambda x, n: bool(n), "hash": lambda x, n: {n: 1}, "among": lambda x, n: n in (1, 2, 3),
    "sorted": lambda x, n: sorted([n, 0]), "method": lambda x, n: n.bit_length(), "real": lambda x, n: n.real,
    "object": lambda x, n: Scaled(2) * n, "object to the right": lambda x, n: n * Scaled(2),
    "root": lambda x, n: math.sqrt(n), "floor of it": lambda x, n: math.floor(n), "integer": lambda x, n: int(n / 2),
    "divmod": lambda x, n: divmod(n, 2), "pow": lambda x, n: pow(n, 2), "shift": lambda x, n: 1 << n,
    "sum": lambda x, n: sum([n, x]), "and": lambda x, n: n and 1, "not": lambda x, n: not n,
    "flag times": lambda x, n: (n > 1) * 2, "flag is": lambda x, n: (n > 1) is True, "max": lambda x, n: max(n, 2.5),
    "round": lambda x, n: round(n / 3), "copy": lambda x, n: copy.deepcopy([n]), "called": lambda x, n: n(),
    "item": lambda x, n: n.item(), "iterated": lambda x, n: [each for each in n], "len": lambda x, n: len(n),
    "none": lambda x, n: n == None,  # noqa: E711
}  # fmt: skip


class Scaled:
    """Has operators of its own."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __mul__(self, other: Any) -> Any:
        return ("times", self.by, other)

    def __rmul__(self, other: Any) -> Any:
        return ("times to the right", self.by, other)


@pytest.mark.parametrize("use", USES)
def test_used_while_tracing(use: str) -> None:
    """What is raised where a number is needed is the program's, and what breaks there is not."""
    def program(x: Tensor) -> Any:
        y = x + 1
        return USES[use](y, (x > 0).sum().item())

    def caught(x: Tensor) -> Any:
        number = (x > 0).sum().item()
        try:
            return USES[use](x, number)
        except Exception as error:  # noqa: BLE001 - an exception is an outcome
            return type(error), str(error)

    for fn in (program, caught):
        compiled = fxjit.compile(fn, backend="eager")
        for x in (torch.tensor([1.0, -2.0]), torch.tensor([1.0, 2.0]), torch.tensor([-1.0, -2.0])):
            assert_same(outcome(compiled, (x,)), outcome(fn, (x,)))


def needed_in_a_loop(x: Tensor) -> Any:
    number, found = x.sum().item(), []
    for row in x:
        found.append(row.add(row, alpha=number))
    return found


def needed_in_a_block(x: Tensor) -> Any:
    number = x.sum().item()
    try:
        return {number: x}[number], hash(number)
    except KeyError:
        return None


def decided(x: Tensor) -> Any:
    number = x.sum().item()
    y = x + 1 if number > 0 else x - 1
    return y, number, number or 5, bool(number), not number


def decided_in_a_call(x: Tensor) -> Any:
    def scaled(number: float) -> Tensor:
        return x * 2 if number > 0 else x * 3
    return scaled(x.sum().item())


def until(x: Tensor) -> Any:
    steps = 0
    while x.abs().max().item() > 0.5:
        x = x * 0.7
        steps += 1
    return x, steps


def divided_by_what_may_be_zero(x: Tensor) -> Any:
    return x, 1 / (x > 0).sum().item()


def divided_by_a_number(x: Tensor) -> Any:
    return x.sum().item() / (x.size(0) - 2)


def of_many(x: Tensor) -> Any:
    return x.item()


def of_flags(x: Tensor) -> Any:
    return (x > 0).any().item() is True, (x > 0).all().item() + 1


@pytest.mark.parametrize("fn", [
    needed_in_a_loop, needed_in_a_block, decided, decided_in_a_call, until, divided_by_what_may_be_zero,
    divided_by_a_number, of_many, of_flags,
], ids=lambda fn: fn.__name__)  # fmt: skip
def test_what_needs_the_number(fn: Callable[..., Any]) -> None:
    compiled = fxjit.compile(fn, backend="eager")
    for name in ("fine", "zero", "negative", "fine", "zero", "fine"):
        assert_same(outcome(compiled, (INPUTS[name].clone(),)), outcome(fn, (INPUTS[name].clone(),)), name)


def test_a_loop_that_decides_on_a_number_is_captured() -> None:
    fxjit.compile(until, backend="eager")(INPUTS["fine"])
    assert not fxjit.counters["skip"]


def test_a_loop_whose_body_needs_a_number_is_as_it_was() -> None:
    """The graph breaks where the number is read, not in the loop."""
    fxjit.compile(needed_in_a_loop, backend="eager")(INPUTS["fine"])
    assert number_of_breaks() == 1
    assert not fxjit.counters["skip"]


def test_gradients_do_not_flow_through_numbers() -> None:
    def program(x: Tensor) -> Any:
        loss = (x * x).sum()
        return loss * 2, loss.item()

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    loss, number = fxjit.compile(program, backend="native")(x)
    loss.backward()
    assert x.grad is not None
    assert (number, x.grad.tolist()) == (5.0, [4.0, 8.0])


def test_large_integers_are_exact() -> None:
    def program(x: Tensor) -> Any:
        number = x.max().item()
        for _ in range(3):
            number = number * number
        return number, number + 0.5 if x.dim() else None, x.max().item() / 3

    x = torch.tensor([2**62 + 1, 3])
    for _ in range(2):
        assert_same(outcome(fxjit.compile(program, backend="eager"), (x,)), outcome(program, (x,)))
    compared = fxjit.compile(lambda x, limit: (x.max().item() > limit, x.max().item() == limit), backend="eager")
    assert [compared(x, limit) for limit in (2**62, 2.0**62, 2**62 + 1, 2**70)] == [(True, False)] * 2 + [
        (False, True), (False, False)]


def _of_inner_leaf(convert: Any) -> Any:
    def evaluated(x: Tensor, step: float) -> tuple[Any, Tensor]:
        point = (x + x.sin().mul(step)).detach().requires_grad_(True)
        with torch.enable_grad():
            value = ((1 - point) ** 2).sum()
        (gradient,) = torch.autograd.grad(value, point)
        return convert(value), gradient
    return evaluated


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("no_grad", [False, True])
@pytest.mark.parametrize("convert", [float, int, bool, torch.Tensor.item, lambda value: (float(value) + 1, value.item())])
def test_of_a_leaf_inside(convert: Any, no_grad: bool) -> None:
    """The value of a function and its gradient at a point that the graph makes: line searches, attacks."""
    with torch.set_grad_enabled(not no_grad):
        assert_same_as_eager(_of_inner_leaf(convert), torch.randn(3), 0.5, graphs=1, breaks=0, skips=False, fullgraph=False)


def _searched(convert: Any) -> Any:
    def search(x: Tensor, limit: float) -> tuple[Any, Tensor]:
        value, gradient = evaluated(x, 0.5)
        return value, gradient + 1 if value > limit else gradient * 2
    evaluated = _of_inner_leaf(convert)
    return search


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("limit", [-1.0, 1e6])
@pytest.mark.parametrize("convert", [float, int, lambda value: value.item()])
def test_a_decision_of_the_caller_leaves_the_leaf_inside(convert: Any, limit: float) -> None:
    assert_same_as_eager(_searched(convert), torch.randn(3), limit, breaks=1, fullgraph=False, calls=1, skips=False)


def test_a_tensor_that_is_kept_breaks_before_its_leaf() -> None:
    def kept(x: Tensor) -> tuple[Any, ...]:
        point = x.detach().requires_grad_(True)
        value = (point ** 2).sum()
        number = value.item()
        return value, str(number), number > 3

    x = torch.randn(3)
    value, *rest = fxjit.compile(kept, backend="eager")(x)
    expected = kept(x)
    assert_same([value.detach(), *rest], [expected[0].detach(), *expected[1:]])
    assert value.requires_grad
    value.backward()
