"""Limits of recompiling, what the log says, entries that go with what they guard, and many threads at once."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import fxjit
from fxjit import _C, config
from fxjit.counters import counters
from fxjit.errors import RecompileError, RecompileLimitExceeded
from fxjit.frontend import entries


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxjit.reset()


def label(x: torch.Tensor, name: str) -> torch.Tensor:
    return x * len(name)


def test_at_the_limit_new_cases_run_eagerly_and_known_ones_compiled() -> None:
    x = torch.ones(2)
    with config.patch(recompile_limit=3):
        compiled = fxjit.compile(label, backend="eager")
        for n in (1, 2, 3, 4, 5, 1, 2):
            torch.testing.assert_close(compiled(x, "a" * n), x * n)
    assert counters["frames"]["ok"] == 3
    assert counters["skip"]["Recompile limit reached"] == 1


def test_the_limit_is_told_once_for_functions_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    """Each is another function with the same code; what the entries are for is garbage that is not collected yet."""
    x, boxes = torch.ones(2), []
    with config.patch(recompile_limit=3), caplog.at_level(logging.WARNING):
        for n in range(8):
            boxes.append(type("Box", (), {"value": n}))

            @fxjit.compile(backend="eager")
            def times(x: torch.Tensor, box: Any) -> torch.Tensor:
                return x * box.value

            torch.testing.assert_close(times(x, boxes[-1]()), x * n)
    assert caplog.text.count("(config.recompile_limit)") == 1


def looped(x: torch.Tensor, n: int) -> torch.Tensor:
    for step in range(n):
        x = x + step
    return x


def looked_up(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * (10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120)[n]


def written_out(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * len(str(n * 99))


def looped_over_rows(x: torch.Tensor, n: int) -> torch.Tensor:
    rows = torch.ones(n, 2)
    return x + sum(row.sum() for row in rows)


def branching(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * 2 if n % 12 == 7 else x * 3 if n % 5 == 2 else x + n


#: Programs of a number that varies, and how many compiles they may take: where it is looked at as a number, one a value.
SPECIALISING = {looped: 8, looked_up: 8, written_out: 8, looped_over_rows: 8, branching: 6}


@pytest.mark.parametrize("program", SPECIALISING, ids=lambda program: program.__name__)
def test_numbers_that_keep_specialising_are_not_compiled_for_ever(program: Any) -> None:
    x = torch.ones(2)
    compiled = fxjit.compile(program, backend="eager")
    for n in (*range(12), *range(12)):
        torch.testing.assert_close(compiled(x, n), program(x, n))
    assert counters["frames"]["ok"] <= SPECIALISING[program] <= config.recompile_limit


def test_many_numbers_that_vary_share_an_entry_and_their_guards_do_not_pile_up() -> None:
    def program(x: torch.Tensor, numbers: list[int]) -> torch.Tensor:
        return x * sum(numbers) + len(numbers)

    x = torch.ones(2)
    compiled = fxjit.compile(program, backend="eager")
    for start in (2, 300, 7, 4000):
        numbers = list(range(start, start + 200))
        torch.testing.assert_close(compiled(x, numbers), program(x, numbers))
    assert counters["frames"]["ok"] == 2
    (newest, *_) = (entry for key in _C.keys(program.__code__) for entry in _C.entries(program.__code__, key))
    assert len(newest.tree.guards) < 3 * 200 + 50  # for each: its type, and that it is neither 0 nor 1


class Deep(torch.nn.Module):
    """Each depth is another program of the same code."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_modules_that_are_compiled_one_by_one_do_not_use_up_one_anothers_limit() -> None:
    models = [Deep(depth) for depth in range(1, 6)]
    x = torch.ones(3)
    with fxjit.config.patch(recompile_limit=2):
        compiled = []
        for model in models:  # some are compiled when the entries of those before are there
            compiled.append(fxjit.compile(model, backend="eager"))
            for _ in range(2):
                for fast, plain in zip(compiled, models, strict=False):
                    torch.testing.assert_close(fast(x), plain(x))
    assert counters["frames"]["ok"] == len(models)
    assert not counters["skip"]


def test_a_module_that_changes_for_ever_has_a_limit_beside_those_that_are_gone() -> None:
    x = torch.ones(3)
    with fxjit.config.patch(recompile_limit=2):
        for depth in (1, 2):
            fxjit.compile(Deep(depth), backend="eager")(x)
        gc.collect()
        counters.clear()
        changing = Deep(1)
        compiled = fxjit.compile(changing, backend="eager")
        for _ in range(6):
            torch.testing.assert_close(compiled(x), changing(x))
            changing.layers.append(torch.nn.Linear(3, 3))
    assert counters["skip"]["Recompile limit reached"] == 1


def test_the_accumulated_limit_counts_all_compiles_of_a_function() -> None:
    x = torch.ones(2)
    with config.patch(accumulated_recompile_limit=2):
        for _ in range(3):
            compiled = fxjit.compile(label, backend=lambda gm, inputs: gm)
            for n in (1, 2):
                torch.testing.assert_close(compiled(x, "a" * n), x * n)
    assert entries.compiles(label.__code__) == 2
    assert counters["skip"]["Recompile limit reached"] >= 1


def test_an_error_names_the_accumulated_limit() -> None:
    with config.patch(accumulated_recompile_limit=1, fail_on_recompile_limit_hit=True):
        compiled = fxjit.compile(label, backend="eager")
        compiled(torch.ones(2), "a")
        with pytest.raises(RecompileLimitExceeded, match=r"1 times \(config.accumulated_recompile_limit\).*found 'bb'"):
            compiled(torch.ones(2), "bb")


def test_the_limit_can_be_an_error() -> None:
    x = torch.ones(2)
    with config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        compiled = fxjit.compile(label, backend="eager")
        compiled(x, "a")
        compiled(x, "aa")
        with pytest.raises(RecompileLimitExceeded, match=r"label \(.*\) was compiled 2 times"):
            compiled(x, "aaa")


def test_every_recompile_can_be_an_error() -> None:
    x = torch.ones(2)
    compiled = fxjit.compile(label, backend="eager")
    compiled(x, "a")
    with config.patch(error_on_recompile=True):
        compiled(x, "a")
        with pytest.raises(RecompileError, match="name: expected 'a', found 'bb'"):
            compiled(x, "bb")


@pytest.mark.compiles
def test_the_log_says_what_differed_from_what_to_what_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    compiled = fxjit.compile(lambda x: x * 2, backend="eager")
    fxjit.set_logs(recompiles=True)
    try:
        with caplog.at_level(logging.DEBUG):
            compiled(torch.ones(3, 2))
            compiled(torch.ones(4, 2))
    finally:
        fxjit.set_logs(recompiles=False)
    text = caplog.text
    assert "x: expected size(0) 3, found 4" in text and "mark_dynamic(x, 0)" in text


@pytest.mark.compiles
def test_the_log_names_the_entry_that_is_nearest(caplog: pytest.LogCaptureFixture) -> None:
    """Of the entries for two modes and two dtypes: the one that fails in a single guard, with the value then and now."""

    def f(x: Any, mode: str, scale: str) -> Any:
        return x * len(mode) if scale == "one" else x

    compiled = fxjit.compile(f, backend="eager")
    fxjit.set_logs(recompiles=True)
    try:
        with caplog.at_level(logging.DEBUG):
            compiled(torch.ones(3), "a", "one")
            compiled(torch.ones(3, dtype=torch.int32), "bb", "two")
            compiled(torch.ones(3, dtype=torch.int64), "bbb", "three")
            caplog.clear()
            compiled(torch.ones(3), "aaaa", "one")
    finally:
        fxjit.set_logs(recompiles=False)
    assert ": mode: expected 'a', found 'aaaa'" in caplog.text


def test_the_last_of_fifty_entries_is_found() -> None:
    x = torch.ones(2)
    with config.patch(recompile_limit=100):
        compiled = fxjit.compile(label, backend="eager")
        for n in range(1, 51):
            compiled(x, "a" * n)
        for n in (*range(1, 51), *range(50, 0, -1)):
            torch.testing.assert_close(compiled(x, "a" * n), x * n)
    assert counters["frames"]["ok"] == 50


def test_nothing_of_ours_keeps_a_guarded_module_alive() -> None:
    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        return net(x)  # type: ignore[no-any-return]

    compiled = fxjit.compile(run, backend="eager")
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    for _ in range(10):
        compiled(net, torch.ones(4))
    died = weakref.ref(net)
    del net
    gc.collect()
    assert died() is None


def _hammer(compiled: Any, module: torch.nn.Module, start: threading.Barrier, wrong: list[str], calls: int, seed: int) -> None:
    start.wait()
    for i in range(calls):
        size = 2 + (i + seed) % 3
        x = torch.full((size, 4), float(seed))
        with torch.no_grad():
            got = compiled(x, "a" * (1 + i % 4))
            expected = module(x) * (1 + i % 4)
        if not torch.equal(got, expected):
            wrong.append(f"thread {seed}, call {i}")
            return


def test_eight_threads_compile_call_and_recompile() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def run(x: torch.Tensor, name: str) -> torch.Tensor:
        return module(x) * len(name)  # type: ignore[no-any-return]

    compiled = fxjit.compile(run, backend="eager")
    start, wrong = threading.Barrier(9), list[str]()
    threads = [threading.Thread(target=_hammer, args=(compiled, module, start, wrong, 3000, seed)) for seed in range(8)]
    for thread in threads:
        thread.start()
    start.wait()
    for step in range(200):  # versions of the module's dicts move while others check them
        module.unrelated = step
        if step % 50 == 0:
            entries.reset()
    for thread in threads:
        thread.join()
    assert not wrong


def test_objects_that_were_written_stay_apart():
    class Box:
        n = 0

    def lists(x, a, b):
        a.append(1)
        b.append(2)
        return x + len(a)

    def dicts(x, a, b):
        a["k"] = 1
        return x + len(b)

    def objects(x, a, b):
        a.n = a.n + 1
        return x + b.n

    for fn, kind in ((lists, list), (dicts, dict), (objects, Box)):
        compiled = fxjit.compile(fn, backend="eager")
        one = kind()
        for args in ((kind(), kind()), (one, one), (kind(), kind())):
            fresh = [kind() for _ in args] if args[0] is not args[1] else [kind()] * 2
            assert torch.equal(compiled(torch.ones(1), *args), fn(torch.ones(1), *fresh))


def _sharing(makes: Sequence[Callable[[], torch.nn.Module]]) -> int:
    """How often modules that live one after the other are compiled, in two sizes."""
    counters.clear()
    for make in makes:
        module = make()
        compiled = fxjit.compile(module, backend="eager")
        for rows in (4, 3, 4):
            x = torch.randn(rows, 3)
            args = (x, torch.arange(rows) % 3) if isinstance(module, torch.nn.CrossEntropyLoss) else (x,)
            assert torch.equal(compiled(*args), module(*args))
        gone = weakref.ref(module)
        del module, compiled
        gc.collect()
        assert gone() is None, "a module outlives the program's own references"
    return counters["frames"]["ok"]


@pytest.mark.parametrize("make", [
    torch.nn.CrossEntropyLoss, lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)),
])
def test_a_module_of_torchs_finds_the_entries_of_one_that_is_gone(make: Callable[[], torch.nn.Module]) -> None:
    assert _sharing([make] * 4) == 2


def _activations(*kinds: str) -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.GELU(kind) for kind in kinds])


def test_modules_with_other_settings_have_a_limit_of_their_own() -> None:
    settings = [functools.partial(_activations, *kinds) for kinds in itertools.product(("none", "tanh"), repeat=4)][:12]
    assert _sharing(settings) >= len(settings) > config.recompile_limit
    assert not counters["skip"]


class _Scaled(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def test_of_classes_of_the_program_nothing_is_kept() -> None:
    class Scaled(_Scaled):
        pass

    compiled = fxjit.compile(torch.nn.Sequential(Scaled(3, 4)), backend="eager")
    compiled(torch.ones(2, 3))
    gone = weakref.ref(Scaled)
    del Scaled, compiled
    gc.collect()
    assert gone() is None
