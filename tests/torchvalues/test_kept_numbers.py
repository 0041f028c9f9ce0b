"""Numbers in tensors that objects hold: flags and counters in buffers, which guards read before the frame starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager, number_of_breaks
from torch import Tensor, nn

import fxjit

X = torch.linspace(-1, 2, 12).reshape(3, 4)


pytestmark = pytest.mark.usefixtures("nothing_compiled")


def _graphs() -> int:
    return int(fxjit.counters["stats"]["unique_graphs"])


class Normed(nn.Module):
    """A norm that is set by the first batch that it sees."""

    def __init__(self, flag: Tensor, is_set: Callable[[Any], Any]) -> None:
        super().__init__()
        self.register_buffer("initialized", flag.clone())
        self.loc = nn.Parameter(torch.zeros(4))
        self.is_set = is_set

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_set(self.initialized):
            self.loc.data.copy_(-x.mean(0))
            self.initialized.fill_(1)
        return x + self.loc


FLAGS = {
    "bool": torch.tensor(False), "uint8": torch.tensor(0, dtype=torch.uint8), "int64": torch.tensor(0),
    "int32": torch.tensor(0).int(), "float": torch.zeros(1),
    "double": torch.zeros((), dtype=torch.float64), "half": torch.zeros(1, 1, dtype=torch.float16),
}
QUESTIONS: dict[str, Callable[[Tensor], Any]] = {
    "truth": lambda flag: flag,
    "bool": lambda flag: bool(flag),
    "item": lambda flag: flag.item(),
    "int": lambda flag: int(flag),
    "float": lambda flag: float(flag),
    "item is one": lambda flag: flag.item() == 1,
    "is one": lambda flag: flag == 1,
    "is above": lambda flag: flag > 0,
    "is none": lambda flag: not (0 == flag),
}


def _trained(model: nn.Module, call: Callable[[Tensor], Tensor]) -> list[Any]:
    outputs: list[Any] = []
    for scale in (1.0, 2.0, 3.0):
        y = call(X * scale)
        y.square().sum().backward()
        outputs.append(y.detach())
    return [*outputs, *(p.grad for p in model.parameters()), *model.state_dict().values()]


def _same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("flag", "question"), [*(("uint8", question) for question in QUESTIONS),
                                               *((flag, question) for flag in FLAGS for question in ("truth", "is above"))])
def test_a_module_that_the_first_batch_sets(flag: str, question: str) -> None:
    """Some norms in a row: each writes to its parameter and its flag before the next one is read."""
    made = [nn.Sequential(*(Normed(FLAGS[flag], QUESTIONS[question]) for _ in range(3))) for _ in range(2)]
    found = _trained(made[0], fxjit.compile(made[0], backend="eager", fullgraph=True))
    assert (_graphs(), number_of_breaks()) == (2, 0)
    _same(found, _trained(made[1], made[1]))


@pytest.mark.parametrize("guard_nn_modules", [True, False])
def test_native_and_without_guards_on_modules(guard_nn_modules: bool) -> None:
    made = [Normed(torch.tensor(False), QUESTIONS["truth"]) for _ in range(2)]
    with fxjit.config.patch(guard_nn_modules=guard_nn_modules):
        compiled = fxjit.compile(made[0], backend="native", fullgraph=True)
        for flag in (0, 1, 1, 0):
            for each in made:
                each.initialized.fill_(flag)
            torch.testing.assert_close(compiled(X), made[1](X))
            torch.testing.assert_close(made[0].loc, made[1].loc)


class Steps(nn.Module):
    def __init__(self, flag: Tensor) -> None:
        super().__init__()
        self.register_buffer("flag", flag)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x[0])
        return x.sin() * 2 if self.flag else x.cos() - self.seen


@pytest.mark.parametrize("flag", [torch.tensor(True), torch.ones(1), torch.ones(1, dtype=torch.uint8), torch.tensor(1)])
def test_writes_that_no_version_counts(flag: Tensor) -> None:
    """The number is read at each call, also where nothing else of a module has changed for long; it may change often."""
    one, other = Steps(flag.clone()), Steps(flag.clone())
    memory, others = one.flag.numpy(), other.flag.numpy()
    compiled = fxjit.compile(one, backend="eager")
    for times, value in ((40, 1), (2, 0), (1, 1), (3, 0), (1, 1), (2, 0)):
        memory[...] = others[...] = value
        for _ in range(times):
            assert torch.equal(compiled(X), other(X))
    assert _graphs() <= 4


@pytest.mark.parametrize("number", [0.0, 1.0, 2.0, float("nan"), -0.0])
def test_a_flag_in_memory_that_was_written(number: float) -> None:
    """A flag that lies apart from what is written in one call, and in it in the next."""
    made = [Steps(torch.ones(1)) for _ in range(2)]
    compiled = fxjit.compile(made[0], backend="eager")
    for shares in (False, True, False, True):
        for each in made:
            each.seen = torch.tensor([number, 1.0, 2.0, 3.0])
            each.flag = each.seen[:1] if shares else torch.ones(1)
        given = X - X[0, 0]
        found, expected = compiled(given), made[1](given)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(made[0].seen, made[1].seen, rtol=0, atol=0, equal_nan=True)


def test_a_module_used_twice() -> None:
    """The second use reads what the first one wrote."""
    made = [Normed(torch.tensor(False), QUESTIONS["item"]) for _ in range(2)]
    compiled = fxjit.compile(lambda x: made[0](made[0](x) * 2), backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(X), made[1](made[1](X) * 2))


class Queue(nn.Module):
    """The place in a queue, as contrastive learning keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(4, 12))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def forward(self, keys: Tensor) -> Tensor:
        place = int(self.place)
        self.queue[:, place:place + len(keys)] = keys.T
        self.place[0] = (place + len(keys)) % 12
        return self.queue.sum(1)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_place_in_a_queue(backend: str) -> None:
    made = [Queue() for _ in range(2)]
    compiled = fxjit.compile(made[0], backend=backend, fullgraph=True)
    for step in range(6):
        torch.testing.assert_close(compiled(X + step), made[1](X + step))
        _same(list(made[0].buffers()), list(made[1].buffers()))
    assert _graphs() == 1


class Held:
    def __init__(self, number: Tensor) -> None:
        self.number = number


@pytest.mark.parametrize("number", [torch.tensor(0.5), torch.tensor([1.0, 0.0]), torch.tensor(1.0, requires_grad=True),
                                    torch.tensor(1j), torch.tensor(7, dtype=torch.uint8)])
@pytest.mark.parametrize("ask", [lambda number: number.item(), lambda number: [1, 2][number]])
def test_what_is_no_flag(number: Tensor, ask: Callable[[Tensor], Any]) -> None:
    held = Held(number)
    assert_same_as_eager(lambda x: (x * 2, ask(held.number)), X, fullgraph=False)


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_as_a_subscript(flag: str) -> None:
    held = Held(FLAGS[flag].reshape(()))
    assert_same_as_eager(lambda x: x[held.number], X, fullgraph=False)
    assert_same_as_eager(lambda x: [x, x + 1][held.number], X, fullgraph=False)


def test_what_calls_give_is_no_flag() -> None:
    compiled = fxjit.compile(lambda x, flag: x.sin() if flag else x.cos(), backend="eager")
    for flag in (True, False, True):
        assert torch.equal(compiled(X, torch.tensor(flag)), X.sin() if flag else X.cos())
    assert number_of_breaks() == 1
