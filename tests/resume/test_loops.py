"""`config.resume_in_loops`: what comes before a loop that breaks and after it is compiled, and an iteration by itself, however
many there are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.differential import assert_same_as_eager  # noqa: E402

import fxjit  # noqa: E402
from fxjit.testing import EagerAndRecordGraphs  # noqa: E402


@pytest.fixture(autouse=True)
def _resume() -> Iterator[None]:
    with fxjit.config.patch(resume_in_loops=True):
        yield


def assert_same_loops(fn: Callable[..., Any], *args: Any, **options: Any) -> None:
    assert_same_as_eager(fn, torch.ones(3), *args, fullgraph=False, skips=False, **options)


def steps(x: Any, n: int) -> Any:
    y = x + 1
    for _ in range(n):
        y = y.sin()
        fxjit.graph_break()
        y = y + 1
    return y * 2


def test_the_parts_of_a_loop_are_compiled_whatever_the_number_of_iterations() -> None:
    for n in (0, 1, 2, 3, 50):
        assert_same_loops(steps, n)
    # before and first half; second half; first half; after
    assert_same_loops(steps, 50, graphs=4)
    assert_same_loops(steps, 5000, graphs=4)


def test_the_default_gives_up_the_frame() -> None:
    with fxjit.config.patch(resume_in_loops=False):
        fxjit.reset()
        backend = EagerAndRecordGraphs()
        fxjit.compile(steps, backend=backend)(torch.ones(3), 3)
        assert backend.graphs == [] and list(fxjit.counters["skip"]) == ["Graph break in a loop"]


def test_iterations_nest_no_frames() -> None:
    depths = []

    @fxjit.disable
    def depth() -> None:
        frame, count = sys._getframe(), 0
        while frame is not None:
            frame, count = frame.f_back, count + 1
        depths.append(count)

    def fn(x: Any) -> Any:
        for _ in range(200):
            x = x + 1
            depth()
        return x

    fxjit.compile(fn, backend="eager")(torch.ones(3))
    assert len(set(depths[10:])) == 1


def test_while_and_its_condition_on_data() -> None:
    def counted(x: Any, n: int) -> Any:
        i = 0
        while i < n:
            x = x + i
            fxjit.graph_break()
            i += 1
        else:
            x = x * 2
        return x, i

    def on_data(x: Any) -> Any:
        while x.sum() < 100:
            x = x * 1.5
        return x + 1

    assert_same_loops(counted, 20)
    assert_same_loops(on_data)


def test_loops_in_loops_with_break_continue_and_else() -> None:
    def fn(x: Any, n: int) -> Any:
        for i in range(n):
            for j in range(3):
                x = x + j
                fxjit.graph_break()
                if j == 2 and i == 3:
                    continue
                x = x * 0.9
            else:
                x = x + 0.1
            if i > 5:
                break
        return x, i, j

    assert_same_loops(fn, 9)
    assert_same_loops(fn, 3)


def test_iterators_of_every_kind_go_on_where_they_were() -> None:
    def numbers(n: int) -> Iterator[int]:
        yield from range(n)

    def over(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def fn(x: Any) -> Any:
            out = 0
            for item in make(x):
                out = out + (item[0] * item[1] if isinstance(item, tuple) else item)
                fxjit.graph_break()
                out = out * 0.5
            return out

        return fn

    for make in (
        lambda x: range(9, 0, -2), lambda x: [x, x * 2, x * 3], lambda x: (1, 2.5, 3), lambda x: enumerate([x, x, x + 1]),
        lambda x: zip(range(4), [x] * 5, strict=False), lambda x: {1: x, 2: x}, lambda x: {k: x * k for k in range(3)}.items(),
        lambda x: map(lambda k: x * k, range(3)), lambda x: reversed([1, 2, 3]), lambda x: x.reshape(3, 1),
        lambda x: numbers(4), lambda x: filter(None, [0, 1, 2]), lambda x: iter([1, 2, 3]),
    ):  # fmt: skip
        assert_same_loops(over(make))


def test_a_list_that_changes_under_its_loop() -> None:
    def fn(x: Any) -> Any:
        items = [1, 2, 3]
        for item in items:
            x = x * item
            fxjit.graph_break()
            if item < 3:
                items.append(item + 2)
        return x, items

    assert_same_loops(fn)


def test_a_break_at_one_iteration_only() -> None:
    def fn(x: Any, n: int) -> Any:
        for i in range(n):
            x = x + i
            if i == 3:
                fxjit.graph_break()
        return x

    assert_same_loops(fn, 2, graphs=1)
    assert_same_loops(fn, 30)


def test_loops_in_functions_that_are_called_and_calls_in_loops() -> None:
    def breaks(x: Any) -> Any:
        y = x.sin()
        fxjit.graph_break()
        return y.cos()

    def loops(x: Any, n: int) -> Any:
        for _ in range(n):
            x = breaks(x) + 1
        return x

    def outer(x: Any, n: int) -> Any:
        y = x + 1
        return loops(y, n) * y

    def comprehension(x: Any, n: int) -> Any:
        return [breaks(x * k) for k in range(n)]

    assert_same_loops(loops, 20)
    assert_same_loops(outer, 20)
    with fxjit.config.patch(resume_in_try=True):  # since 3.12 a comprehension puts its variable back as a `finally` would
        assert_same_loops(comprehension, 4)


def test_a_list_that_grows_is_one_entry() -> None:
    def fn(x: Any, n: int) -> Any:
        out = []
        for _ in range(n):
            x = x.sin()
            fxjit.graph_break()
            out.append(x * 2)
        return out

    assert_same_loops(fn, 20)
    assert sum(fxjit.counters["recompiles"].values()) < 3


def test_an_exception_in_the_middle_leaves_as_it_would() -> None:
    def fn(x: Any, n: int) -> Any:
        for i in range(n):
            fxjit.graph_break()
            if i == 4:
                raise ValueError(i)
            x = x + 1
        return x

    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(2):
        with pytest.raises(ValueError, match="4"):
            compiled(torch.ones(3), 9)
        assert torch.equal(compiled(torch.ones(3), 3), torch.full((3,), 4.0))


def test_gradients_flow_through_all_iterations() -> None:
    def fn(x: Any, n: int) -> Any:
        for i in range(n):
            x = x * 1.5
            fxjit.graph_break()
            x = x + i
        return x.sum()

    grads = []
    for call in (fn, fxjit.compile(fn, backend="aot_eager")):
        x = torch.ones(3, requires_grad=True)
        call(x, 6).backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_a_loop_over_a_progress_bar_is_given_up_at_once() -> None:
    """The bar is made and iterated for real: one break, and no resume function that would end before its first instruction."""
    tqdm = pytest.importorskip("tqdm").tqdm

    def run(x: Any) -> Any:
        y = x + 1
        for step in tqdm(range(3), leave=False):
            y = y * (step + 1)
        return y

    with fxjit.config.patch(resume_in_loops=False):
        assert_same_as_eager(run, torch.ones(3), fullgraph=False, graphs=1, breaks=1)
        assert sum(fxjit.counters["skip"].values()) == 1


def test_what_stands_before_a_loop_over_a_given_bar_is_compiled() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm

    def run(x: Any, bar: Any) -> Any:
        y = x + 1
        for step in bar:
            y = y * (step + 1)
        return y

    with fxjit.config.patch(resume_in_loops=False):
        assert_same_as_eager(run, fullgraph=False, graphs=1, breaks=1,
                             make=lambda: (torch.ones(3), tqdm(range(3), leave=False)))


def test_a_loop_over_a_data_loader_is_given_up_at_once() -> None:
    """Its iterator is not followed: no break for a graph without an operator."""
    rows = torch.utils.data.TensorDataset(torch.arange(12.0).view(6, 2))
    loader = torch.utils.data.DataLoader(rows, batch_size=2)

    def run(weight: Any) -> Any:
        total = 0
        for (x,) in loader:
            total = total + x @ weight
        return total

    def run_behind(weight: Any) -> Any:
        return run(weight * 2)

    def run_computing(weight: Any) -> Any:
        total = weight.sum() * 2
        for (x,) in loader:
            total = total + x @ weight
        return total

    with fxjit.config.patch(resume_in_loops=False):
        weight = torch.ones(2)
        fxjit.counters.clear()
        assert torch.equal(fxjit.compile(run, backend="eager")(weight), run(weight))
        assert not fxjit.counters["graph_break"] and sum(fxjit.counters["skip"].values()) == 1
        assert_same_as_eager(run_behind, weight, fullgraph=False)
        assert_same_as_eager(run_computing, weight, fullgraph=False, graphs=1, breaks=1)
