"""Which failures are errors and which are skips: the rows of docs/errors.md."""

from __future__ import annotations

import logging
import pickle
import re
import threading
import traceback
import warnings
from pathlib import Path

import pytest
import torch

import fxjit
from fxjit import errors
from fxjit.errors import (
    AccuracyError,
    BackendCompilerFailed,
    ConfigError,
    InternalError,
    InvalidArgument,
    RecompileError,
    RecompileLimitExceeded,
    Unsupported,
)

X = torch.ones(3)


@pytest.fixture(autouse=True)
def fresh():
    fxjit.reset()
    fxjit.counters.clear()


def crashing(gm, inputs):
    raise ValueError("the compiler crashed")


def add_one(x):
    return x + 1


def breaks_in_a_loop(x):
    for _ in range(2):
        x = x + 1
        fxjit.graph_break()
    return x


def test_a_crash_of_the_backend_is_an_error_with_its_cause():
    with pytest.raises(BackendCompilerFailed, match="the compiler crashed") as caught:
        fxjit.compile(add_one, backend=crashing)(X)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.backend_name == "crashing"
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), BackendCompilerFailed)


def test_a_backend_that_returns_no_callable_is_an_error():
    with pytest.raises(BackendCompilerFailed, match="must return a callable"):
        fxjit.compile(add_one, backend=lambda gm, inputs: 3)(X)


def test_a_suppressed_crash_is_a_skip_that_is_tried_again_at_growing_intervals(caplog):
    attempts = []

    def backend(gm, inputs):
        attempts.append(calls)
        raise ValueError("the compiler crashed")

    compiled = fxjit.compile(add_one, backend=backend)
    fxjit.set_logs(skips=True)
    try:
        with fxjit.config.patch(suppress_errors=True), caplog.at_level(logging.INFO):
            for calls in range(60):
                assert torch.equal(compiled(X), X + 1)
    finally:
        fxjit.set_logs()
    assert attempts == [0, 9, 26, 59], "after 8 calls, then after 16, then after 32"
    assert caplog.text.count("The compiler failed") == 1, "said once"
    assert "the compiler crashed" in caplog.text and "tried again after 8 calls" in caplog.text


FAILURES = {
    "CppCompileError": lambda: errors.CppCompileError("no such thing"),
    "TritonCompileError": lambda: errors.TritonCompileError("no such thing"),
    "InternalError": lambda: errors.InternalError("no such thing"),
    "BackendCompilerFailed": lambda: errors.BackendCompilerFailed("mine", ValueError("no such thing")),
    "an error of the backend's own": lambda: ValueError("no such thing"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_every_failure_of_a_compiler_is_suppressed_with_one_warning(failure):
    def backend(gm, inputs):
        raise FAILURES[failure]()

    with pytest.raises(errors.CompilerFailure, match="no such thing"):
        fxjit.compile(add_one, backend=backend)(X)
    fxjit.reset()
    compiled = fxjit.compile(add_one, backend=backend)
    with fxjit.config.patch(suppress_errors=True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(30):
            assert torch.equal(compiled(X), X + 1)
    (said,) = [str(each.message) for each in caught]
    assert "add_one" in said and "no such thing" in said and __file__ in said


def test_which_errors_are_failures_of_a_compiler():
    """The others are answers to what the user asked for or did; whoever adds an error says which it is."""
    every = {each.__name__ for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.FxjitError)}
    failures = {name for name in every if issubclass(getattr(errors, name), errors.CompilerFailure)}
    assert failures == {"CompilerFailure", "BackendCompilerFailed", "CppCompileError", "TritonCompileError", "InternalError"}
    assert every - failures == {
        "FxjitError", "InvalidArgument", "ConfigError", "UnknownSetting", "InvalidBackend", "ExplainedError", "Unsupported",
        "SkipFrame", "RecompileError", "RecompileLimitExceeded", "ConstraintViolationError", "AccuracyError",
        "ArtifactError"}


def test_a_cpp_compiler_that_is_required_and_fails_is_suppressed_too(tmp_path):
    with fxjit.config.patch({"cpp.compiler": str(tmp_path / "none"), "cpp.require": True, "small_graphs_as_captured": False}):
        with pytest.raises(errors.CppCompileError, match="There is no C"):
            fxjit.compile(add_one)(X)
        fxjit.reset()
        said = pytest.warns(RuntimeWarning, match="add_one.*CppCompileError.*There is no C")
        with fxjit.config.patch(suppress_errors=True), said:
            assert torch.equal(fxjit.compile(add_one)(X), X + 1)


def test_the_warning_has_what_the_compiler_said(tmp_path):
    """Behind lines that only say where."""
    path = tmp_path / "odd++"
    path.write_text("#!/bin/sh\ncase $1 in --version) echo odd 1; exit;; esac\n"
                    "printf 'In file x:\\n\\nIn function f:\\n3:5: error: out of sorts\\nmore\\n'; exit 1\n")
    path.chmod(0o755)
    settings = {"cpp.compiler": str(path), "cpp.require": True, "small_graphs_as_captured": False, "suppress_errors": True}
    said = pytest.warns(RuntimeWarning, match=r"add_one.*exit status 1\): In file x: In function f: 3:5: error: out of sorts$")
    with fxjit.config.patch(settings), said:
        assert torch.equal(fxjit.compile(add_one)(X), X + 1)


@pytest.mark.parametrize("what", ["plain", "fullgraph", "dynamic", "breaking"])
def test_a_compiler_that_fails_the_second_time(what, tmp_path):
    """For another graph of the function, or for the backward graph."""
    path, count = tmp_path / "odd++", tmp_path / "count"
    path.write_text("#!/bin/sh\ncase $1 in --version) echo odd 1; exit;; esac\n"
                    f"echo >> {count}; [ $(wc -l < {count}) -ge 2 ] && exit 1; exec g++ \"$@\"\n")
    path.chmod(0o755)

    def fn(x):
        x = (x.exp() * 3 + 1).relu()
        if what == "breaking":
            fxjit.graph_break()
        return (x.sin() * 2 + x).tanh()

    settings = {"cpp.compiler": str(path), "cpp.require": True, "small_graphs_as_captured": False, "suppress_errors": True,
                "cache_dir": str(tmp_path)}
    kinds = {"fullgraph": {"fullgraph": True}, "dynamic": {"dynamic": True}}
    with fxjit.config.patch(settings), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = fxjit.compile(fn, **kinds.get(what, {}))
        for _ in range(3):
            x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
            results = compiled(x), fn(x)
            torch.testing.assert_close(*results)
            torch.testing.assert_close(*(torch.autograd.grad(each.sum(), x)[0] for each in results))
    assert len(caught) <= 1 and all("exit status 1" in str(each.message) for each in caught)


def test_our_own_mistakes_are_errors_that_name_the_place(monkeypatch):
    from fxjit import pipeline

    def mistake(*args, **kwargs):
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(pipeline, "trace_frame", mistake)
    with pytest.raises(InternalError, match="a mistake of ours") as caught:
        fxjit.compile(add_one, backend="eager")(X)
    assert "add_one" in str(caught.value) and __file__ in str(caught.value)
    assert "suppress_errors" in str(caught.value)
    with fxjit.config.patch(suppress_errors=True):
        assert torch.equal(fxjit.compile(add_one, backend="eager")(X), X + 1)


@pytest.mark.parametrize("suppress", [False, True])
def test_errors_of_the_user_surface_as_in_eager(suppress):
    def inner(x, log):
        y = x * 2
        log.append(1)
        if len(log) > 5:
            return y
        raise KeyError("mine")

    def in_a_block(x, log):
        with torch.no_grad():
            log.append("in")
            return inner(x, log)

    def wrong_shape(x, log):
        log.append(2)
        return (x + 1) @ torch.ones(7, 7)

    def after_a_break(x, log):
        fxjit.graph_break()
        return inner(x, log)

    def divides(x, log):
        return x / (len(log) // 0)

    for fn in (inner, in_a_block, wrong_shape, after_a_break, divides):
        seen = []
        for each in (fn, fxjit.compile(fn, backend="eager")):
            log: list[object] = []
            with fxjit.config.patch(suppress_errors=suppress), pytest.raises(Exception) as caught:
                each(X, log)
            frames = [(frame.name, frame.lineno) for frame in traceback.extract_tb(caught.value.__traceback__)][1:]
            seen.append((type(caught.value), str(caught.value), frames, log, torch.is_grad_enabled()))
        assert seen[0] == seen[1]


def test_interrupts_go_through():
    def interrupted(gm, inputs):
        raise KeyboardInterrupt

    with fxjit.config.patch(suppress_errors=True), pytest.raises(KeyboardInterrupt):
        fxjit.compile(add_one, backend=interrupted)(X)


def test_breaks_and_skips_are_errors_in_fullgraph():
    with pytest.raises(Unsupported) as caught:
        fxjit.compile(breaks_in_a_loop, backend="eager", fullgraph=True)(X)
    assert caught.value.reason_id == "user-graph-break"
    assert [frame.name for frame in caught.value.user_stack] == ["breaks_in_a_loop"]
    assert torch.equal(fxjit.compile(breaks_in_a_loop, backend="eager")(X), X + 2)
    assert fxjit.counters["skip"]["Graph break in a loop"] == 1


def test_the_limit_of_recompiles_is_a_skip_or_an_error():
    def fn(x, text):
        return x + len(text)

    compiled = fxjit.compile(fn, backend="eager")
    with fxjit.config.patch(recompile_limit=1):
        compiled(X, "a")
        assert torch.equal(compiled(X, "bb"), X + 2)
        full = fxjit.compile(fn, backend="eager", fullgraph=True)
        full(X, "a")
        with pytest.raises(RecompileLimitExceeded):
            full(X, "bb")


def test_our_own_mistakes_name_the_users_line(monkeypatch):
    from fxjit.frontend.interp import dispatch

    def inner(x):
        y = x * 2
        return [y]  # the line of the mistake

    def outer(x):
        x = x + 1
        return inner(x)

    def mistake(machine, instruction):
        raise KeyError("a mistake of ours")

    monkeypatch.setitem(dispatch.HANDLERS, "BUILD_LIST", mistake)
    with pytest.raises(InternalError, match="a mistake of ours") as caught:
        fxjit.compile(outer, backend="eager")(X)
    line = inner.__code__.co_firstlineno + 2
    assert f"({__file__}:{outer.__code__.co_firstlineno + 2}), in inner ({__file__}:{line})" in str(caught.value)


def test_a_guard_that_fails_on_its_own_frame_is_our_mistake(monkeypatch):
    from fxjit.guards import kinds

    monkeypatch.setattr(kinds.ConstIs, "ops", property(lambda self: (("python", lambda: False),)))
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # with others, one of them may have changed something
    program = lambda x, n: x + len(n)  # noqa: E731
    with pytest.raises(InternalError, match="does not hold on the frame it was made from"):
        fxjit.compile(program, backend="eager")(X, "text")
    fxjit.reset()
    with fxjit.config.patch(suppress_errors=True):
        assert torch.equal(fxjit.compile(program, backend="eager")(X, "text"), X + 4)
    fxjit.reset()
    with fxjit.config.patch(verify_guards=False):
        assert torch.equal(fxjit.compile(program, backend="eager")(X, "text"), X + 4)


@pytest.mark.compiles
def test_a_compile_that_is_forbidden_is_an_error():
    def fn(x, text):
        return x + len(text)

    compiled = fxjit.compile(fn, backend="eager")
    compiled(X, "a")
    with fxjit.config.patch(error_on_recompile=True):
        assert torch.equal(compiled(X, "a"), X + 1)
        with pytest.raises(RecompileError, match=r"fn \(.*\.py:\d+\) would be compiled again: .*text"):
            compiled(X, "bb")
    with fxjit.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(X, "a"), X + 1)
        with pytest.raises(RecompileError, match="the stance is 'fail_on_recompile'"):
            compiled(X, "bb")
    assert torch.equal(compiled(X, "bb"), X + 2)


def test_results_that_are_not_eagers_are_an_error_when_asked():
    def wrong(gm, inputs):
        return lambda *args: tuple(out + 1 for out in gm(*args))

    assert torch.equal(fxjit.compile(add_one, backend=wrong)(X), X + 2)
    fxjit.reset()
    with fxjit.config.patch(verify_correctness=True):
        with pytest.raises(AccuracyError):
            fxjit.compile(add_one, backend=wrong)(X)
        assert torch.equal(fxjit.compile(add_one, backend="eager")(X), X + 1)


@pytest.mark.parametrize("call", [
    lambda: fxjit.compile(3), lambda: fxjit.compile(add_one, fullgraph="yes"), lambda: fxjit.set_stance(3),
    lambda: fxjit.mark_dynamic(X, "first"), lambda: fxjit.mark_dynamic("no tensor", 0),
])  # fmt: skip
def test_arguments_of_a_wrong_kind_are_errors_where_they_are_given(call):
    with pytest.raises(InvalidArgument):
        call()


def test_torchs_stance_is_torchs_until_fxjit_is_installed():
    compiled = fxjit.compile(breaks_nowhere, backend="eager")
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(X), X * 2)
    fxjit.install()
    try:
        with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RecompileError):
            compiled(X.double())
    finally:
        fxjit.uninstall()


def breaks_nowhere(x):
    return x * 2


def test_a_disabled_module_is_named_with_the_reason_that_was_given():
    class Doubles(torch.nn.Module):
        def forward(self, x):
            return x * 2

    @torch.compiler.disable(reason="of the class")
    class Marked(Doubles):
        pass

    for module, reason in (
        (torch.compiler.disable(Doubles(), reason="mine"), "mine"),
        (fxjit.disable(Doubles(), reason="mine"), "mine"),
        (torch.compiler.disable(Doubles(), recursive=False, reason="not inside"), "not inside"),
        (Marked(), "of the class"),
    ):
        fxjit.reset()
        (broke,) = fxjit.explain(lambda x, module=module: module(x + 1) + 1)(X).break_reasons
        assert "`torch.compiler.disable()`d function" in broke.reason
        assert f"(reason: {reason})" in broke.explanation
        assert f".{'Marked' if isinstance(module, Marked) else 'Doubles'}`" in broke.explanation.replace(" since", "` since")


def test_settings_that_do_not_exist_are_errors_at_once():
    with pytest.raises(ConfigError):
        fxjit.compile(add_one, backend="no-such-backend")
    with pytest.raises(ConfigError):
        fxjit.config.patch(no_such_setting=1).__enter__()


class Inner(torch.nn.Module):
    def forward(self, x):
        fxjit.graph_break("inside")
        return x + 1


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(Inner())

    def forward(self, x):
        return self.layers(x) * 2


def test_reports_show_the_users_frames_once_a_place(caplog):
    fxjit.set_logs(graph_breaks=True)
    try:
        with caplog.at_level(logging.INFO):
            compiled = fxjit.compile(Outer(), backend="eager")
            for size in (1, 2, 3):
                compiled(torch.ones((2,) * size))
    finally:
        fxjit.set_logs()
    assert caplog.text.count("Graph break in user code") == 1
    assert "container.py" not in caplog.text and "module.py" not in caplog.text
    assert "self.layers(x) * 2" in caplog.text and 'fxjit.graph_break("inside")' in caplog.text


def test_every_report_names_its_page(caplog):
    """A break's, a skip's and an error's: the code, and where it is explained."""
    def prints(x):
        print(end="")
        return breaks_in_a_loop(x)

    fxjit.set_logs(graph_breaks=True, skips=True)
    try:
        with caplog.at_level(logging.INFO):
            fxjit.compile(prints, backend="eager")(X)
        with pytest.raises(Unsupported) as caught:
            fxjit.compile(prints, backend="eager", fullgraph=True)(X)
    finally:
        fxjit.set_logs()
    said = caplog.text + str(caught.value)
    codes = re.findall(r"^  Code: (\S+) \(docs/reasons\.md#(\S+)\)$", said, re.MULTILINE)
    assert {code for code, _ in codes} == {"call-print", "user-graph-break", "skip-loop"}
    pages = Path(__file__).parents[2].joinpath("docs", "reasons.md").read_text(encoding="utf-8").split("\n### ")[1:]
    assert all(code == place and any(page.startswith(f"{code}\n") for page in pages) for code, place in codes)
