"""Long compiles say on stderr what they are at: one line where that is no terminal, and one that is updated where it is."""

from __future__ import annotations

import contextlib
import io
import math
import re
import sys
import warnings

import pytest
import torch

import fxjit
from fxjit import config, progress


class Terminal(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@contextlib.contextmanager
def stderr(monkeypatch, terminal):
    """What is written to stderr while each compile is long from its first microsecond on."""
    stream = Terminal(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    with config.patch(progress=1e-9):
        yield stream


def inner(x):
    return x.sin() * 2


def long_one(x):
    return inner(x).sum(-1) + inner(x).exp().sum(-1)


@pytest.mark.compiles
def test_one_line_that_says_what_is_compiled(monkeypatch):
    with stderr(monkeypatch, terminal=False) as said:
        fxjit.compile(long_one)(torch.randn(40, 30))
    lines = said.getvalue().splitlines()
    frame = [line for line in lines if "long_one" in line]
    assert len(frame) == 1
    where = re.escape(f"{__file__}:{long_one.__code__.co_firstlineno}")
    assert re.fullmatch(rf"fxjit: compiling long_one \({where}\) for \d+ s: [a-z]+.* \(FXJIT_PROGRESS=0.*\)", frame[0])
    assert "\x1b" not in said.getvalue()


@pytest.mark.compiles
def test_a_terminal_sees_it_updated_and_then_gone(monkeypatch):
    with stderr(monkeypatch, terminal=True) as said:
        fxjit.compile(long_one)(torch.randn(41, 30))
    text = said.getvalue()
    assert "\n" not in text and text.endswith("\r\x1b[K")
    shown = [line for line in text.split("\r\x1b[K") if line]
    stages = [line.partition(" s: ")[2] for line in shown]
    assert any(stage.startswith("trace") for stage in stages)
    assert any(stage.startswith("backend, graph 1") for stage in stages)
    assert any(re.search(r"their compiler, (graph 1, )?\d+ of [1-9]\d* kernels", stage) for stage in stages)


def test_the_setting_turns_it_off(monkeypatch):
    with stderr(monkeypatch, terminal=False) as said:
        with config.patch(progress=0):
            fxjit.compile(long_one)(torch.randn(42, 30))
    assert not said.getvalue()


def test_a_short_compile_says_nothing(monkeypatch):
    with stderr(monkeypatch, terminal=False) as said:
        with config.patch(progress=3600):
            fxjit.compile(long_one)(torch.randn(43, 30))
    assert not said.getvalue()


def test_a_closed_stderr_is_no_error(monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with config.patch(progress=1e-9):
        assert fxjit.compile(inner)(torch.ones(2)).shape == (2,)


ROUNDINGS = (int, float, abs, round, bool, hash, math.floor, math.ceil)
#: What a function is compiled for again and again, the value it is given there, and what the guard says of both.
VALUES = {
    "text": (lambda x, value: x * len(value), "mode {}".format, "expected 'mode", "found 'mode 3'"),
    "a tuple": (lambda x, value: x * value[0][0], lambda number: ((number, "a"),), "expected ", "found 3"),
    "a function": (lambda x, value: x * value(2), lambda number: ROUNDINGS[number], "one particular object", "round"),
    "a size": (lambda x, value: x * value, lambda number: torch.ones(number + 1, 2), "size(0)", "maybe_mark_dynamic"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_function_that_is_compiled_again_and_again_is_told_of_once(caplog, kind):
    changing, value, expected, found = VALUES[kind]
    compiled = fxjit.compile(changing, backend="eager", dynamic=False)
    with warnings.catch_warnings(), config.patch(recompile_limit=3):
        warnings.simplefilter("error")  # under which the program runs on
        for number in range(8):
            x = torch.ones(2)
            assert torch.equal(compiled(x, value(number)), changing(x, value(number)))
    (told,) = [record.getMessage() for record in caplog.records if record.name == "fxjit.recompiles"]
    assert "<lambda>" in told and f"{__file__}:" in told and "3 times (config.recompile_limit)" in told
    assert expected in told and found in told, "the guard, with the values then and now"
    assert "passed as a tensor" in told and "raise fxjit.config.recompile_limit" in told, "what helps"


def test_the_error_at_the_limit_says_what_helps():
    compiled = fxjit.compile(lambda x, flag: x * len(flag), backend="eager", fullgraph=True)
    with config.patch(recompile_limit=2), pytest.raises(fxjit.errors.RecompileLimitExceeded, match="raise fxjit.config.rec"):
        for number in range(4):
            compiled(torch.ones(2), f"flag {number}")
