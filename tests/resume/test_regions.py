"""`config.compile_around_blocks`: a loop, `try` or `with` block that breaks and cannot be resumed is run by CPython, and what
stands before it and behind it is compiled. Without the setting the frame is skipped."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.differential import assert_same_as_eager  # noqa: E402

import fxjit  # noqa: E402
from fxjit.testing import EagerAndRecordGraphs  # noqa: E402

SAID: list[object] = []


@pytest.fixture(autouse=True)
def around_blocks():
    with fxjit.config.patch(compile_around_blocks=True):
        yield


@fxjit.disable
def say(value: object) -> None:
    SAID.append(value)


def operators(fn: Callable[..., Any], *args: Any) -> list[int]:
    """Of each graph, the number of its operators."""
    fxjit.reset()
    backend = EagerAndRecordGraphs()
    fxjit.compile(fn, backend=backend)(*args)
    return [sum(node.op.startswith("call_") for node in graph.graph.nodes) for graph in backend.graphs]


def work(x: Any) -> Any:
    return (x.sin() * 2).relu()


def in_a_try(x: Any) -> Any:
    y = work(x)
    try:
        y = y * y.tolist()[0]
    except RuntimeError:
        say("caught")
    return (y.cos() * 3).relu()


def raises_in_a_try(x: Any) -> Any:
    y = work(x)
    try:
        say("before")
        raise RuntimeError("on purpose")
    except RuntimeError as error:
        say(str(error))
        y = y + 1
    else:
        y = y - 1
    return (y.cos() * 3).relu()


def in_a_finally(x: Any) -> Any:
    y = work(x)
    try:
        say("in")
        y = y * 3
    finally:
        say("finally")
    return (y.cos() * 3).relu()


class Manager:
    def __enter__(self) -> Manager:
        SAID.append("enter")
        return self

    def __exit__(self, *exc: object) -> None:
        SAID.append("exit")


def in_a_with(x: Any) -> Any:
    y = work(x)
    with Manager() as manager:
        say(type(manager))
        y = y + 1
    return (y.cos() * 3).relu()


LOCK = threading.Lock()


def under_a_lock(x: Any) -> Any:
    y = work(x)
    with LOCK:
        y = y + 1
    return (y.cos() * 3).relu()


def in_a_for(x: Any) -> Any:
    y = work(x)
    for i in range(3):
        say(i)
        y = y + i
    else:
        y = y * 2
    return (y.cos() * 3).relu()


def in_a_while(x: Any) -> Any:
    y, n = work(x), 0
    while n < 3:
        say(n)
        y, n = y + n, n + 1
    return (y.cos() * 3).relu(), n


def leaves_by_break(x: Any) -> Any:
    y = work(x)
    for i, each in enumerate(x):
        if each.item() > 1:
            break
        y = y + each
    return (y.cos() * 3).relu() + i


def leaves_by_return(x: Any) -> Any:
    y = work(x)
    for each in x:
        if each.item() > 1:
            return y
    return (y.cos() * 3).relu()


def under_no_grad(x: Any) -> Any:
    y = work(x)
    with torch.no_grad():
        z = work(y)
        for each in z:
            say(each.item())
        z = work(z)
    return work(z), z.requires_grad


def closes_over(x: Any) -> Any:
    y, count = work(x), 0

    def more() -> Any:
        nonlocal count
        count += 1
        return y + count

    for i in range(2):
        say(i)
        y = more()
    return work(more()), count


def leaves_something_behind(x: Any) -> Any:
    y = work(x)
    for i in range(3):
        say(i)
        last = y + i
    return work(last)


class Doubles:
    def apply(self, x: Any) -> Any:
        return x * 2


class Applies(Doubles):
    def apply(self, x: Any) -> Any:
        y = work(x)
        for i in range(2):
            say(i)
        return super().apply((y.cos() * 3).relu() + 1)


def calls_a_method(x: Any) -> Any:
    return Applies().apply(x)


#: Operators of the graphs of each: what stands before the block, and behind it.
PROGRAMS = {
    in_a_try: [3, 3], raises_in_a_try: [3, 3], in_a_finally: [3, 3], in_a_with: [3, 3], under_a_lock: [7], in_a_for: [3, 4],
    in_a_while: [3, 3], leaves_by_break: [7, 1, 4], leaves_by_return: [7, 3], under_no_grad: [8, 7], closes_over: [3, 2, 3],
    leaves_something_behind: [3, 3], calls_a_method: [3, 5],
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_what_stands_around_the_block_is_compiled(program: Callable[..., Any]) -> None:
    x = torch.tensor([0.5, 0.25, 0.75], requires_grad=program is under_no_grad)
    said = []
    for run in (program, fxjit.compile(program, backend="eager")):
        for _ in range(2):
            SAID.clear()
            result = run(x)
            said.append((str(result), list(SAID)))
    assert said[0] == said[1] == said[2] == said[3]
    captured = operators(program, x)
    assert [count for count in captured if count] == PROGRAMS[program]
    assert_same_as_eager(program, x.detach(), fullgraph=False, skips=False)


def test_the_one_break_is_counted_and_no_frame_is_skipped() -> None:
    fxjit.reset()
    fxjit.compile(in_a_for, backend="eager")(torch.ones(3))
    assert sum(fxjit.counters["graph_break"].values()) == 1 and not fxjit.counters["skip"]


def unbound(x: Any, n: int) -> Any:
    y = work(x)
    for i in range(n):
        say(i)
        last = y + i
    say("behind")
    return work(last) + work(y)


def test_a_local_that_the_block_did_not_bind_is_unbound_behind_it() -> None:
    compiled = fxjit.compile(unbound, backend="eager")
    for n in (2, 0, 1, 0):
        for run in (unbound, compiled):
            if n:
                assert torch.equal(run(torch.ones(2), n), unbound(torch.ones(2), n))
            else:
                with pytest.raises(UnboundLocalError, match="last"):
                    run(torch.ones(2), 0)


def raises_inside(x: Any) -> Any:
    y = work(x)
    for i in range(2):
        say(i)
        if i:
            raise ValueError("inside")
    return work(y)


def test_an_exception_inside_the_block_comes_from_its_line() -> None:
    compiled = fxjit.compile(raises_inside, backend="eager")
    for _ in range(2):
        with pytest.raises(ValueError, match="inside") as caught:
            compiled(torch.ones(2))
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert [frame.line for frame in frames if frame.name == "raises_inside"] == ['raise ValueError("inside")']


def little_around(x: Any) -> Any:
    y = x + 1
    for i in range(2):
        say(i)
    return y * 2


def test_a_frame_with_little_around_the_block_is_skipped() -> None:
    assert operators(little_around, torch.ones(2)) == []
    assert list(fxjit.counters["skip"]) == ["Graph break in a loop"]


@pytest.mark.parametrize("program", [in_a_try, in_a_with, in_a_for], ids=lambda fn: fn.__name__)
def test_without_the_setting_the_frame_is_skipped(program: Callable[..., Any]) -> None:
    with fxjit.config.patch(compile_around_blocks=False):
        assert operators(program, torch.ones(2)) == [3]  # of `work`, which it calls
    assert fxjit.counters["frames"]["skipped"] == 1 and sum(fxjit.counters["skip"].values()) == 1


def test_with_fullgraph_the_break_is_an_error() -> None:
    with pytest.raises(fxjit.errors.Unsupported):
        fxjit.compile(in_a_for, backend="eager", fullgraph=True)(torch.ones(3))


def calls_in_the_block(x: Any) -> Any:
    y = (x.cos() * 3).relu() + 1
    for i in range(2):
        say(i)
        y = work(y)
    return (y.cos() * 3).relu() + 2


def test_what_the_block_calls_is_compiled_by_itself() -> None:
    assert operators(calls_in_the_block, torch.ones(2)) == [4, 3, 4]


@contextlib.contextmanager
def scaled(holder: Any, factor: float):
    """Of the program's own, which a break inside enters for real."""
    holder.scale *= factor
    try:
        yield holder.scale
    finally:
        holder.scale /= factor


MANAGERS: dict[str, Callable[[Any], Any]] = {
    "autocast": lambda holder: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": lambda holder: torch.no_grad(),
    "scaled": lambda holder: scaled(holder, 2.0),
    "suppress": lambda holder: contextlib.suppress(AttributeError),
    "lock": lambda holder: holder.lock,
}


def raises_in_two_blocks(x: Any, holder: Any, outer: Any, inner: Any) -> Any:
    y = work(x)
    with outer(holder):
        with inner(holder):
            y = y @ y
            del holder.missing
        y = y + 1
    return work(y)


def raises_between_two_blocks(x: Any, holder: Any, outer: Any, inner: Any) -> Any:
    y = work(x)
    with outer(holder):
        with inner(holder):
            y = y @ y
        del holder.missing
    return work(y)


def raises_for_a_handler(x: Any, holder: Any, outer: Any, inner: Any) -> Any:
    y = work(x)
    try:
        with outer(holder), inner(holder):
            y = y @ y
            del holder.missing
    except AttributeError as error:
        say(str(error))
        raise ValueError("of the handler") from error
    return work(y)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("fn", [raises_in_two_blocks, raises_between_two_blocks, raises_for_a_handler])
@pytest.mark.parametrize(("outer", "inner"), list(product(MANAGERS, MANAGERS)))
@pytest.mark.parametrize("around", [False, True], ids=["", "around"])
def test_exceptions_that_leave_blocks(around: bool, outer: str, inner: str, fn: Callable[..., Any]) -> None:
    """A block that an exception has left is not left again by what runs the rest: no instruction of its exit is where CPython
    could go on."""
    def story(fn: Callable[..., Any]) -> Any:
        SAID.clear()
        holder = SimpleNamespace(scale=1.0, lock=threading.RLock())
        managers = MANAGERS[outer], MANAGERS[inner]
        try:
            found = fn(torch.ones(2, 2, requires_grad=True), holder, *managers)
            end: Any = found.tolist(), found.dtype, found.requires_grad
        except (AttributeError, ValueError) as error:
            end = repr(error), repr(error.__cause__), [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                                                       if frame.name == fn.__name__]
        return end, holder.scale, list(SAID), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    with fxjit.config.patch(compile_around_blocks=around):
        fxjit.reset()
        compiled = fxjit.compile(fn, backend="eager")
        for _ in range(2):
            assert story(compiled) == story(fn)
