"""Sizes and numbers that vary: when they become symbols, what marks do, and what is only known at run time."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import assert_same_call
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import fxjit
from fxjit import config
from fxjit.counters import counters
from fxjit.errors import BackendCompilerFailed, ConstraintViolationError, Unsupported
from fxjit.frontend.dynamic import history_of

BACKENDS = ("eager", "aot_eager", "native")


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxjit.reset()
    torch.manual_seed(0)


def compiles() -> int:
    return counters["frames"]["ok"]


def assert_same_calls(compiled: Callable[..., Any], fn: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> None:
    for args in calls:
        assert_same_call(fn, compiled, *args, rtol=1.3e-6)


def times_rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1) * x.shape[0]


def sizes(*rows: int) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(n, 2),) for n in rows]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_second_size_makes_it_a_symbol(backend: str) -> None:
    assert_same_calls(fxjit.compile(times_rows, backend=backend), times_rows, sizes(3, 4, 7, 2, 9))
    assert compiles() == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_dynamic_true_compiles_once(backend: str) -> None:
    assert_same_calls(fxjit.compile(times_rows, backend=backend, dynamic=True), times_rows, sizes(3, 4, 7, 2, 9))
    assert compiles() == 1


def test_dynamic_false_compiles_for_each_size() -> None:
    assert_same_calls(fxjit.compile(times_rows, backend="eager", dynamic=False), times_rows, sizes(3, 4, 7))
    assert compiles() == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_zero_and_one_are_constants(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0) * 2

    assert_same_calls(fxjit.compile(fn, backend=backend), fn, sizes(3, 4, 1, 0, 7, 1, 0))
    assert compiles() == 4


@pytest.mark.compiles
def test_equal_looking_code_has_a_history_of_its_own() -> None:
    def make() -> Callable[[torch.Tensor], torch.Tensor]:
        return eval(compile("lambda x: x * x.shape[0]", "<made>", "eval"))  # type: ignore[no-any-return]

    first, second = make(), make()
    assert first.__code__ == second.__code__ and first.__code__ is not second.__code__
    assert_same_calls(fxjit.compile(first, backend="eager"), first, sizes(3))
    assert_same_calls(fxjit.compile(second, backend="eager"), second, sizes(4))
    assert history_of(first.__code__) is not history_of(second.__code__)
    assert history_of(second.__code__).sizes["x"] == (4, 2)


def test_a_marked_size_is_a_symbol_at_once() -> None:
    compiled = fxjit.compile(times_rows, backend="eager")
    for (x,) in sizes(3, 4, 7):
        fxjit.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), times_rows(x))
    assert compiles() == 1


def test_a_marked_size_that_the_program_fixes_is_an_error_in_the_programs_terms() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 3 else x

    x = torch.ones(3, 2)
    fxjit.mark_dynamic(x, 0)
    with pytest.raises(ConstraintViolationError, match=r"x\.size\(0\) was marked dynamic.*constant 3.*maybe_mark_dynamic"):
        fxjit.compile(fn, backend="eager")(x)


@pytest.mark.parametrize("first", [0, 1])
def test_a_marked_size_of_nought_or_one_is_a_constant_and_the_next_varies(first: int) -> None:
    calls = [torch.ones(size, 2) for size in (first, 5, 7)]
    for x in calls:
        fxjit.mark_dynamic(x, 0)
    assert_same_calls(fxjit.compile(times_rows, backend="eager"), times_rows, [(x,) for x in calls])
    assert compiles() == 2


def test_what_is_promised_of_an_unbacked_size_is_guarded_and_told_where_it_does_not_hold() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] > 3, lambda: "more than three rows")
        return x * 2 if x.shape[0] > 3 else x

    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    for rows in (5, 2, 9):
        x = torch.ones(rows, 2)
        fxjit.mark_unbacked(x, 0)
        if rows > 3:
            assert torch.equal(compiled(x), fn(x))
            continue
        with pytest.raises(RuntimeError, match="more than three rows"):
            compiled(x)
    assert compiles() == 1


def test_a_size_that_may_be_dynamic_can_be_fixed_by_the_program() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 3 else x

    x = torch.ones(3, 2)
    fxjit.maybe_mark_dynamic(x, 0)
    assert_same_calls(fxjit.compile(fn, backend="eager"), fn, [(x,), (torch.ones(4, 2),)])


@pytest.mark.compiles
def test_a_marked_range_is_guarded() -> None:
    compiled = fxjit.compile(times_rows, backend="eager")
    x = torch.ones(5, 2)
    fxjit.mark_dynamic(x, 0, min=2, max=10)
    assert_same_calls(compiled, times_rows, [(x,), *sizes(7)])
    assert compiles() == 1
    assert_same_calls(compiled, times_rows, sizes(12))
    assert compiles() == 2


@pytest.mark.compiles
def test_the_range_of_a_size_that_may_be_dynamic() -> None:
    """As in torch 2.15: the range is the first one of the size, a later call replaces it, and `mark_dynamic` is stronger."""
    x = torch.ones(5, 2)
    fxjit.maybe_mark_dynamic(x, 0, min=6)
    with pytest.raises(ConstraintViolationError, match="sizes from 6 to any"):
        fxjit.compile(times_rows, backend="eager")(x)
    fxjit.maybe_mark_dynamic(x, [0], min=2, max=10)
    fxjit.reset()
    compiled = fxjit.compile(times_rows, backend="eager")
    assert_same_calls(compiled, times_rows, [(x,), *sizes(7)])
    assert compiles() == 1
    assert_same_calls(compiled, times_rows, sizes(12))
    assert compiles() == 2
    fxjit.mark_dynamic(x, 0, max=4)
    fxjit.maybe_mark_dynamic(x, 0, min=2, max=10)
    with pytest.raises(ConstraintViolationError, match="sizes from 0 to 4"):
        fxjit.compile(lambda x: x + x.shape[0], backend="eager")(x)


@pytest.mark.compiles
def test_a_size_marked_static_stays_one() -> None:
    compiled = fxjit.compile(times_rows, backend="eager", dynamic=True)
    for (x,) in sizes(3, 4, 7):
        fxjit.mark_static(x, 0)
        torch.testing.assert_close(compiled(x), times_rows(x))
    assert compiles() == 3


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_size_marked_unbacked_serves_zero_and_one_too(backend: str) -> None:
    compiled = fxjit.compile(lambda x: x * 2, backend=backend)
    for (x,) in sizes(3, 1, 0, 7):
        fxjit.mark_unbacked(x, 0)
        torch.testing.assert_close(compiled(x), x * 2)
    assert compiles() == 1


def test_a_branch_on_an_unbacked_size_ends_the_graph() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 3 else x

    x = torch.ones(5, 2)
    fxjit.mark_unbacked(x, 0)
    with pytest.raises(Unsupported, match="torch._check"):
        fxjit.compile(fn, backend="eager", fullgraph=True)(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_int_that_varies_becomes_a_symbol(backend: str) -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n + torch.zeros(n).sum()

    assert_same_calls(fxjit.compile(fn, backend=backend), fn, [(torch.ones(2), n) for n in (3, 4, 7, 9, 5)])
    assert compiles() == 2


def test_a_float_that_varies_is_right_each_time() -> None:
    assert_same_calls(
        fxjit.compile(lambda x, n: x * n, backend="eager"), lambda x, n: x * n, [(torch.ones(2), n) for n in (3.5, 4.5)]
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_divisibility_is_guarded(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] // 2, 2) * 2 if x.shape[0] % 2 == 0 else x

    assert_same_calls(fxjit.compile(fn, backend=backend, dynamic=True), fn, [(torch.randn(n),) for n in (4, 6, 8, 5, 7, 10)])
    assert compiles() == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_at_many_sizes(backend: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu().sum()

    compiled = fxjit.compile(fn, backend=backend)
    for n in (3, 5, 8, 2):
        w = torch.randn(4, 4, requires_grad=True)
        other = w.detach().clone().requires_grad_()
        x = torch.randn(n, 4)
        compiled(x, w).backward()
        fn(x, other).backward()
        torch.testing.assert_close(w.grad, other.grad)
    assert compiles() == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_item_as_a_symbol_with_checks_that_hold_at_run_time(backend: str) -> None:
    def fn(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 8)
        return x[:k].sum() + torch.ones(k).sum()

    with config.patch(capture_scalar_outputs=True):
        compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
        assert_same_calls(compiled, fn, [(torch.randn(8), torch.tensor(n)) for n in (3, 0, 1, 5)])
        assert compiles() == 1
        with pytest.raises(RuntimeError):
            compiled(torch.randn(8), torch.tensor(100))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [lambda x: (x > 0).nonzero().sum(0), lambda x: x[x > 0] * 2], ids=["nonzero", "mask"])
def test_results_whose_size_depends_on_data(backend: str, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with config.patch(capture_dynamic_output_shape_ops=True):
        assert_same_calls(fxjit.compile(fn, backend=backend, fullgraph=True), fn, [(torch.randn(9),) for _ in range(4)])
    assert compiles() == 1


SIZED_BY_DATA: dict[str, Callable[[torch.Tensor], object]] = {
    "rows": lambda s: s.reshape(-1).view(-1, 2),
    "dimensions of size 1": lambda s: (s.unsqueeze(1) * s.unsqueeze(0), s.view(-1, 1, 4), s.view(1, -1, 4).expand(3, -1, 4)),
    "einsum": lambda s: (torch.einsum("ij,kj->ik", s, s), torch.einsum("ij,j->i", s, torch.ones(4))),
    "layers": lambda s: F.layer_norm(F.linear(s, torch.ones(3, 4)), (3,)),
    "convolution": lambda s: F.conv1d(s.t().unsqueeze(0), torch.ones(2, 4, 3), padding=1),
    "joined": lambda s: (torch.cat([s, torch.ones(2, 4)]), torch.stack([s, s], 1), s.repeat(2, 1), s.split(2, 1)),
    "sizes": lambda s: (torch.arange(s.shape[0]), s.sum() / s.numel(), torch.zeros(s.shape[0], 3)),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", SIZED_BY_DATA.values(), ids=SIZED_BY_DATA.keys())
def test_operators_on_what_data_sized(backend: str, fn: Callable[[torch.Tensor], object]) -> None:
    def program(x: torch.Tensor) -> object:
        return fn(x[x[:, 0] > 0])

    with config.patch(capture_dynamic_output_shape_ops=True):
        compiled = fxjit.compile(program, backend=backend, fullgraph=True)
        assert_same_calls(compiled, program, [(torch.randn(9, 4),) for _ in range(3)])


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_indices_and_counts_of_unique_values(backend: str) -> None:
    """Their dtype is not the values', though torch 2.11's fake kernels say so."""

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for values, inverse, counts in (
            torch.unique(x, return_inverse=True, return_counts=True),
            torch.unique(x, dim=0, return_inverse=True, return_counts=True),
            torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        ):
            found += [values, inverse * 2, counts / 2, x.new_zeros(2, dtype=counts.dtype)]
        return found

    with config.patch(capture_dynamic_output_shape_ops=True):
        compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
        assert_same_calls(compiled, fn, [(torch.randn(9).round(),) for _ in range(3)])
    assert compiles() == 1


def test_shape_environments_go_with_their_entries() -> None:
    def alive() -> int:
        gc.collect()
        return sum(type(found) is ShapeEnv for found in gc.get_objects())

    counts = []
    for scale in range(5):
        fn = types.FunctionType(times_rows.__code__.replace(co_name=f"times_{scale}"), globals())
        assert_same_calls(fxjit.compile(fn, backend="aot_eager", dynamic=True), fn, sizes(3, 4))
        del fn
        counts.append(alive())
    assert counts[-1] == counts[1], "one more for each compile"


@pytest.mark.compiles
def test_the_hint_of_a_size_that_the_program_needs(caplog: pytest.LogCaptureFixture) -> None:
    """What the hint advises does not raise, also where the size cannot vary."""
    def program(x: torch.Tensor) -> torch.Tensor:
        return sum((row for row in x), torch.zeros(2)) if x.shape[0] > 1 else x

    compiled = fxjit.compile(program, backend="eager")
    fxjit.set_logs(recompiles=True)
    try:
        assert_same_calls(compiled, program, sizes(3, 4))
    finally:
        fxjit.set_logs(recompiles=False)
    assert "fxjit.maybe_mark_dynamic(x, 0)" in caplog.text
    (x,) = sizes(5)[0]
    fxjit.maybe_mark_dynamic(x, 0)
    assert_same_calls(compiled, program, [(x,)])


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.filterwarnings("error:Error detected")
def test_two_sparse_gradients_of_sizes_that_vary(backend: str, dynamic: bool | None) -> None:
    table = torch.nn.Embedding(8, 3, sparse=True)

    def score(words: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return (table(words) * table(others)).sum()

    def gradient(fn: Callable[..., torch.Tensor], count: int) -> torch.Tensor:
        table.zero_grad()
        fn(torch.arange(count), torch.arange(count) + 1).backward()
        assert table.weight.grad is not None and table.weight.grad.is_sparse
        return table.weight.grad.to_dense()

    compiled = fxjit.compile(score, backend=backend, dynamic=dynamic)
    for count in (6, 5, 4, 6):
        torch.testing.assert_close(gradient(compiled, count), gradient(score, count))


def test_a_graph_that_a_backend_cannot_compile_for_sizes_that_vary_is_compiled_for_each(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def at_a_loss_with_symbols(gm: Any, inputs: Any, **options: Any) -> Any:
        if any(isinstance(size, torch.SymInt) for node in gm.graph.find_nodes(op="placeholder")
               for size in getattr(node.meta["example_value"], "shape", ())):
            raise RuntimeError("no such sizes")
        return gm.forward

    monkeypatch.setattr("fxjit.backends.aot.node_by_node.aot_eager", at_a_loss_with_symbols)
    compiled = fxjit.compile(lambda x: x * 2, backend="aot_eager")
    for size in (3, 4, 5, 3):
        assert compiled(torch.ones(size)).tolist() == [2.0] * size
    assert counters["stats"]["unique_graphs"] == 3
    told, = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.endswith("for sizes that vary (RuntimeError: no such sizes): each size is compiled by itself.")
    marked = torch.ones(6)
    fxjit.mark_dynamic(marked, 0)
    fxjit.reset()
    with pytest.raises(BackendCompilerFailed, match="no such sizes"):
        compiled(marked)


def turned(x: torch.Tensor) -> torch.Tensor:
    x.t_()
    return x + 1


def resized(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((x.shape[0],), (1,), x.storage_offset()) * 2


VIEWS: list[Callable[[int], torch.Tensor]] = [
    lambda n: torch.arange(12.0 * n).view(3 * n, 4)[1 : 2 * n], lambda n: torch.arange(12.0 * n).view(4, 3 * n).t()[1:],
    lambda n: torch.arange(12.0 * n).view(3 * n, 4)[1], lambda n: torch.arange(12.0 * n).view(3 * n, 4)[:, 1],
    lambda n: torch.arange(12.0 * n).view(3 * n, 4)[1:][1:n], lambda n: torch.arange(12.0 * n)[n:].unflatten(0, (11, n)),
]  # fmt: skip


@pytest.mark.parametrize("view", range(len(VIEWS)))
@pytest.mark.parametrize("fn", [turned, resized])
def test_what_is_assumed_of_the_memory_of_a_view_is_said_of_its_base(fn: Callable[..., Any], view: int) -> None:
    """How much memory there is, which torch asks where strides change, is a number of the base alone."""
    for dynamic in (True, None):
        fxjit.reset()
        compiled = fxjit.compile(fn, backend="eager", dynamic=dynamic)
        for n in (2, 3, 4, 2):
            x, y = VIEWS[view](n), VIEWS[view](n)
            assert torch.equal(compiled(x), fn(y)) and x.shape == y.shape and x.stride() == y.stride()
        assert torch.equal(compiled(VIEWS[view](3).clone()), fn(VIEWS[view](3).clone()))
