"""Each wrong argument gets an error that says what was wrong and what there is instead."""

from __future__ import annotations

import inspect
import sys
import warnings

import pytest
import torch

import fxjit
from fxjit.backends import registry
from fxjit.errors import ConfigError, FxjitError, InvalidArgument, InvalidBackend


def f(x):
    return x + 1


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: fxjit.compile(5), InvalidArgument, "expected something callable or an nn.Module, not 5"),
        (lambda: fxjit.compile(f, backend="nativ"), InvalidBackend, "Did you mean 'native'"),
        (lambda: fxjit.compile(backend="no such"), InvalidBackend, "No backend is called 'no such'"),
        (lambda: fxjit.compile(f, backend=3), InvalidArgument, "backend must be a name or a callable"),
        (lambda: fxjit.compile(f, mode="fast"), ConfigError, "There are: default, max-autotune"),
        (lambda: fxjit.compile(f, mode="reduce-overheads"), ConfigError, "Did you mean 'reduce-overhead'"),
        (lambda: fxjit.compile(f, mode=3), InvalidArgument, "mode must be a name"),
        (lambda: fxjit.compile(f, options={"cpp.fastmath": True}), ConfigError, "Did you mean 'cpp.fast_math'"),
        (lambda: fxjit.compile(f, options={"cpp.fast_math": 1}), ConfigError, "must be bool, not int"),
        (lambda: fxjit.compile(f, options=["a"]), InvalidArgument, "options must be a dict"),
        (lambda: fxjit.compile(f, backend="eager", options={"a": 1}), ConfigError, "'eager' takes no options"),
        (lambda: fxjit.compile(f, mode="default", options={"a": 1}), ConfigError, "either mode or options"),
        (lambda: fxjit.compile(f, fullgraph=1), InvalidArgument, "fullgraph must be True or False"),
        (lambda: fxjit.compile(f, dynamic="yes"), InvalidArgument, "dynamic must be None, True or False"),
        (lambda: fxjit.compile(f, disable="no"), InvalidArgument, "disable must be True or False"),
        (lambda: fxjit.run(3), InvalidArgument, "expected a function"),
        (lambda: fxjit.disable(3), InvalidArgument, "expected something callable"),
        (lambda: fxjit.explain(3), InvalidArgument, "expected a function or a module"),
        (lambda: fxjit.allow_in_graph(3), InvalidArgument, "allow_in_graph"),
        (lambda: fxjit.disallow_in_graph("add"), InvalidArgument, "disallow_in_graph"),
        (lambda: fxjit.substitute_in_graph(3), InvalidArgument, "substitute_in_graph"),
        (lambda: fxjit.substitute_in_graph(divmod)(lambda x: x), InvalidArgument, "another signature"),
        (lambda: fxjit.error_on_graph_break("no"), InvalidArgument, "expected True or False"),
        (lambda: fxjit.set_stance("eager"), ConfigError, "Did you mean 'force_eager'"),
        (lambda: fxjit.set_stance(3), InvalidArgument, "a stance is a name"),
        (lambda: fxjit.set_logs(graph_break=True), ConfigError, "Did you mean 'graph_breaks'"),
        (lambda: fxjit.set_logs("guard"), ConfigError, "Did you mean 'guards'"),
        (lambda: fxjit.set_logs(guards="yes"), ConfigError, "True, False or a level"),
        (lambda: fxjit.mark_dynamic(3, 0), InvalidArgument, "expected a tensor"),
        (lambda: fxjit.mark_dynamic(torch.ones(2), 1), InvalidArgument, "there is no dimension 1; the tensor has 1"),
        (lambda: fxjit.mark_dynamic(torch.ones(2), "0"), InvalidArgument, "expected a dimension or a sequence of them"),
        (lambda: fxjit.mark_unbacked(torch.ones(2), 0.5), InvalidArgument, "expected a dimension or a sequence of them"),
        (lambda: fxjit.mark_static(torch.ones(2), -2), InvalidArgument, "there is no dimension -2"),
        (lambda: fxjit.register_backend(3), InvalidArgument, "a backend is a callable"),
        (lambda: fxjit.lookup_backend(3), InvalidArgument, "a name or a callable"),
        (lambda: fxjit.wrap_numpy(3), InvalidArgument, "expected something callable"),
        (lambda: fxjit.compile(type), InvalidArgument, "a class that cannot be changed"),
        (lambda: fxjit.mark_static(int), InvalidArgument, "a class that cannot be changed"),
        (lambda: fxjit.config.on_change(5), ConfigError, "expected a function"),
        (lambda: fxjit.mark_dynamic(torch.ones(2), 0, min={1: 2}), InvalidArgument, "min must be a size"),
        (lambda: fxjit.mark_dynamic(torch.ones(2), 0, max="a"), InvalidArgument, "max must be a size"),
        (lambda: fxjit.mark_dynamic(torch.ones(2), 0, min=5, max=2), InvalidArgument, "at least 5 and at most 2"),
        (lambda: fxjit.compile_times("json"), ConfigError, "must be 'str' or 'csv'"),
    ],
)
def test_a_wrong_argument_is_refused_in_words(call, error, says):
    with pytest.raises(error, match=says) as caught:
        call()
    assert isinstance(caught.value, FxjitError)


class Unshowable:
    def __repr__(self):
        raise ValueError("nobody is to see it")


ODD = [5, 2.5, "no such name", b"x", None, {1: 2}, {"a": 1}, [1], [None], (), {5}, sys, object(), True, float("nan"),
       torch.ones(2), Unshowable(), [Unshowable()], "x" * 10_000, 10 ** 400, -1, "\ud800", "\0", ""]  # fmt: skip
#: What a caller is told by Python itself, as of any function.
PYTHONS = ("unexpected keyword", "positional argument", "multiple values", "missing")
FUNCTIONS = {name: getattr(fxjit, name) for name in fxjit.__all__ if callable(getattr(fxjit, name)) and "install" not in name}
FUNCTIONS |= {"config.patch": fxjit.config.patch, "config.reset": fxjit.config.reset}


def odd_calls(function):
    """Each odd value in the place of each argument, alone and beside arguments that are right."""
    parameters = list(inspect.signature(function).parameters.values())
    for odd in ODD:
        yield (odd,), {}
        yield (odd, odd), {}
        for each in parameters:
            if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD):
                yield (), {each.name: odd}
                if each is not parameters[0]:
                    for others in ((f,), (torch.ones(2),), (torch.ones(2), 0)):
                        yield others, {each.name: odd}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_types_are_refused_in_words_and_leave_nothing_broken(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # some write to the file that they are given the name of
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    for args, keywords in odd_calls(FUNCTIONS[name]):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                FUNCTIONS[name](*args, **keywords)
        except FxjitError as error:
            assert 20 < len(str(error)) < 1000
        except TypeError as error:
            assert any(said in str(error) for said in PYTHONS), (args, keywords)
        finally:
            fxjit.set_logs()
            fxjit.set_stance("default")
        assert fxjit.list_backends(exclude_tags=None)
        assert {**fxjit.config.to_dict()}.keys() == fxjit.config.SETTINGS.keys()
    assert torch.equal(fxjit.compile(f, backend="eager")(torch.ones(2)), torch.ones(2) + 1)


def test_options_that_nobody_knows_are_an_error_in_the_drop_in_too():
    fxjit.install()
    try:
        with pytest.raises(RuntimeError, match="Unexpected optimization option no_such_option"):
            torch.compile(f, options={"no_such_option": 1})
        with pytest.warns(UserWarning, match="ignores these options of inductor: epilogue_fusion"):
            torch.compile(f, options={"epilogue_fusion": True})
        with pytest.raises(InvalidArgument, match="the name of an option is text"):
            torch.compile(f, options={1: 2}, backend="eager")
    finally:
        fxjit.uninstall()


def test_errors_are_runtime_errors_as_those_of_torch_compile_are():
    assert issubclass(FxjitError, RuntimeError)
    for name in (
        "Unsupported SkipFrame RecompileError RecompileLimitExceeded BackendCompilerFailed CppCompileError "
        "TritonCompileError AccuracyError InternalError ConfigError"
    ).split():
        assert issubclass(getattr(fxjit.errors, name), FxjitError), name


def test_a_backend_that_raises_is_named():
    def broken(gm, inputs):
        raise ZeroDivisionError("sorry")

    with pytest.raises(fxjit.errors.BackendCompilerFailed, match="broken.*\n.*ZeroDivisionError: sorry") as caught:
        fxjit.compile(f, backend=broken)(torch.ones(2))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with fxjit.config.patch(suppress_errors=True):
        assert torch.equal(fxjit.compile(f, backend=broken)(torch.ones(2)), torch.full((2,), 2.0))


def test_a_backend_that_returns_nothing_to_call_is_named():
    with pytest.raises(fxjit.errors.BackendCompilerFailed, match="must return a callable, not NoneType"):
        fxjit.compile(f, backend=lambda gm, inputs: None)(torch.ones(2))


def test_what_the_program_raises_surfaces_under_fullgraph_too():
    def checked(x, limit):
        y = x + 1
        if limit < 0:
            raise ValueError("limit must not be negative")
        for _ in range(limit):
            y = y * 2
        return y

    compiled = fxjit.compile(checked, backend="eager", fullgraph=True)
    x = torch.ones(2)
    with pytest.raises(ValueError, match="limit must not be negative"):
        compiled(x, -1)
    torch.testing.assert_close(compiled(x, 2), checked(x, 2))
    with pytest.raises(ValueError, match="limit must not be negative"):
        compiled(x, -1)
    assert sum(fxjit.counters["graph_break"].values()) > 0, "and it is told"
