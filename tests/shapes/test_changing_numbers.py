"""Numbers on objects that change between calls: constants at first, symbols at the second value, wherever they are kept, and
of Python's types or NumPy's."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

import fxjit
from fxjit import counters

X = torch.arange(6.0)
OF_KIND = {
    "int": lambda i: i + 3,
    "float": lambda i: i + 0.5,
    "int64": lambda i: np.int64(i + 3),
    "int32": lambda i: np.int32(i + 3),
    "float32": lambda i: np.float32(i + 0.1),
    "float64": lambda i: np.float64(i + 0.1),
}


@pytest.fixture(autouse=True)
def fresh():
    fxjit.reset()
    yield
    fxjit.reset()


class Holder(torch.nn.Module):
    number = None

    def forward(self, x):
        return x * self.number


GLOBAL = None


def places():
    module, closed, table, row, instance = Holder(), None, {}, [None], type("Plain", (), {})()

    def set_global(value):
        global GLOBAL
        GLOBAL = value

    def set_cell(value):
        nonlocal closed
        closed = value

    return {
        "module": (lambda x: module(x), lambda value: setattr(module, "number", value)),
        "instance": (lambda x: x * instance.number, lambda value: setattr(instance, "number", value)),
        "global": (lambda x: x * GLOBAL, set_global),
        "cell": (lambda x: x * closed, set_cell),
        "dict": (lambda x: x * table["n"], lambda value: table.__setitem__("n", value)),
        "list": (lambda x: x * row[0], lambda value: row.__setitem__(0, value)),
        "tuple": (lambda x: x * instance.pair[1], lambda value: setattr(instance, "pair", (1, value))),
    }


@pytest.mark.parametrize("kind", OF_KIND)
@pytest.mark.parametrize("place", places())
def test_the_second_value_makes_a_symbol(place, kind):
    f, put = places()[place]
    compiled = fxjit.compile(f, backend="eager", fullgraph=True)
    for i in range(5):
        put(OF_KIND[kind](i))
        want, got = f(X), compiled(X)
        assert torch.equal(got, want) and got.dtype == want.dtype
    assert counters["stats"]["unique_graphs"] == 2


def test_a_number_that_the_function_changes():
    """Its class is that of eager after each call."""
    for kind in ("int", "float", "int64", "float64"):
        fxjit.reset()
        holder, twin = Holder(), Holder()
        holder.number, twin.number = OF_KIND[kind](0), OF_KIND[kind](0)

        def f(x, at):
            at.number += 1
            return x - at.number

        compiled = fxjit.compile(f, backend="eager", fullgraph=True)
        for _ in range(5):
            assert torch.equal(compiled(X, holder), f(X, twin))
            assert holder.number == twin.number and type(holder.number) is type(twin.number)
        assert counters["stats"]["unique_graphs"] == 1


USES = {
    "tensor first": lambda x, n: x - n,
    "number first": lambda x, n: n - x,
    "compared with a tensor": lambda x, n: (x < n, n >= x),
    "a branch": lambda x, n: x + 1 if n > 2 else x - 1,
    "a comparison as a result": lambda x, n: (x + 1, n == 4),
    "converted": lambda x, n: (x * int(n), x * float(n), n.item(), bool(n)),
    "returned": lambda x, n: (x + 1, n, n + 1, 2 * n),
    "with another type": lambda x, n: (x * (n * 0.5), n * 0.5, n / 3, n // 2, -n, n**2),
    "a tensor of it": lambda x, n: (torch.tensor(n) + x, torch.tensor([n, 1])),
    "given to NumPy": lambda x, n: (x + 1, np.sqrt(n), np.maximum(n, 2)),
    "filled": lambda x, n: torch.full((3,), n) + x[:3],
    "a method's argument": lambda x, n: x.clamp(max=n).add(x, alpha=n),
    "text": lambda x, n: (x + 1, f"{n}", str(n)),
    "a key": lambda x, n: x * {n: 2}[n],
    "an attribute": lambda x, n: (x + 1, n.dtype, n.ndim),
}
AS_INDEX = {
    "range": lambda x, n: [x + i for i in range(n)],
    "index": lambda x, n: (x[n], x[:n], x.reshape(6)[n - 1]),
    "size": lambda x, n: x.new_zeros(n) + torch.arange(n),
}


@pytest.mark.parametrize("kind", ["int64", "int32", "float32", "float64"])
@pytest.mark.parametrize("use", [*USES, *AS_INDEX])
def test_what_a_varying_scalar_of_numpy_is_used_for(use, kind):
    """As eager, with its types; what needs NumPy's arithmetic is compiled for the value, as it is for the first."""
    if use in AS_INDEX and not kind.startswith("int"):
        pytest.skip("no index")
    f = {**USES, **AS_INDEX}[use]
    compiled = fxjit.compile(f, backend="eager", fullgraph=True)
    for i in range(3):
        n = OF_KIND[kind](i)
        for got, want in zip(flat(compiled(X, n)), flat(f(X, n)), strict=True):
            assert type(got) is type(want), (got, want)
            if isinstance(want, torch.Tensor):
                assert torch.equal(got, want) and got.dtype == want.dtype
            else:
                assert got == want


DIVISIONS = {
    "by a number": lambda x, n: (x + n / 2, n / 2, 6 / n, n / np.int64(4), -n),
    "whole": lambda x, n: (x * (n // 3), n // -3, 7 // n, n % 3, n % -3, 7 % n),
    "by zero": lambda x, n: (x + 1, 1 / (n - 5), (n - 5) / (n - 5)),
}


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize(("use", "graphs"), [("by a number", 2), ("whole", 2), ("by zero", 3)])
def test_integers_of_numpy_are_divided_as_such(use, graphs):
    """A quotient is a float64 of NumPy's; by zero it is infinite, or NaN, which Python's numbers refuse."""
    f = DIVISIONS[use]
    compiled = fxjit.compile(f, backend="eager", fullgraph=True)
    for i in (3, 4, 9, 5, -2, 8, 2**60):
        n = np.int64(i)
        for got, want in zip(compiled(X, n), f(X, n), strict=True):
            assert type(got) is type(want), (got, want)
            np.testing.assert_array_equal(got, want)
    assert counters["stats"]["unique_graphs"] <= graphs + 1  # 2**60 is divided by a graph of its own


def test_a_list_of_varying_scalars_becomes_a_tensor():
    """A list that was there before, as a function that is not captured gives it."""
    def f(x, numbers):
        return x[:2] * torch.LongTensor(numbers), torch.tensor(numbers)

    compiled = fxjit.compile(f, backend="eager", fullgraph=True)
    for i in range(4):
        numbers = list(np.array([i + 3, 2 * i + 4]))
        for got, want in zip(compiled(X, numbers), f(X, numbers), strict=True):
            assert torch.equal(got, want) and got.dtype == want.dtype


def flat(found):
    return found if isinstance(found, (tuple, list)) else (found,)


SCHEDULERS = {
    "StepLR": lambda opt, lr: lr.StepLR(opt, 3),
    "MultiStepLR": lambda opt, lr: lr.MultiStepLR(opt, [2, 5]),
    "ConstantLR": lambda opt, lr: lr.ConstantLR(opt),
    "LinearLR": lambda opt, lr: lr.LinearLR(opt),
    "ExponentialLR": lambda opt, lr: lr.ExponentialLR(opt, 0.9),
    "LambdaLR": lambda opt, lr: lr.LambdaLR(opt, lambda epoch: 0.9**epoch),
    "PolynomialLR": lambda opt, lr: lr.PolynomialLR(opt),
    "CosineAnnealingLR": lambda opt, lr: lr.CosineAnnealingLR(opt, 20),
    "CosineAnnealingWarmRestarts": lambda opt, lr: lr.CosineAnnealingWarmRestarts(opt, 4),
    "OneCycleLR": lambda opt, lr: lr.OneCycleLR(opt, 0.5, total_steps=50),
    "CyclicLR": lambda opt, lr: lr.CyclicLR(opt, 0.1, 0.5, step_size_up=4),
    "ReduceLROnPlateau": lambda opt, lr: lr.ReduceLROnPlateau(opt, patience=2),
    "SequentialLR": lambda opt, lr: lr.SequentialLR(opt, [lr.ConstantLR(opt), lr.ExponentialLR(opt, 0.9)], [4]),
}


#: What a scheduler is told at each step: a loss that does not improve.
METRICS = {"ReduceLROnPlateau": (1.0,)}


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_is_stepped_in_the_compiled_function(name, fullgraph):
    """The graph breaks at its `step`, and so there is one before and one behind, as with torch.compile. Where it has to be
    whole, its counter and its rate become symbols: the graphs are as many as its code has ways to go, not as the calls."""

    def training():
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = SCHEDULERS[name](opt, torch.optim.lr_scheduler)

        def step(x):
            loss = net(x).sum()
            scheduler.step(*METRICS.get(name, ()))
            return loss * 2

        return step, scheduler

    (plain, want), (compiled, got) = training(), training()
    compiled = fxjit.compile(compiled, backend="eager", fullgraph=fullgraph)
    for _ in range(12):
        assert torch.equal(plain(X.reshape(2, 3)), compiled(X.reshape(2, 3)))
        assert got.get_last_lr() == pytest.approx(want.get_last_lr(), rel=1e-12) and got.last_epoch == want.last_epoch
    most = MOST_GRAPHS.get(name, 3) if fullgraph else 2
    assert counters["stats"]["unique_graphs"] <= most and not counters["skip"]


def test_a_scheduler_that_is_stepped_in_a_loop_is_traced():
    net = torch.nn.Linear(3, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)

    def steps(x):
        for _ in range(2):
            x = net(x).sum() + x
            scheduler.step()
        return x

    opt.step()
    fxjit.compile(steps, backend="eager")(X.reshape(2, 3))
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"] and scheduler.last_epoch == 2


def test_a_rate_that_stays_is_not_looked_at():
    """A number that is only moved from place to place is guarded by its type alone."""
    held, kept = {"rate": 0.1}, [0.0, 0.0]

    def step(x):
        kept[:] = [held["rate"], held["rate"]]
        held["rate"] = kept[0]
        return x + 1

    compiled = fxjit.compile(step, backend="eager", fullgraph=True)
    for rate in (0.1, 0.2, -0.0, float("nan"), 3.5):
        held["rate"] = rate
        assert torch.equal(compiled(X), X + 1)
        assert kept[1] is held["rate"] is kept[0] is rate
    assert counters["stats"]["unique_graphs"] == 1
    held["rate"] = "text"
    assert torch.equal(compiled(X), X + 1) and kept == ["text", "text"]
    assert counters["stats"]["unique_graphs"] == 2


def updates(first=5):
    """What counts in which place: an attribute, a slot, an item, a global, a variable of the function around."""
    table, row, plain, n = {"n": first}, [first], type("Plain", (), {"__slots__": ("n",)})(), first
    module = Holder()
    module.number, plain.n = first, first

    def in_dict():
        table["n"] += 2
        return table["n"]

    def in_list():
        row[0] += 2
        return row[0]

    def in_slot():
        plain.n += 2
        return plain.n

    def in_module():
        module.number += 2
        return module.number

    def in_cell():
        nonlocal n
        n += 2
        return n

    def in_global():
        global GLOBAL
        GLOBAL += 2
        return GLOBAL

    return {fn.__name__: fn for fn in (in_dict, in_list, in_slot, in_module, in_cell, in_global)}


@pytest.mark.parametrize("first", [5, np.int64(5), np.float64(5)], ids=["int", "int64", "float64"])
@pytest.mark.parametrize("place", updates())
def test_a_number_that_the_frame_updates_is_a_symbol_in_its_first_compile(place, first):
    global GLOBAL
    GLOBAL, count = first, updates(first)[place]
    compiled = fxjit.compile(lambda x: x * count(), backend="eager", fullgraph=True)
    for call in range(5):
        assert torch.equal(compiled(X), X * (7 + 2 * call))
    assert counters["stats"]["unique_graphs"] == 1


def test_an_updated_number_that_would_break_the_graph_is_a_constant():
    """A symbol is formatted nowhere; with the constant the first call is one graph, as it was."""
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        x = x + len(np.zeros(state["n"]).tolist())
        return x * 2

    compiled = fxjit.compile(step, backend="eager")
    for call in range(4):
        assert torch.equal(compiled(X), (X + call + 1) * 2)


#: One for the first step, which looks whether the optimizer came first, and one for each way that the rate goes.
MOST_GRAPHS = {"MultiStepLR": 4, "SequentialLR": 6}

TABLES = {
    "in a dict": (lambda n: n in {2: 0, 5: 0}, 4),
    "of a dict": (lambda n: {2: 0.5, 5: 0.1}.get(n, 1.0), 4),
    "in a set": (lambda n: n in {2, 5, "x", None}, 4),
    "in a frozenset": (lambda n: n in frozenset((2, 5)), 4),
    "of a Counter": (lambda n: collections.Counter([2, 5, 5])[n], 4),
    "taken out": (lambda n: {2: 7, 5: 8}.pop(n, 0), 4),
    "by a float's key": (lambda n: {2.0: 3}.get(n, 1), 3),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_counter_that_is_looked_up_is_compiled_for_what_is_found(name):
    """One entry for each key that is found, and one for all numbers that are no key; the first call's is a constant."""
    look_up, most = TABLES[name]

    class Counting:
        n = 0

    def step(x, state):
        state.n += 1
        return x * look_up(state.n)

    compiled, state, plain = fxjit.compile(step, backend="eager", fullgraph=True), Counting(), Counting()
    for _ in range(12):
        assert torch.equal(compiled(X, state), step(X, plain))
    assert counters["stats"]["unique_graphs"] <= most and not counters["skip"]


def test_a_key_that_varies_is_stored_by_its_value():
    def step(x, n):
        seen = {1: "a"}
        seen[n] = "b"
        return x + n, seen, n in seen

    compiled = fxjit.compile(step, backend="eager", fullgraph=True)
    for n in (4, 5, 1, 6):
        got, want = compiled(X, n), step(X, n)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]


class Pairs(list):
    """Reads its items itself, so that a source for one goes past what it makes of them."""

    def __getitem__(self, index):
        return super().__getitem__(index)


class Named(dict):
    def __getitem__(self, key):
        return super().__getitem__(key)


PAIRS = Pairs([3, 5, 3])
NAMED = Named(a=3, b=5)


@pytest.mark.parametrize("read", [lambda x: x * PAIRS[0] + PAIRS[1] - PAIRS[2], lambda x: x * NAMED["a"] + NAMED["b"]])
def test_items_of_a_subclass_are_told_apart(read):
    """Two items of one container are no number that varied: the first compile has no symbols."""
    graphs = []
    compiled = fxjit.compile(read, backend=lambda graph, inputs: graphs.append(graph) or graph)
    assert torch.equal(compiled(X), read(X))
    assert len(graphs) == 1 and [node.name for node in graphs[0].graph.nodes if node.op == "placeholder"] == ["l_x_"]


def _exponent_of(x, holder):
    return x + holder.base**holder.exponent


def _decides_on_a_power(x, holder):
    return x - 1 if holder.sign != (-1) ** holder.exponent else x + 1


def _decides_on_two(x, holder):
    return x - 1 if holder.base < holder.base**holder.exponent else x + 1


def _power_of_a_size(x, holder):
    return x * (-1) ** (x.shape[0] + holder.base)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [_exponent_of, _decides_on_a_power, _decides_on_two, _power_of_a_size])
def test_powers_of_numbers_that_vary(program, backend):
    """Of a negative base too, which torch.fx prints without the parentheses that it needs, and of exponents without a limit."""
    for base in (-1, -2, 0, 2):
        fxjit.reset()
        holder = Holder()
        compiled = fxjit.compile(program, backend=backend)
        for exponent, sign in [(1, -1), (2, 1), (3, 1), (4, -1), (5, 1), (0, 1)]:
            holder.base, holder.exponent, holder.sign = base, exponent, sign
            x = torch.ones(2 + exponent)
            assert torch.equal(compiled(x, holder), program(x, holder)), (base, exponent)
    assert not counters["graph_break"]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [
    lambda x: (-2) ** x, lambda x: (-2.5) ** x.float(), lambda x: pow(-2, x), lambda x: (-2j) ** x])
def test_powers_of_negative_numbers_by_a_tensor(program, backend):
    x = torch.arange(5)
    torch.testing.assert_close(fxjit.compile(program, backend=backend, fullgraph=True)(x), program(x))
