"""Objects with finalizers end where they end in eager code, also in functions that are inlined and stopped in: a generator
that is let go is closed there, an object of a function that returns goes with it."""

from __future__ import annotations

import gc
import pprint

import pytest
import torch

import fxjit

LOG: list[object] = []


def cut(value=None):
    fxjit.graph_break()
    return value


class Ends:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        LOG.append(("end of", self.name))


def items(x):
    try:
        yield cut(x)
        yield x + 1
    finally:
        LOG.append(("closed", cut(1)))


def deletes_a_generator(x):
    generator = items(x)
    y = next(generator)
    del generator
    LOG.append("deleted")
    return y


def leaves_a_generator(x):
    generator = items(x)
    y = next(generator)
    cut()
    LOG.append("leaving")
    return y + 1


def overwrites(x):
    held = Ends("first")
    y = cut(x)
    LOG.append("before")
    held = Ends("second")
    LOG.append("after")
    return y, held.name


def reads_no_more(x):
    held = Ends("unread")  # noqa: F841 - it lives as long as the function runs
    y = cut(x)
    LOG.append("one")
    cut()
    LOG.append("two")
    return y


def reads_between_breaks(x):
    held = Ends("read")
    y = cut(x)
    LOG.append(held.name)
    cut()
    LOG.append("last")
    return y + 1


def ends_in_the_order_of_its_variables(x):
    zeta = Ends("first")  # noqa: F841 - it lives as long as the function runs
    alpha = Ends("second")  # noqa: F841 - so does this
    y = cut(x)
    LOG.append("both")
    return y


def starts_one_after_another(x):
    for _ in range(3):
        generator = items(x)
        y = next(generator)
        cut()
        LOG.append("next")
    return y


def makes_one_after_another(x):
    for _ in range(3):
        held = Ends("made")  # noqa: F841 - it ends when the next one is there
        x = cut(x + 1)
        LOG.append("next")
    return x


def inner(x, held):
    y = cut(x)
    LOG.append("inner")
    del held
    LOG.append("let go")
    return y


def shares(x):
    held = Ends("shared")
    y = inner(x, held)
    LOG.append("after")
    cut()
    LOG.append(held.name)
    return y


def two_names(x):
    one = two = Ends("twice named")  # noqa: F841 - both hold it
    y = cut(x)
    LOG.append("named")
    return y


def in_a_list(x):
    held = [Ends("in a list")]
    y = cut(x)
    LOG.append("listed")
    held = None
    LOG.append(held)
    return y


def returns_what_it_holds(x):
    held = Ends("returned")
    cut()
    return x, held


def raises(x):
    held = Ends("raising")  # noqa: F841 - it lives as long as the traceback
    cut(x)
    LOG.append("about to raise")
    raise ValueError("on purpose")


def raises_what_the_trace_finds(x):
    held = Ends("found")  # noqa: F841 - it lives as long as the traceback
    cut(x)
    return x + not_there  # noqa: F821 - the error is on purpose


@fxjit.disable
def fail():
    raise ValueError("on purpose")


def raises_through_finally(x):
    held = Ends("left by an exception")  # noqa: F841 - it lives as long as the traceback
    try:
        x = cut(x + 1)
        fail()
    finally:
        LOG.append("finally")


def lets_go_in_a_handler(x):
    held = Ends("let go by the handler")  # noqa: F841 - until then
    try:
        x = cut(x + 1)
        fail()
    except ValueError as error:
        LOG.append("caught")
        held = None  # noqa: F841
        LOG.append(str(error))
    return x


def reads_in_a_handler(x):
    held = Ends("read by the handler")
    try:
        x = cut(x + 1)
        fail()
    except ValueError:
        LOG.append(held.name)
        raise


PROGRAMS = [deletes_a_generator, leaves_a_generator, overwrites, reads_no_more, reads_between_breaks, shares, two_names,
            in_a_list, returns_what_it_holds, ends_in_the_order_of_its_variables, starts_one_after_another,
            makes_one_after_another, lets_go_in_a_handler]  # fmt: skip
RAISING = [raises, raises_what_the_trace_finds, raises_through_finally, reads_in_a_handler]


def called_by(program):
    def outer(x):
        x = x * 2
        result = program(x)
        LOG.append("outer")
        return result

    return outer


def story(fn):
    LOG.clear()
    try:
        result = fn(torch.ones(2))
        LOG.append(type(result))
        del result
    except (ValueError, NameError) as error:
        LOG.append(str(error))
    return list(LOG)


def test_what_others_hold_too_is_no_reason_to_stop():
    counter = fxjit.testing.CompileCounter()
    held = Ends("in a closure")

    def reads(obj):
        return len(obj.name)

    def by_closure(x):
        return x + reads(held)

    def by_cell(x, obj):
        def inner():
            return reads(obj)

        return x + inner() + reads(obj)

    fxjit.reset()
    compiled = fxjit.compile(by_closure, backend=counter, fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), by_closure(torch.ones(2)))
    compiled = fxjit.compile(by_cell, backend=counter, fullgraph=True)
    assert torch.equal(compiled(torch.ones(2), held), by_cell(torch.ones(2), held))
    assert counter.frame_count == 2


class Counted(list):
    """A list that sees when somebody goes through it."""

    seen = 0

    def __iter__(self):
        Counted.seen += 1
        return super().__iter__()


def test_nothing_of_the_program_runs_where_it_is_asked_what_a_list_holds():
    def size(x, items):
        return x * len(items)

    def run(x, items):
        y = size(x, items)
        return cut(y) + size(x, items)

    fxjit.reset()
    assert torch.equal(fxjit.compile(run, backend="eager")(torch.ones(2), Counted([1, 2])), torch.full((2,), 4.0))
    assert Counted.seen == 0


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()
    LOG.clear()


@pytest.mark.parametrize("program", RAISING, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("resumes", [False, True], ids=["default", "everywhere"])
def test_nothing_of_a_call_that_raised_waits_for_the_collector(program, resumes, no_collector):
    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager")
    with fxjit.config.patch(resume_in_loops=resumes, resume_in_try=resumes):
        for _ in range(2):
            assert story(compiled) == story(program)


def test_a_rest_that_is_compiled_no_more_holds_nothing_of_what_its_callee_does():
    fn = called_by(makes_one_after_another)
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    with fxjit.config.patch(resume_in_loops=True, recompile_limit=1):
        assert story(compiled) == story(fn)
    LOG.clear()


def test_an_exception_that_the_caller_handles_keeps_its_traceback():
    fxjit.reset()
    compiled = fxjit.compile(leaves_a_generator, backend="eager")
    try:
        {}["missing"]
    except KeyError as error:
        compiled(torch.ones(2))
        assert error.__traceback__ is not None
    LOG.clear()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("resumes", [False, True], ids=["default", "everywhere"])
def test_ends_come_when_they_come_in_eager(program, depth, resumes, no_collector):
    fn = program
    for _ in range(depth):
        fn = called_by(fn)
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    with fxjit.config.patch(resume_in_loops=resumes, resume_in_try=resumes):
        for _ in range(2):
            assert story(compiled) == story(fn)


class Keyed:
    """Its hash is said by code of its class's."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return self.number

    def __lt__(self, other):
        return False


@pytest.mark.parametrize("settings", [{}, {"compile_tensorless_frames": True, "allow_empty_graphs": True}], ids=["", "all"])
def test_a_set_that_was_not_looked_at_stays_so_where_a_trace_ends(settings: dict[str, bool]) -> None:
    """The texts go to a StringIO, which may be referred to weakly: what the stopped functions hold beside it is asked for. To
    ask a set from outside for its elements runs their `__hash__`."""
    def run(x):
        plain = object()
        keyed = Keyed(hash(plain))
        first, second = (pprint.pformat(set(each), width=1) for each in ([keyed, plain], [plain, keyed]))
        return x + 1, len(first), len(second)

    def run_twice(x):
        plain = object()
        keyed = Keyed(hash(plain))
        first = pprint.pformat(set([keyed, plain]), width=1)
        second = pprint.pformat(set([plain, keyed]), width=1)
        return x + 1, len(first), len(second)

    x = torch.ones(2)
    for fn in (run, run_twice):
        with fxjit.config.patch(settings):
            found, expected = fxjit.compile(fn, backend="eager")(x), fn(x)
        assert found[0].equal(expected[0]) and found[1:] == expected[1:]
