"""What a program puts in the place of torch's own: layers' methods and functions of torch.nn.functional; and switches of the
process that a program asks for: each is seen at the next call."""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import logging
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxjit
from fxjit.counters import counters

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


@contextlib.contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, before)


def negated(*args: Any, **kwargs: Any) -> Any:
    return -next(arg for arg in args if isinstance(arg, torch.Tensor))


NET = nn.Sequential(nn.Linear(4, 4), nn.GELU())
PATCHES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Any, str]] = {
    "a layer's forward": (lambda x: NET(x), nn.Linear, "forward"),
    "a container's forward": (lambda x: NET(x), nn.Sequential, "forward"),
    "a function that a layer calls": (lambda x: NET(x), F, "linear"),
    "a function of torch.nn.functional": (lambda x: F.scaled_dot_product_attention(x, x, x), F, "scaled_dot_product_attention"),
    "a function of torch": (lambda x: torch.sin(x), torch, "sin"),
}


@pytest.mark.parametrize("what", PATCHES)
def test_a_function_of_torchs_is_replaced_and_put_back(what: str) -> None:
    program, owner, name = PATCHES[what]
    compiled = fxjit.compile(lambda x: program(x), backend="native")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), program(X))
        with replaced(owner, name, negated):
            torch.testing.assert_close(compiled(X), program(X))
        torch.testing.assert_close(compiled(X), program(X))
        owner.unread = 3  # does not matter
        torch.testing.assert_close(compiled(X), program(X))
        del owner.unread
    assert counters["frames"]["ok"] == 2


SWITCHES: dict[str, tuple[Callable[[], object], Callable[[], object], Callable[[], object]]] = {
    "cuDNN": (torch._C._get_cudnn_enabled, lambda: torch._C._set_cudnn_enabled(False),
              lambda: torch._C._set_cudnn_enabled(True)),
    "autocast's cache": (torch.is_autocast_cache_enabled, lambda: torch.set_autocast_cache_enabled(False),
                         lambda: torch.set_autocast_cache_enabled(True)),
    "autocast's dtype": (lambda: torch.get_autocast_dtype("cpu"), lambda: torch.set_autocast_dtype("cpu", torch.float16),
                         lambda: torch.set_autocast_dtype("cpu", torch.bfloat16)),
    "precision of products": (torch.get_float32_matmul_precision, lambda: torch.set_float32_matmul_precision("high"),
                              lambda: torch.set_float32_matmul_precision("highest")),
    "number of threads": (torch.get_num_threads, lambda: torch.set_num_threads(THREADS + 1),
                          lambda: torch.set_num_threads(THREADS)),
}
THREADS = torch.get_num_threads()


@pytest.mark.parametrize("what", SWITCHES)
def test_a_switch_of_the_process_that_the_program_asks_for(what: str) -> None:
    ask, change, undo = SWITCHES[what]
    compiled = fxjit.compile(lambda x: (x * 2, ask()), backend="eager")
    try:
        first = ask()
        assert compiled(X)[1] == first
        change()
        assert compiled(X)[1] == ask() != first
    finally:
        undo()
    assert compiled(X)[1] == first
    assert counters["frames"]["ok"] == 2


def test_a_builtin_is_replaced_and_put_back() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * abs(-2)

    compiled = fxjit.compile(program, backend="eager")
    torch.testing.assert_close(compiled(X), program(X))
    with replaced(builtins, "abs", lambda number: 7):
        torch.testing.assert_close(compiled(X), program(X))
    torch.testing.assert_close(compiled(X), program(X))
    assert counters["frames"]["ok"] == 2


PYTHONS: dict[str, tuple[Any, str, Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "range": (builtins, "range", lambda own: lambda *ends: own(2), lambda x: x * len([i for i in range(5)])),
    "iter": (builtins, "iter", lambda own: lambda *args: own([9]), lambda x: x * next(iter([1, 2]))),
    "zip": (builtins, "zip", lambda own: lambda *args: [(1, 2)], lambda x: x * sum(a * b for a, b in zip([1], [3]))),  # noqa: B905
    "min": (builtins, "min", lambda own: lambda *args: 5, lambda x: x * min(7, 2)),
    "a class": (builtins, "float", lambda own: lambda *args: 2.5, lambda x: x * float(1)),
    "functools.reduce": (functools, "reduce", lambda own: lambda *args: 7,
                         lambda x: x * functools.reduce(lambda a, b: a + b, [1, 2, 3])),
    "functools.partial": (functools, "partial", lambda own: lambda fn, *args: lambda *more: fn(*args, *more) * 2,
                          lambda x: functools.partial(torch.mul, x)(2)),
    "itertools.chain": (itertools, "chain", lambda own: lambda *args: [5], lambda x: x * sum(itertools.chain([1], [2]))),
    "typing.cast": (typing, "cast", lambda own: lambda kind, value: value * 3, lambda x: typing.cast(Any, 2) * x),
}


@pytest.mark.parametrize("first", ["Python's", "the program's"])
@pytest.mark.parametrize("what", PYTHONS)
def test_what_tracing_itself_calls_is_replaced_and_put_back(what: str, first: str) -> None:
    """Nothing is traced meanwhile: the replacement runs, and it is said why."""
    owner, name, make, program = PYTHONS[what]
    own, by = getattr(owner, name), make(getattr(owner, name))
    compiled = fxjit.compile(program, backend="eager")
    results = []
    for each in ("Python's", "the program's", "the program's", "Python's") if first == "Python's" else (
            "the program's", "Python's", "the program's"):
        setattr(owner, name, own if each == "Python's" else by)
        try:
            results.append((program(X), compiled(X)))
        finally:
            setattr(owner, name, own)
    for eager, ours in results:
        torch.testing.assert_close(ours, eager)
    skips = counters["skip"]["A function of Python that tracing relies on was replaced"]
    assert skips >= 2, "at each of its two calls then"
    assert counters["frames"]["ok"] == 1


def test_autocast_that_the_program_switches_on_itself_is_no_switch_from_outside() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, object]:
        with torch.autocast("cpu", torch.float16):
            return x @ x.T, torch.get_autocast_dtype("cpu")

    compiled = fxjit.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(X)[1] is torch.float16
    assert counters["frames"]["ok"] == 1


def test_the_dtype_that_autocast_takes_where_the_program_names_none() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            return x @ x.T

    compiled = fxjit.compile(program, backend="eager")
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        torch.set_autocast_dtype("cpu", dtype)
        try:
            assert compiled(X).dtype is program(X).dtype is dtype
        finally:
            torch.set_autocast_dtype("cpu", torch.bfloat16)
    assert counters["frames"]["ok"] == 2


def _grad_mode_inside(x: torch.Tensor, manager: Any) -> torch.Tensor:
    weight = torch.ones(4, requires_grad=True)
    with manager():
        y = x * weight
    return y.detach() * (2 if y.requires_grad else 3)


MANAGERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Any, str, Any]] = {
    "entering no_grad": (lambda x: _grad_mode_inside(x, torch.no_grad), torch.no_grad, "__enter__", lambda self: None),
    "leaving no_grad": (lambda x: _grad_mode_inside(x, torch.no_grad) + torch.is_grad_enabled(), torch.no_grad, "__exit__",
                        lambda self, *error: None),
    "entering enable_grad": (lambda x: _grad_mode_inside(x, torch.enable_grad), torch.enable_grad, "__enter__",
                             lambda self: setattr(self, "prev", True) or torch._C._set_grad_enabled(False)),
    "making no_grad": (lambda x: _grad_mode_inside(x, torch.no_grad), torch.no_grad, "__new__",
                       lambda cls: contextlib.nullcontext()),
    "entering autocast": (lambda x: _product_under_autocast(x), torch.autocast, "__enter__", lambda self: None),
}


def _product_under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.T


@pytest.mark.parametrize("what", MANAGERS)
def test_a_manager_of_torchs_that_a_program_changes(what: str) -> None:
    program, owner, name, by = MANAGERS[what]
    compiled = fxjit.compile(lambda x: program(x), backend="eager")

    def agree() -> None:
        results = []
        for fn in (program, compiled):
            torch._C._set_grad_enabled(True)  # whatever the manager left
            try:
                results.append(fn(X))
            except AttributeError as error:
                results.append(str(error))
        torch._C._set_grad_enabled(True)
        torch.testing.assert_close(results[1], results[0]) if isinstance(results[0], torch.Tensor) else None
        assert type(results[0]) is type(results[1])

    agree()
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    had = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, by)
    try:
        agree()
    finally:
        setattr(owner, name, before) if had else delattr(owner, name)
        while torch.autocast_increment_nesting() < nesting + 1:  # blocks that were left and never entered
            pass
        torch.autocast_decrement_nesting()
    agree()


def _a_module(name: str, value: int) -> types.ModuleType:
    made = types.ModuleType(name)
    made.value = value  # type: ignore[attr-defined]
    return made


def _imported(x: torch.Tensor) -> torch.Tensor:
    import not_there_before  # type: ignore[import-not-found]

    return x * not_there_before.value  # type: ignore[no-any-return]


def _imported_from(x: torch.Tensor) -> torch.Tensor:
    from not_there_before import value

    return x * value  # type: ignore[no-any-return]


@pytest.mark.parametrize("program", [_imported, _imported_from])
def test_another_module_under_the_name_that_a_function_imports(program: Callable[[torch.Tensor], torch.Tensor],
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = fxjit.compile(program, backend="eager", dynamic=False)
    for value in (2, 3, 3):
        monkeypatch.setitem(sys.modules, "not_there_before", _a_module("not_there_before", value))
        torch.testing.assert_close(compiled(X), X * value)
        torch.testing.assert_close(compiled(X), X * value)


def test_an_import_is_done_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> float:
        import math

        return x * math.floor(2.5)  # type: ignore[return-value]

    compiled, importer = fxjit.compile(program, backend="eager"), builtins.__import__
    torch.testing.assert_close(compiled(X), X * 2)

    def other(name: str, *rest: Any) -> Any:
        return types.SimpleNamespace(floor=lambda number: 7) if name == "math" and len(rest) == 4 and (
            rest[0] is not None and rest[0].get("__name__") == __name__) else importer(name, *rest)

    monkeypatch.setattr(builtins, "__import__", other)
    torch.testing.assert_close(compiled(X), X * 7)
    monkeypatch.setattr(builtins, "__import__", importer)
    torch.testing.assert_close(compiled(X), X * 2)
    assert counters["frames"]["ok"] == 2


def test_builtins_that_a_functions_globals_bring_with_them() -> None:
    own = dict(vars(builtins))
    namespace: dict[str, Any] = {"__builtins__": own}
    exec("def inner(x):\n    return x * abs(-2)", namespace)
    inner = namespace["inner"]
    compiled = fxjit.compile(lambda x: inner(x), backend="eager")
    torch.testing.assert_close(compiled(X), X * 2)
    own["abs"] = lambda number: 5
    torch.testing.assert_close(compiled(X), X * 5)


def test_a_program_that_replaces_a_builtin_itself() -> None:
    own = len

    def program(x: torch.Tensor) -> Any:
        x = x * len("ab")
        builtins.len = lambda text: 7  # type: ignore[assignment]
        x = x + len("ab")
        del builtins.len
        try:
            return len("ab")
        except NameError as error:
            builtins.len = own
            return x * len("abc"), str(error)

    try:
        want, name = program(X)
        got, got_name = fxjit.compile(program, backend="eager", fullgraph=True)(X)
    finally:
        builtins.len = own
    torch.testing.assert_close(got, want)
    assert got_name == name == "name 'len' is not defined"


def test_a_function_has_the_builtins_that_its_module_had_when_it_was_made() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x * abs(-2)
        fxjit.graph_break()
        return x * abs(-2)

    for is_compiled_before in (True, False):
        compiled = fxjit.compile(program, backend="eager")
        if is_compiled_before:
            torch.testing.assert_close(compiled(X), X * 4)
        with mock.patch.dict(globals(), {"__builtins__": {**vars(builtins), "abs": lambda number: 7}}):
            torch.testing.assert_close(compiled(X), X * 4)
        fxjit.reset()


def test_a_level_of_logging_that_is_set_later() -> None:
    logger = logging.getLogger("fxjit.tests.levels")
    compiled = fxjit.compile(lambda x: x * 2 if logger.isEnabledFor(logging.INFO) else x + 1, backend="eager")
    torch.testing.assert_close(compiled(X), X + 1)
    try:
        logger.setLevel(logging.INFO)
        torch.testing.assert_close(compiled(X), X * 2)
        logger.parent.setLevel(logging.INFO)  # type: ignore[union-attr]  # asked no more: this one has a level
        torch.testing.assert_close(compiled(X), X * 2)
        logger.disabled = True
        torch.testing.assert_close(compiled(X), X + 1)
    finally:
        logger.setLevel(logging.NOTSET)
        logger.parent.setLevel(logging.NOTSET)  # type: ignore[union-attr]
        logger.disabled = False
    assert counters["frames"]["ok"] == 3


def test_a_tensor_is_an_instance_of_its_legacy_type() -> None:
    compiled = fxjit.compile(lambda x: x * 2 if isinstance(x, torch.FloatTensor) else x, backend="eager")
    for given in (X, X.double(), torch.nn.Parameter(X)):
        torch.testing.assert_close(compiled(given), given * 2 if given.dtype is torch.float32 else given)


def test_nothing_is_traced_while_tensors_have_another_size() -> None:
    compiled = fxjit.compile(lambda x: x * x.size(0), backend="eager")
    with replaced(torch.Tensor, "size", lambda self, dim: 7):
        result = compiled(X)
    torch.testing.assert_close(result, X * 7)
    assert counters["skip"]["A method of tensors that tracing relies on was replaced"] and not counters["frames"]["ok"]
    torch.testing.assert_close(compiled(X), X * 3)
    assert counters["frames"]["ok"] == 1
