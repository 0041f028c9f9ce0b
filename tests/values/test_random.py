"""Numbers that Python draws at random: the same as eager draws, in its order, with the generator left as eager leaves it; drawn
before the graph runs wherever nothing depends on them but tensors and arithmetic."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import Failure, assert_same_call

import fxjit
from fxjit import config

Program = Callable[..., Any]
OWN = random.Random(0)


def assert_drawn_as_eager(fn: Program, *, fullgraph: bool = True, backend: str = "eager") -> None:
    """As eager does, for several seeds, of one compile where nothing breaks."""
    seeds = itertools.count()

    def make() -> tuple[Any, ...]:
        OWN.seed(next(seeds) // 2)
        return (torch.arange(4.0),)

    fxjit.counters.clear()
    compiled = fxjit.compile(fn, fullgraph=fullgraph, backend=backend)
    raised = False
    for seed in range(5):
        result = assert_same_call(fn, compiled, seed=seed, make=make, state=OWN.getstate)
        raised = raised or isinstance(result, Failure)
        if seed == 1:
            compiles = fxjit.counters["frames"]["ok"]
    assert not fullgraph or fxjit.counters["frames"]["ok"] == compiles, "compiled again for another number"
    assert not fullgraph or raised or not fxjit.counters["graph_break"], "a frame that seems to raise runs as it stands"


def each_kind(x: torch.Tensor) -> Any:
    numbers = [random.random(), random.uniform(1, 2), random.triangular(), random.gauss(0, 1), random.normalvariate(1, 2),
               random.betavariate(1, 2), random.expovariate(2), random.gammavariate(1, 2), random.lognormvariate(0, 1),
               random.vonmisesvariate(0, 1), random.paretovariate(3), random.weibullvariate(1, 2)]
    counts = [random.randint(1, 6), random.randrange(10), random.randrange(3, 50, 2), random.getrandbits(8)]
    for number in (*numbers, *counts):
        x = x * number
    return x, numbers, counts


def arithmetic(x: torch.Tensor) -> Any:
    a, n = random.random(), random.randint(1, 5)
    b = (a * 2 - 1) / 3 + n // 2 - (n % 3) ** 2
    c = -abs(b) + round(a * 10) + int(a * 7) + math.floor(a * 3) + math.sqrt(a) + float(n)
    return x * b + c, a, b, c, n << 1, a < 0.5, a == n


def items(x: torch.Tensor) -> Any:
    scale = random.choice([0.5, 1.0, 2.0])
    order = [1, 2, 3, 4]
    random.shuffle(order)
    some = random.sample(range(100), 3)
    names = random.choices(["a", "bb"], weights=[1, 2], k=2)
    return x * scale + order[0] - some[-1] + len(names[0]), order, some, names


def beside_torch(x: torch.Tensor) -> Any:
    a = random.random()
    noise = torch.rand(4)
    b = random.random()
    return x * a + torch.rand(4) * b + noise, torch.full((), b), torch.full((2,), a)


def with_sizes(x: torch.Tensor) -> Any:
    return x * (random.random() * x.shape[0]) + x.shape[0] / random.uniform(1, 2)


def in_a_loop(x: torch.Tensor) -> Any:
    for _ in range(3):
        x = x + random.random() * OWN.random() + random.random()
    return x


def made_here(x: torch.Tensor) -> Any:
    own = random.Random(42)
    return x * own.random(), own.randint(0, 5), own


def seeded(x: torch.Tensor) -> Any:
    before = random.getstate()
    random.seed(3)
    y = x * random.random()
    random.setstate(before)
    return y + random.random()


def gradient(x: torch.Tensor) -> Any:
    x = x.requires_grad_()
    return torch.autograd.grad((x * random.random()).sin().sum() * random.random(), x)


class Noise:
    """A generator in an attribute, and drawn numbers in others."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.last: Any = None
        self.seen: list[Any] = []

    def __call__(self, x: torch.Tensor) -> Any:
        self.last = self.rng.uniform(0, 1)
        self.seen.append(self.last * 2)
        return x + self.last


def in_attributes(x: torch.Tensor) -> Any:
    noise = Noise(1)
    y = noise(noise(x))
    return y, noise.last, noise.seen


def numpy_numbers(x: torch.Tensor) -> Any:
    weight = np.random.beta(1.0, 1.0)
    return weight * x + (1 - weight) * x.flip(0), np.random.randint(0, 10), np.random.rand(), np.random.random(), weight


def numpy_arrays(x: torch.Tensor) -> Any:
    noise = np.random.rand(4)
    order = np.random.permutation(4)
    noise *= 2
    y = x[torch.from_numpy(order)] + torch.from_numpy(noise)
    return y, noise, order, torch.tensor(np.random.normal(size=(2, 2))), np.random.choice([1, 2, 3]) * 2


def numpy_generators(x: torch.Tensor) -> Any:
    new, old = np.random.default_rng(3), np.random.RandomState(4)
    return x * new.random() + old.uniform(), new.integers(5), new.standard_normal(3, dtype=np.float32), old.randn(2)


def numpy_made_of_parts(x: torch.Tensor) -> Any:
    seeds = np.random.SeedSequence(12)
    new = np.random.Generator(np.random.PCG64(seeds))
    shared = np.random.Philox(seed=3)
    first, second = np.random.Generator(shared), np.random.Generator(bit_generator=shared)
    old = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(entropy=4)))
    y = x * new.random() + first.uniform() + second.uniform() + old.rand()
    return y, seeds.entropy, np.random.default_rng(np.random.SFC64([1, 2])).integers(9), first.normal(size=2)


def numpy_seeded(x: torch.Tensor) -> Any:
    before = np.random.get_state()
    np.random.seed(5)
    y = x * np.random.rand()
    np.random.set_state(before)
    return y + np.random.rand()


@pytest.mark.parametrize("program", [
    each_kind, arithmetic, items, beside_torch, with_sizes, in_a_loop, made_here, seeded, in_attributes, numpy_numbers,
    numpy_arrays, numpy_generators, numpy_made_of_parts, numpy_seeded,
])
def test_drawn_before_the_graph(program: Program) -> None:
    if program is made_here:
        def body(x: torch.Tensor) -> Any:
            *results, own = made_here(x)
            return *results, list(own.getstate()[1])
        assert_drawn_as_eager(body, fullgraph=False)
    else:
        assert_drawn_as_eager(program)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("program", [arithmetic, beside_torch, in_a_loop, with_sizes, numpy_arrays])
def test_through_backends(program: Program, backend: str) -> None:
    assert_drawn_as_eager(program, backend=backend)


def test_gradients() -> None:
    def fn(x: torch.Tensor) -> Any:
        return (x * random.random()).sin().sum() * random.random()

    compiled = fxjit.compile(fn, backend="native", fullgraph=True)
    for seed in range(3):
        found = []
        for call in (fn, compiled):
            random.seed(seed)
            x = torch.arange(4.0, requires_grad=True)
            call(x).backward()
            found.append(x.grad)
        torch.testing.assert_close(*found)


def test_generator_of_an_object_outside() -> None:
    def fn(x: torch.Tensor, noise: Noise) -> Any:
        return noise(noise(x))

    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    for seed in range(3):
        mine, theirs = Noise(seed), Noise(seed)
        x = torch.ones(2)
        assert torch.equal(fn(x, theirs), compiled(x, mine))
        assert (mine.last, mine.seen, mine.rng.getstate()) == (theirs.last, theirs.seen, theirs.rng.getstate())


def test_one_generator_under_two_names() -> None:
    def fn(x: torch.Tensor, a: random.Random, b: random.Random) -> Any:
        return x * a.random() - b.random() * 2 + a.random()

    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for first, second in ((random.Random(1), random.Random(2)), (OWN, OWN), (random.Random(3), OWN)):
        states = first.getstate(), second.getstate()
        expected = fn(x, first, second)
        first.setstate(states[0])
        second.setstate(states[1])
        assert torch.equal(compiled(x, first, second), expected)


class Biased(random.Random):
    """Draws otherwise than its base: what derives from it has to ask it."""

    def random(self) -> float:
        return super().random() / 2


def own_class(x: torch.Tensor) -> Any:
    return x * Biased(1).random(), Biased(2).uniform(1, 2)


def takes_a_way(x: torch.Tensor) -> Any:
    if random.random() < 0.5:
        return x + random.random()
    return x - random.random()


def drops_layers(x: torch.Tensor) -> Any:
    for _ in range(5):
        if random.random() < 0.4:
            continue
        x = x.sin()
    return x, random.random()


def crops(x: torch.Tensor) -> Any:
    y = x.sin()
    at = random.randint(0, 5)
    return y[at : at + 2] + random.random()


def as_a_key(x: torch.Tensor) -> Any:
    table = {1: "one", 2: "two"}
    return x + 1, table[random.randint(1, 2)], f"{random.random():.2f}", max(random.random(), 0.5)


def fails(x: torch.Tensor) -> Any:
    y = x + random.random()
    return y / (1 / random.randint(0, 1)), random.random()


def is_caught(x: torch.Tensor) -> Any:
    try:
        scale = 10 // random.randint(0, 1)
    except ZeroDivisionError:
        scale = 1
    return x * scale + random.random()


def checks_data(x: torch.Tensor) -> Any:
    if x.isnan().any():
        raise ValueError("nan")
    return x * random.random()


def empty(x: torch.Tensor) -> Any:
    return x + random.choice([])  # type: ignore[arg-type]  # that is the point


def of_objects(x: torch.Tensor) -> Any:
    layers = [torch.sin, torch.cos]
    random.shuffle(layers)
    return random.choice(layers)(layers[0](x))


def numpy_elsewhere(x: torch.Tensor) -> Any:
    order = [torch.sin, torch.cos]
    np.random.shuffle(order)  # type: ignore[arg-type]  # a list will do
    return order[0](x) + np.random.rand() if np.random.rand() < 0.5 else order[1](x)


def as_a_tensor(x: torch.Tensor) -> Any:
    return torch.tensor(random.random()) + x, torch.tensor([random.randint(0, 5)])


@pytest.mark.parametrize("program", [
    numpy_elsewhere, own_class, takes_a_way, drops_layers, crops, as_a_key, fails, is_caught, checks_data, empty, of_objects,
    as_a_tensor,
])
@pytest.mark.parametrize("everywhere", [False, True])
def test_decisions(program: Program, everywhere: bool) -> None:
    """What depends on the number itself runs as it stands, also where loops and `try` blocks are resumed."""
    with config.patch(resume_in_loops=everywhere, resume_in_try=everywhere):
        assert_drawn_as_eager(program, fullgraph=False)


def test_a_decision_says_why() -> None:
    with pytest.raises(fxjit.errors.Unsupported) as caught:
        fxjit.compile(takes_a_way, backend="eager", fullgraph=True)(torch.ones(2))
    assert caught.value.reason_id == "data-random"


def test_each_way_is_compiled_once() -> None:
    compiled = fxjit.compile(takes_a_way, backend="eager")
    compiles = []
    for seed in range(10):
        random.seed(seed)
        compiled(torch.ones(2))
        compiles.append(fxjit.counters["frames"]["ok"])
    assert compiles[1:] == compiles[1:2] * 9, "the first two seeds go either way"


def test_a_test_that_puts_a_mock_in_the_place_of_what_draws_sees_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [0.8859296441566, 0.3778794411714, 0.8859296441566, 0.3678794411714]
    calls: list[float] = []

    def mine(self: random.Random) -> float:
        calls.append(drawn[len(calls) % 4])
        return calls[-1]

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * random.gammavariate(0.35, 1.45)

    x = torch.ones(1)
    fxjit.compile(program, backend="eager")(x)
    monkeypatch.setattr(random.Random, "random", mine)
    for _ in range(2):
        calls.clear()
        expected, wanted = program(x), len(calls)
        calls.clear()
        assert torch.equal(fxjit.compile(program, backend="eager")(x), expected) and len(calls) == wanted


def cropped(x: torch.Tensor) -> Any:
    """Inside of the tensor wherever it begins: three rows, whatever the number."""
    image = x.outer(torch.arange(6.0)).sin()
    top, left = random.randint(0, image.shape[0] - 2), random.randrange(3)
    part = image[top : top + 2, left : left + 3]
    return part, part.shape, part.flip(1) * 2, image[top:][:1], image.narrow(1, left, 2)


def one_of_the_rows(x: torch.Tensor) -> Any:
    rows = x.outer(x + 1)
    at = random.randrange(len(rows))
    rows[at] = rows[-1 - at] * 2
    rows[at, random.randint(0, 3)] += 5
    return rows, rows[at], rows[at, 1:3], rows[:, at].sum(), at


def of_some_size(x: torch.Tensor) -> Any:
    n = random.randint(2, 5)
    made = torch.zeros(n, 4) + x
    padded = torch.nn.functional.pad(x, (0, n))
    return made, made.shape, padded, torch.arange(n) * 2, x.repeat(n), torch.full((n,), n)


def within_bounds(x: torch.Tensor) -> Any:
    """Decisions that come out the same for every number that may be drawn."""
    if random.random() < 1.0 and not random.random() < 0.0 and random.uniform(1, 2) > 0.5:
        x = x + 1
    at = max(int(random.random() * 4), 0)
    if at < 4 and abs(at - 3) <= 3 and at % 2 < 2 and math.floor(random.uniform(2, 3)) >= 2 and random.getrandbits(2) != 4:
        x = x * 2
    scale = random.choice([2, 3, 4])
    if scale:
        x = x / scale
    return x, x[at], x[random.sample(range(3), 2)[0]], min(random.sample(range(3), 2)) <= 2


def in_tensors(x: torch.Tensor) -> Any:
    """Made before the graph, and then the program's to write to."""
    numbers = torch.tensor([[random.random(), 1], [2.5, random.randint(0, 9)]])
    order, some = [0, 1, 2, 3], random.sample(range(4), 2)
    random.shuffle(order)
    numbers[0] *= 2
    alone, action = torch.tensor(random.random(), dtype=torch.float64), torch.tensor([[random.randrange(2)]])
    rows = x.outer(x + 1)
    rows[some] += 1
    rows[:, some, None] = 5
    return numbers, alone, action, rows[order], rows[order, 1:3], rows[1, some], torch.as_tensor(some, dtype=torch.float32)


def cropped_by_numpy(x: torch.Tensor) -> Any:
    image = x.outer(torch.arange(6.0))
    top, left, at = np.random.randint(3), np.random.randint(0, image.shape[1] - 2), int(np.random.rand() * 4)
    if np.random.random() < 1.0 and np.random.RandomState(3).random_sample() >= 0:
        image = image + 1
    return image[top : top + 2, left : left + 3], image[at] * np.random.default_rng(2).random(), np.random.randint(0, 5, 3)


@pytest.mark.parametrize("program", [cropped, one_of_the_rows, of_some_size, within_bounds, in_tensors, cropped_by_numpy])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_what_holds_for_all_numbers_that_may_be_drawn(program: Program, backend: str) -> None:
    assert_drawn_as_eager(program, backend=backend)


def above_its_end(x: torch.Tensor) -> Any:
    at = random.randint(2, 4)
    return x[at : at + 2]


def of_size_one(x: torch.Tensor) -> Any:
    return torch.zeros(random.randint(0, 2), 4) + x


def behind_the_last(x: torch.Tensor) -> Any:
    try:
        return x[random.randint(0, 5)]
    except IndexError:
        return x


def apart(x: torch.Tensor) -> Any:
    """Each is within the tensor, and nothing is said of the two together."""
    return x[random.randint(0, 3) : random.randint(0, 3)]


def no_tensor_holds(x: torch.Tensor) -> Any:
    return torch.tensor([random.getrandbits(65), 1]) + x


@pytest.mark.parametrize("program", [above_its_end, of_size_one, behind_the_last, apart, no_tensor_holds])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_does_not(program: Program, backend: str) -> None:
    assert_drawn_as_eager(program, fullgraph=False, backend=backend)


NAMES, LAYERS = ("relu", "tanh", "sin"), [torch.nn.Linear(4, 4) for _ in range(3)]


def indexed(x: torch.Tensor) -> Any:
    at = random.getrandbits(32)
    name, number, truth = NAMES[at % len(NAMES)], [0.5, 1.5, 2.5][random.randrange(3)], [True, False][random.random() < 0.5]
    return x * number + len(name), name, number, truth, [3, 4][-random.randint(1, 2)], isinstance(name, str)


def of_one(x: torch.Tensor) -> Any:
    return x + [2][random.randrange(5) % 1], isinstance([x][random.getrandbits(4) % 1], torch.Tensor)


def objects_by_type(x: torch.Tensor) -> Any:
    """What type checkers do: look at one item, and drop it."""
    made, at = [x + 1, x + 2, x + 3], random.randrange(3)
    kept = [{"a": x}, {"b": x * 2}][random.randrange(2)]
    return x * isinstance(LAYERS[at], torch.nn.Module), isinstance(made[at], torch.Tensor), type(kept), kept, made[at]


def taken_and_changed(x: torch.Tensor) -> Any:
    items = [x + 1, x + 2]
    item = items[random.randrange(2)]
    items.clear()
    return item, items


def out_of_range(x: torch.Tensor) -> Any:
    try:
        return x + [1, 2, 3][random.randrange(6)]
    except IndexError:
        return x - 1


def outside_of_range(x: torch.Tensor) -> Any:
    return x + (1, 2, 3)[random.randrange(6)], [x, x][random.randrange(6)]


@pytest.mark.parametrize("program", [indexed, of_one, objects_by_type, taken_and_changed])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_items_drawn_at_random(program: Program, backend: str) -> None:
    assert_drawn_as_eager(program, backend=backend)


def which_it_is(x: torch.Tensor) -> Any:
    items = [x + 1, x + 2]
    item = items[random.randrange(2)]
    return item is items[0], item


def used(x: torch.Tensor) -> Any:
    return LAYERS[random.randrange(3)](x) + [x, x * 2][random.randrange(2)], [torch.sin, torch.cos][random.randrange(2)](x)


def written_to(x: torch.Tensor) -> Any:
    items = [[x], [x + 1]]
    items[random.randrange(2)].append(x + 2)
    return items


def of_several_types(x: torch.Tensor) -> Any:
    return [x, 2, "a"][random.randrange(3)], [1, 2.5][random.randrange(2)], {1: [x]}[1][random.randrange(1)]


@pytest.mark.parametrize("program", [which_it_is, used, written_to, of_several_types, out_of_range, outside_of_range])
def test_which_item_it_is_matters(program: Program) -> None:
    assert_drawn_as_eager(program, fullgraph=False)


def facts_of_tensors(x: torch.Tensor) -> Any:
    """Those in which all items agree: what type checkers for arrays ask."""
    items, at = [x + 1, x.cos(), x * 2], random.randrange(3)
    item = items[at]
    facts = item.shape, item.dtype, item.device, item.ndim, item.requires_grad, hasattr(item, "shape"), len(item.shape)
    return item, x * item.shape[0], facts


def facts_that_differ(x: torch.Tensor) -> Any:
    item = [x, x[:2], x.double()][random.randrange(3)]
    return item.ndim, item.shape, item.dtype


def test_facts_about_tensors_drawn_at_random() -> None:
    assert_drawn_as_eager(facts_of_tensors)
    assert_drawn_as_eager(facts_that_differ, fullgraph=False)
    compiled = fxjit.compile(facts_of_tensors, backend="eager", fullgraph=True)
    for rows in (3, 4, 5, 6):
        random.seed(rows)
        expected = facts_of_tensors(torch.arange(float(rows)))
        random.seed(rows)
        assert repr(compiled(torch.arange(float(rows)))) == repr(expected)


@pytest.mark.parametrize("make", [np.random.PCG64, np.random.MT19937, np.random.SeedSequence, np.random.default_rng])
def test_what_draws_is_the_programs_to_keep_and_refuses_what_eager_refuses(make: Program) -> None:
    def kept(x: torch.Tensor, seed: int) -> Any:
        made = make(seed)
        return x * 2, made, seed

    compiled = fxjit.compile(kept, backend="eager")
    for seed in (3, 4, 5, -1, 6):
        results = []
        for function in (kept, compiled):
            try:
                _, made, _ = function(torch.ones(2), seed)
            except ValueError as error:
                results.append(str(error))
            else:
                results.append((type(made), np.random.default_rng(made).integers(1 << 40, size=4).tolist()))
        assert results[0] == results[1]
        assert isinstance(results[0], str) is (seed < 0)
