"""Functions of Python's library that a program replaces for a while, as `unittest.mock.patch` does: a compile that fails by one
leaves the frame as it is, and says why; when Python's own is back, the frame is compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import fxjit
from fxjit import config
from fxjit.counters import counters

X = torch.linspace(-1, 1, 12).view(3, 4)
NAMES = (
    *("builtins.open", "builtins.sorted", "copy.copy", "dataclasses.replace", "dataclasses.fields", "os.open", "os.stat"),
    *("os.path.join", "subprocess.Popen", "struct.pack", "time.perf_counter", "time.thread_time", "json.dumps", "math.prod"),
    *("hashlib.sha256", "random.Random", "inspect.signature", "itertools.chain", "functools.partial", "re.compile"),
)


def new_function() -> Callable[[torch.Tensor], torch.Tensor]:
    """With code of its own, which nothing on the disk is of."""
    scope: dict[str, Any] = {}
    exec(f"def fn(x):\n    return (x * 2).relu().sum(-1) + {len(counters['frames'])}", scope)
    return scope["fn"]  # type: ignore[no-any-return]  # by the text


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["raises", "something else"])
def test_the_call_gives_eagers_result_and_the_next_is_compiled(name: str, how: str, backend: str, tmp_path: Path) -> None:
    fn = new_function()
    expected = fn(X)
    with config.patch(cache_dir=str(tmp_path), store_entries=True):
        fxjit.compile(lambda x: x * 3, backend=backend)(X)  # what is imported late is imported
        compiled = fxjit.compile(fn, backend=backend)
        with mock.patch(name, side_effect=RuntimeError("of the program")) if how == "raises" else mock.patch(name):
            during = compiled(X)
        before = counters["frames"]["ok"]
        after = fxjit.compile(fn, backend=backend, dynamic=False)(X)
    torch.testing.assert_close((during, after), (expected, expected))
    assert counters["frames"]["ok"] == before + 1


def test_the_log_says_what_was_replaced(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with config.patch(cache_dir=str(tmp_path)), mock.patch("dataclasses.replace", side_effect=RuntimeError("of the program")):
        with caplog.at_level(logging.INFO, logger="fxjit.skips"):
            fxjit.compile(new_function())(X)
    assert "dataclasses.replace" in caplog.text


def test_what_is_wrong_without_a_replaced_function_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from fxjit import pipeline

    def broken(*_: object) -> object:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(pipeline, "plan_new_code", broken)
    with pytest.raises(fxjit.errors.InternalError, match="ZeroDivisionError"):
        fxjit.compile(new_function(), backend="eager")(X)
