"""What is live, what can be reached, what repeats, at places of real functions."""

from __future__ import annotations

from typing import Any

from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.bytecode.flow import in_loop, live_before, loops, reachable
from fxjit.frontend.bytecode.instruction import Code


def mark(what: str) -> None:
    """The functions below call it where the tests look."""


def at(code: Code, what: str) -> int:
    """The index of the CALL of `mark(what)`."""
    start = next(i.index for i in code.instructions if i.opname == "LOAD_CONST" and i.argval == what)
    return next(i.index for i in code.instructions[start:] if i.opname == "CALL")


def straight(a: Any, b: Any) -> Any:
    mark("start")
    c = a + 1
    mark("middle")
    a = b
    mark("end")
    return a + c


def test_a_local_is_live_until_its_last_read_or_its_next_write() -> None:
    code = decode(straight.__code__)
    assert live_before(code, at(code, "start")) == {"a", "b"}
    assert live_before(code, at(code, "middle")) == {"b", "c"}
    assert live_before(code, at(code, "end")) == {"a", "c"}


def looping(a: Any, items: Any) -> Any:
    total = 0
    for item in items:
        mark("inside")
        if item:
            mark("leaving")
            return total, a
        total += 1
        unused = item
    mark("after")
    return total


def test_what_the_next_round_reads_is_live_inside_a_loop() -> None:
    code = decode(looping.__code__)
    assert live_before(code, at(code, "inside")) == {"a", "item", "total"}
    assert live_before(code, at(code, "after")) == {"total"}


def test_only_what_can_come_again_is_in_a_loop() -> None:
    code = decode(looping.__code__)
    assert in_loop(code, at(code, "inside"))
    assert not in_loop(code, at(code, "leaving")), "a return ends the loop"
    assert not in_loop(code, at(code, "after"))
    assert len(loops(code)) == 1


def trying(a: Any, b: Any) -> Any:
    while True:
        try:
            mark("tried")
            return a
        except ValueError:
            a = b
            del b
    mark("never")


def test_handlers_count_as_ways_on() -> None:
    code = decode(trying.__code__)
    assert in_loop(code, at(code, "tried")), "the handler goes round again"
    assert live_before(code, at(code, "tried")) == {"a", "b"}, "deleting needs it bound"


def test_what_lies_before_cannot_be_reached() -> None:
    code = decode(looping.__code__)
    kept = reachable(code, [at(code, "after")])
    assert min(kept) == at(code, "after")
    assert reachable(code, [at(code, "inside")]) >= kept


def test_a_loop_keeps_its_end_where_cpython_wants_it() -> None:
    code = decode(looping.__code__)
    loop = next(i for i in code.instructions if i.opname == "FOR_ITER")
    assert loop.target is not None and loop.landing is not None
    assert set(range(loop.landing, loop.target)) <= reachable(code, [loop.index])


def seeing(a: Any, b: Any) -> Any:
    mark("here")
    return locals()


def test_all_locals_are_live_where_they_are_read_by_name() -> None:
    code = decode(seeing.__code__)
    assert live_before(code, at(code, "here")) == {"a", "b"}
