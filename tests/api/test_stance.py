"""What compiled functions do at a call can be changed for the whole process."""

from __future__ import annotations

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter


@pytest.fixture
def counter():
    return CompileCounter()


@pytest.fixture
def f(counter):
    return fxjit.compile(lambda x: x + 1, backend=counter)


A, B = torch.ones(2), torch.ones(2, dtype=torch.float64)


def test_force_eager_uses_no_entries(f, counter):
    with fxjit.set_stance("force_eager"):
        f(A)
    assert counter.frame_count == 0
    f(A)
    assert counter.frame_count == 1


def test_as_a_function_it_stays(f, counter):
    fxjit.set_stance("force_eager")
    f(A)
    fxjit.set_stance("default")
    assert counter.frame_count == 0


@pytest.mark.parametrize("name", ["fxjit's", "torch's", "torch's, as a manager"])
def test_a_call_in_compiled_code_breaks_the_graph_and_holds_from_there(f, counter, name):
    fxjit.install()

    def program(x):
        y = x * 2
        if name == "fxjit's":
            fxjit.set_stance("force_eager")
        elif name == "torch's":
            torch.compiler.set_stance("force_eager")
        else:
            with torch.compiler.set_stance("force_eager"):
                return f(y)
        return f(y)

    try:
        with pytest.raises(fxjit.errors.Unsupported):
            fxjit.compile(program, backend="eager", fullgraph=True)(A)
        fxjit.reset()
        assert fxjit.stance.current().name == "default"
        assert torch.equal(fxjit.compile(program, backend="eager")(A), A * 3)
        assert counter.frame_count == 0 and sum(fxjit.counters["graph_break"].values()) == 1
        assert fxjit.stance.current().name == ("default" if "manager" in name else "force_eager")
    finally:
        fxjit.uninstall()


def test_as_a_decorator(f, counter):
    @fxjit.set_stance("force_eager")
    def call():
        return f(A)

    call()
    assert counter.frame_count == 0
    f(A)
    assert counter.frame_count == 1


def test_eager_on_recompile(f, counter):
    f(A)
    with fxjit.set_stance("eager_on_recompile"):
        f(A)
        assert torch.equal(f(B), B + 1)
    assert counter.frame_count == 1


def test_fail_on_recompile(f, counter):
    f(A)
    with fxjit.set_stance("fail_on_recompile"):
        f(A)
        with pytest.raises(fxjit.errors.RecompileError, match="fail_on_recompile"):
            f(B)


def test_eager_then_compile(f, counter):
    with fxjit.set_stance("eager_then_compile"):
        f(A)
        assert counter.frame_count == 0
        f(A)
        assert counter.frame_count == 1


def test_eager_then_compile_knows_what_the_first_call_was_given():
    """A size or a number that the second call has otherwise varies from the start: one compile, not two."""
    counter = CompileCounter()

    def f(x, parts, options, n):
        return x * n + parts[0].sum() + options["w"].sum()

    compiled = fxjit.compile(f, backend=counter)
    with fxjit.set_stance("eager_then_compile"):
        for size in (3, 5, 8):
            given = torch.ones(size, 2), [torch.ones(size + 1)], {"w": torch.ones(size + 2)}, size
            assert torch.equal(compiled(*given), f(*given))
    assert counter.frame_count == 1


def test_the_setting_disable_is_a_stance_too(f, counter):
    with fxjit.config.patch(disable=True):
        f(A)
    assert counter.frame_count == 0


def test_error_on_recompile_and_the_limit(f, counter):
    f(A)
    with fxjit.config.patch(error_on_recompile=True), pytest.raises(fxjit.errors.RecompileError, match="dtype"):
        f(B)
    with fxjit.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        with pytest.raises(fxjit.errors.RecompileLimitExceeded, match="recompile_limit"):
            f(B)
    with fxjit.config.patch(recompile_limit=1):
        assert torch.equal(f(B), B + 1)
    assert counter.frame_count == 1 and sum(fxjit.counters["skip"].values()) == 1
