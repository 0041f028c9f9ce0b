"""Weak references, finalizers and what they see: when an object ends, and what stays alive until then."""

from __future__ import annotations

import gc
import itertools
import re
import statistics
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.ones(2)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What is in a cycle does not end meanwhile."""
    gc.disable()
    yield
    gc.enable()


class Plain:
    def method(self) -> int:
        return 1


class Number(float):
    pass


KEPT = Plain()


def test_a_finalizer_runs_once() -> None:
    def run(x: torch.Tensor) -> Any:
        obj = Plain()
        finalizer = weakref.finalize(obj, len, "abc")
        return x + 1, finalizer.alive, finalizer(), finalizer(), finalizer.peek(), finalizer.detach(), finalizer.alive

    assert assert_same_as_eager(run, X, fullgraph=False)[1:] == (True, 3, None, None, None, False)


def test_finalizers_run_where_the_name_is_deleted() -> None:
    def run(x: torch.Tensor) -> Any:
        obj, seen = Plain(), list[str]()
        first = weakref.finalize(obj, seen.append, "first")
        second = weakref.finalize(obj, seen.append, "second")
        del first
        before = second.alive
        del obj
        return x + 1, before, second.alive, seen

    assert assert_same_as_eager(run, X, fullgraph=False)[1:] == (True, False, ["second", "first"])


def test_a_reference_is_dead_after_del() -> None:
    def run(x: torch.Tensor) -> Any:
        obj = Plain()
        ref = weakref.ref(obj)
        alive = ref() is obj
        del obj
        method = weakref.WeakMethod(KEPT.method)
        watched = weakref.ref(method)
        del method
        return x + 1, alive, ref() is None, watched() is None

    assert assert_same_as_eager(run, X, fullgraph=False)[1:] == (True, True, True)


def test_a_weak_proxy_keeps_the_truth_and_the_numbers_of_its_object() -> None:
    def run(x: torch.Tensor) -> Any:
        number, items = Number(2.0), Items()
        proxy = weakref.proxy(number)
        return x + 1, proxy + 1.0, 1.0 + proxy, bool(weakref.proxy(items)), bool(items)

    assert assert_same_as_eager(run, X, fullgraph=False)[1:] == (3.0, 3.0, False, False)


class Items(list[int]):
    pass


def test_weak_dictionaries() -> None:
    def run(x: torch.Tensor) -> Any:
        found: weakref.WeakKeyDictionary[Plain, int] = weakref.WeakKeyDictionary()
        first, second = Plain(), Plain()
        found[first], found[second] = 1, 2
        lengths = [len(found)]
        del second
        lengths.append(len(found))
        return x + 1, lengths, list(found.values()), found.popitem()[1], len(found)

    assert assert_same_as_eager(run, X, fullgraph=False)[1:] == ([2, 1], [1], 1, 0)


class Base:
    """Counts by class, weakly."""

    made: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()

    @classmethod
    def numbered(cls) -> int:
        known = Base.made.get(cls)
        if known is None:
            known = Base.made[cls] = len(Base.made) + 1
        return known


class Derived(Base):
    pass


def test_weak_dictionaries_by_class() -> None:
    """A class that its module holds does not end while the program runs."""
    def run(x: torch.Tensor) -> Any:
        ref = weakref.ref(Derived)
        numbers = Base.numbered(), Derived.numbered(), Base.numbered()
        return x * numbers[1], numbers, ref() is Derived, ref is weakref.ref(Derived), len(Base.made)

    compiled = fxjit.compile(run, backend="eager")
    for clear in (True, False, True):
        results = []
        for fn in (run, compiled):
            if clear:
                Base.made.clear()
            results.append(fn(X))
            assert sorted(Base.made.values()) == [1, 2]
        assert torch.equal(results[0][0], results[1][0]) and results[0][1:] == results[1][1:]
    fxjit.counters.clear()
    assert torch.equal(fxjit.compile(lambda x: x * Derived.numbered(), backend="eager")(X), X * 2)
    assert not fxjit.counters["graph_break"]


BY_THREAD: weakref.WeakKeyDictionary[threading.Thread, float] = weakref.WeakKeyDictionary()


def test_the_running_thread_does_not_end() -> None:
    def factor(thread: threading.Thread) -> float:
        one = thread
        found = BY_THREAD.get(one)
        if found is None:
            found = BY_THREAD[one] = 2.0
        one = None
        return found

    def run(x: torch.Tensor, thread: threading.Thread) -> Any:
        y = x * factor(thread)
        thread = None
        return y

    compiled = fxjit.compile(run, backend="eager")
    for fresh in (True, False, False):
        if fresh:
            BY_THREAD.clear()
        assert torch.equal(compiled(X, threading.current_thread()), X * 2)
    fxjit.counters.clear()
    assert torch.equal(fxjit.compile(run, backend="eager")(X, threading.current_thread()), X * 2)
    assert not fxjit.counters["graph_break"]


def test_a_weak_reference_to_a_class_of_a_function() -> None:
    def run(x: torch.Tensor) -> Any:
        class Local:
            pass

        ref = weakref.ref(Local)
        return x + 1, ref() is Local

    assert_same_as_eager(run, X, fullgraph=False)


class Entered:
    """An iterator that asks the iterator made of it."""

    other: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.other)


def test_tee_is_not_entered_again() -> None:
    def run(x: torch.Tensor) -> Any:
        source = Entered()
        first, source.other = itertools.tee(source)
        try:
            next(first)
        except RuntimeError as error:
            return x + 1, "tee" in str(error)
        return x + 1, "not raised"

    assert assert_same_as_eager(run, X, fullgraph=False)[1] is True


class Money(Decimal):
    def __truediv__(self, other: Any) -> Any:
        return type(self)(super().__truediv__(other))


def test_super_of_a_number_is_its_base() -> None:
    def run(x: torch.Tensor, amount: Money, by: Money) -> Any:
        return x + 1, amount / by

    assert_same_as_eager(run, X, Money(-15), Money(16), fullgraph=False)
    assert statistics.mean([Fraction(1, 2)]) == Fraction(1, 2)


@pytest.mark.parametrize("error", [
    UnicodeEncodeError("ascii", "xxxxx", 1, 5, "foo"), UnicodeDecodeError("ascii", b"xxxxx", 1, 2, "foo"),
    SyntaxError("bad", ("file", 3, 1, "text")), ImportError("no", name="n"), KeyError("k"), OSError(2, "gone"),
])
def test_texts_of_exceptions(error: Exception) -> None:
    def run(x: torch.Tensor, cls: type[Exception], args: tuple[Any, ...]) -> Any:
        made = cls(*args)
        return x + 1, str(made)

    assert assert_same_as_eager(run, X, type(error), error.args, fullgraph=False)[1] == str(type(error)(*error.args))


def test_an_exception_initialised_again_forgets() -> None:
    def run(x: torch.Tensor) -> Any:
        error = ImportError("test", name="name", path="path")
        error.__init__()  # type: ignore[misc]
        return x + 1, error.args, error.msg, error.name, error.path

    assert assert_same_as_eager(run, X, fullgraph=False)[1:] == ((), None, None, None)


class Finalized:
    log: list[int] = []  # noqa: RUF012

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        self.log.append(self.number)


def test_finalizers_run_where_the_name_gets_another_object() -> None:
    def run(x: torch.Tensor) -> Any:
        Finalized.log.clear()
        obj: Any = Finalized(1)
        obj = Finalized(2)
        after_another = list(Finalized.log)
        del obj
        return x + 1, after_another, list(Finalized.log)

    assert assert_same_as_eager(run, X, fullgraph=False)[1:] == ([1], [1, 2])


class Counted:
    alive = 0

    def __new__(cls) -> Counted:
        cls.alive += 1
        return object.__new__(cls)

    def __del__(self) -> None:
        type(self).alive -= 1


def test_finalizers_run_where_a_new_list_goes_that_held_the_objects() -> None:
    def run(x: torch.Tensor) -> Any:
        held = [Counted(), Counted()]
        before = Counted.alive
        try:
            one, two, three = held
        except ValueError:
            pass
        fxjit.graph_break()
        del held
        gone = Counted.alive
        held = [Counted()]
        held = (held, held)
        del held
        return x + 1, before, gone, Counted.alive

    assert assert_same_as_eager(run, X, fullgraph=False)[1:] == (2, 0, 0)


def test_a_generator_let_go_is_closed() -> None:
    def run(x: torch.Tensor) -> Any:
        log = []

        def items() -> Iterator[int]:
            try:
                yield 1
            finally:
                log.append("closed")

        generator = items()
        first = next(generator)
        del generator
        return x + first, log

    assert_same_as_eager(run, X, fullgraph=False)


def test_iterators_over_constants_are_made_anew() -> None:
    pattern = re.compile("a")

    def run(x: torch.Tensor) -> Any:
        return x + 1, [found.start() for found in pattern.finditer("aab")]

    assert assert_same_as_eager(run, X, fullgraph=False, calls=3)[1] == [0, 1]


class Gathers:
    log: list[str] = []

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def add(self, x: torch.Tensor) -> None:
        self.parts.append(x * 2)
        fxjit.graph_break()
        self.parts.append(x * 3)

    def __del__(self) -> None:
        self.log.append("gone")


def test_what_was_looked_at_while_it_was_compiled_ends_with_its_name() -> None:
    def run(x: torch.Tensor) -> Any:
        Gathers.log.clear()
        obj = Gathers()
        obj.add(x)
        ref, parts = weakref.ref(obj), obj.parts
        del obj
        fxjit.graph_break()
        return ref() is None, list(Gathers.log), torch.stack(parts)

    assert assert_same_as_eager(run, X, fullgraph=False)[:2] == (True, ["gone"])


def test_a_variable_of_a_closure_lets_its_object_go() -> None:
    def run(x: torch.Tensor) -> Any:
        Gathers.log.clear()
        obj: Any = Gathers()
        read = lambda: obj.parts  # noqa: E731, F821
        obj.add(x)
        parts, ref = read(), weakref.ref(obj)
        obj = Gathers()
        first, again = ref() is None, weakref.ref(obj)
        del obj
        return x + 1, first, again() is None, list(Gathers.log), len(parts)

    assert assert_same_as_eager(run, X, fullgraph=False)[1:] == (True, True, ["gone", "gone"], 2)


def test_a_reference_to_a_tensor_that_is_not_read_again() -> None:
    def run(x: torch.Tensor) -> Any:
        y = x + 1
        ref = weakref.ref(y)
        return ref() * 2, ref() is y

    assert_same_as_eager(run, X)

    def broken(x: torch.Tensor) -> Any:
        y, z = x + 1, x + 2
        ref = weakref.ref(y)
        watched = weakref.ref(z, lambda _: None)
        torch._dynamo.graph_break()
        return ref() * 2, watched() * 3

    assert_same_as_eager(broken, X, fullgraph=False)


def test_a_reference_to_a_tensor_of_a_function() -> None:
    def inner(y: torch.Tensor) -> Any:
        z = y * 2
        ref = weakref.ref(z)
        torch._dynamo.graph_break()
        return ref() + 1

    def run(x: torch.Tensor) -> Any:
        return inner(x) + inner(x + 1)

    assert_same_as_eager(run, X, fullgraph=False)


def test_a_reference_is_one_object_and_dead_where_nothing_holds_its_object() -> None:
    def run(x: torch.Tensor) -> Any:
        def make() -> Any:
            obj = Plain()
            return weakref.ref(obj)
        held, kept = Plain(), [Plain()]
        ref = weakref.ref(held)
        in_a_list = weakref.ref(kept[0])
        return x + 1, make()() is None, ref() is held, ref is weakref.ref(held), in_a_list() is kept[0]

    assert assert_same_as_eager(run, X, fullgraph=False)[1:] == (True, True, True, True)


def test_a_weak_set_of_tensors() -> None:
    def run(x: torch.Tensor) -> Any:
        y, refs = x + 1, weakref.WeakSet[torch.Tensor]()
        refs.add(y)
        by_name = weakref.WeakValueDictionary[str, torch.Tensor]()
        by_name["y"] = y
        return len(refs), len(by_name)

    assert assert_same_as_eager(run, X, fullgraph=False) == (1, 1)


def test_an_object_that_a_weak_reference_gave_ends_with_its_last_name() -> None:
    def run(x: torch.Tensor) -> Any:
        ended: list[str] = []
        obj = Plain()
        ref = weakref.ref(obj, lambda _: ended.append("ended"))
        given = ref()
        same = given is obj
        del given
        before = len(ended)
        del obj
        return x + 1, same, before, ref(), ended

    assert_same_as_eager(run, X, fullgraph=False)


class Linked:
    """Knows the one above it weakly."""

    def __init__(self, above: Linked | None = None, weight: float = 2.0) -> None:
        self.above = None if above is None else weakref.ref(above)
        self.weight = weight


TOP = Linked(weight=0.5)
MIDDLE = Linked(TOP)
BOTTOM = Linked(MIDDLE, 3.0)


def test_what_weak_references_give_is_gathered_in_a_loop() -> None:
    """Something else holds it: the variable that is overwritten, and the list that goes, end nothing."""
    def run(x: torch.Tensor) -> Any:
        found = [BOTTOM]
        above = BOTTOM.above
        while above is not None:
            one = above()
            assert one is not None
            found.append(one)
            above = one.above
            one = None
        for each in reversed(found):
            x = x * each.weight
        found = None
        return x, BOTTOM.above() is MIDDLE

    assert_same_as_eager(run, X, breaks=0)


@pytest.mark.parametrize("through_a_list", [False, True])
@pytest.mark.parametrize("called", [False, True])
def test_what_a_weak_reference_gave_ends_where_the_program_lets_go_of_it(through_a_list: bool, called: bool) -> None:
    def lets_go(holder: Any, x: torch.Tensor) -> Any:
        given = holder.ref()
        if through_a_list:
            found = [given]
            given = None
        del holder.held
        before = holder.ref() is None
        given = found = None
        return x + 1, before, holder.ref() is None

    def within(holder: Any, x: torch.Tensor) -> Any:
        y, before, after = lets_go(holder, x)
        return y * 2 if after else y, before, holder.ref() is None

    def make() -> tuple[Any, torch.Tensor]:
        holder = Plain()
        holder.held = Plain()  # type: ignore[attr-defined]  # written here
        holder.ref = weakref.ref(holder.held)  # type: ignore[attr-defined]  # the same
        return holder, X

    def run(given: Any, x: torch.Tensor) -> Any:
        return (within if called else lets_go)(given, x)

    compiled = fxjit.compile(run, backend="eager")
    for _ in range(2):  # references that are dead cannot be compared
        expected, actual = run(*make()), compiled(*make())
        assert torch.equal(actual[0], expected[0]) and actual[1:] == expected[1:]


class Unreferable:
    __slots__ = ("value",)


def test_what_cannot_be_referred_to_weakly_raises() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.sin()
        return y, weakref.ref(Unreferable())

    with pytest.raises(TypeError, match="cannot create weak reference to 'Unreferable' object"):
        fxjit.compile(program, backend="eager")(X)


KEPT_REFERENCE = weakref.ref(KEPT)
WEIGHT = torch.nn.Parameter(torch.ones(2))


def _refers(x: torch.Tensor) -> Any:
    y = x * WEIGHT
    y.origin = weakref.ref(WEIGHT)
    return y, y.origin() is WEIGHT and WEIGHT._cdata == y.origin()._cdata != y._cdata, weakref.ref(KEPT)() is KEPT


def test_references_to_what_existed_before_are_made_in_the_frame() -> None:
    result, *same = assert_same_as_eager(_refers, X)
    assert same == [True, True] and result.origin() is WEIGHT


@pytest.mark.parametrize("run", [
    lambda x: (x + 1, weakref.ref(KEPT) is KEPT_REFERENCE),
    lambda x: (x + 1, weakref.ref(KEPT) == KEPT_REFERENCE),
    lambda x: (x + 1, len({weakref.ref(KEPT), KEPT_REFERENCE})),
    lambda x: (x + 1, [weakref.ref(KEPT), weakref.ref(KEPT)][0] is KEPT_REFERENCE),
])
def test_there_is_one_reference_to_an_object(run: Any) -> None:
    """Which is seen when the program runs."""
    assert_same_as_eager(run, X, fullgraph=False)


def test_a_reference_to_what_the_frame_lets_go_is_dead() -> None:
    def run(x: torch.Tensor, held: dict[str, Any]) -> Any:
        ref = weakref.ref(held.pop("it"))
        return x + 1, ref() is None

    compiled = fxjit.compile(run, backend="eager")
    assert compiled(X, {"it": Plain()})[1] is run(X, {"it": Plain()})[1] is True


class Counter:
    """Its method is compiled, so that entries are bound to it; the program has no reference to it."""

    def __init__(self) -> None:
        self.found: int | None = None

    def place(self, x: torch.Tensor, wanted: float) -> int:
        found = (x == wanted).nonzero()
        return -1 if len(found) == 0 else int(found[0].item())

    def look(self, x: torch.Tensor, wanted: float) -> None:
        self.found = self.place(x, wanted)

    def step(self, x: torch.Tensor, wanted: float) -> torch.Tensor:
        self.look(x, wanted)
        assert self.found is not None
        return x + self.found


def test_references_of_our_own_are_none_of_the_programs() -> None:
    counter = Counter()
    step = fxjit.compile(counter.step, backend="eager")
    for wanted in (1.0, 2.0, 1.0):
        x = torch.arange(3.0)
        assert torch.equal(step(x, wanted), Counter().step(x, wanted))
    assert not any("can be seen" in str(reason) for reason in fxjit.counters["graph_break"])


def its_hash_is_asked_for(x, thing):
    ref = weakref.ref(thing)
    return x + (hash(ref) == hash(thing)), ref


def the_hash_of_a_given_one_is_asked_for(x, ref):
    return x + (hash(ref) == hash(ref())), ref


def no_hash_is_asked_for(x, thing):
    return x + 1, weakref.ref(thing)


@pytest.mark.parametrize("program", [its_hash_is_asked_for, the_hash_of_a_given_one_is_asked_for, no_hash_is_asked_for])
def test_the_hash_stays_when_the_object_is_gone(program):
    ends = []
    compiled = fxjit.compile(program, backend="eager")
    for call in (program, compiled, compiled):
        thing = Referent()
        _, ref = call(torch.ones(1), weakref.ref(thing) if program is the_hash_of_a_given_one_is_asked_for else thing)
        del thing
        assert ref() is None
        try:
            ends.append(hash(ref) is not None)
        except TypeError as error:
            ends.append(str(error))
    assert ends[0] == ends[1] == ends[2]


class Referent:
    pass


def used_and_deleted(x):
    y = x + 1
    ref = weakref.ref(y)
    torch._dynamo.graph_break()
    z = y + 1
    del y
    return ref() is None, z


def used_and_bound_anew(x):
    y = x + 1
    ref = weakref.ref(y)
    torch._dynamo.graph_break()
    y = y.sin() * 2
    return ref() is None, y


def its_size_is_read(x):
    y = x + 1
    ref = weakref.ref(y)
    torch._dynamo.graph_break()
    size = y.shape[0]
    y = None
    return ref() is None, x + size


def held_by_another(x):
    y = x + 1
    ref, kept = weakref.ref(y), [y]
    torch._dynamo.graph_break()
    y = y + 1
    return ref() is None, ref() is kept[0], y


def watched_by_a_callback(x):
    y, ended = x + 1, []
    ref = weakref.ref(y, lambda _: ended.append("ended"))
    torch._dynamo.graph_break()
    z = y + 1
    y = z
    ended.append("bound")
    return ended, z, ref


def taken_out_and_deleted(box):
    ended = []
    given = box.pop()
    ref = weakref.ref(given, lambda _: ended.append("ended"))
    y = given + 1
    del given
    ended.append("deleted")
    return ended, y, ref


def taken_out_of_the_stack(box):
    ended = []
    ref = weakref.ref(box[0], lambda _: ended.append("ended"))
    y = box.pop() * 2
    ended.append("taken")
    return ended, y, ref


def replaced_in_its_list(box):
    ended = []
    ref = weakref.ref(box[0], lambda _: ended.append("ended"))
    box[0] = box[0] * 2
    ended.append("replaced")
    return ended, box[0], ref


def kept_in_its_list(box):
    ended = []
    ref = weakref.ref(box[0], lambda _: ended.append("ended"))
    y = box[0] * 2
    box.append(1)
    ended.append("kept")
    return ended, y, ref


def in_a_dictionary_of_values(box):
    values = weakref.WeakValueDictionary(one=box[0])
    before = len(values)
    y = box.pop() * 2
    return (before, len(values)), y


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [taken_out_and_deleted, taken_out_of_the_stack, replaced_in_its_list, kept_in_its_list,
                                     in_a_dictionary_of_values])
@pytest.mark.usefixtures("no_collection")
def test_a_tensor_of_a_list_ends_where_the_list_and_the_frame_let_go_of_it(program, backend):
    compiled = fxjit.compile(program, backend=backend)
    expected = program([torch.ones(3)])
    for _ in range(3):
        found = compiled([torch.ones(3)])
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1], expected[1])


FIRST_COMPILE = textwrap.dedent("""
    import gc, weakref
    import torch, fxjit
    gc.disable()

    def called():
        kept = torch.ones(3)
        fxjit.compile(lambda x: x + 1, backend="eager")(kept)
        return weakref.ref(kept)

    assert called()() is None
""")


def test_what_torch_imports_with_the_first_compile_keeps_no_frame_of_the_program():
    done = subprocess.run([sys.executable, "-c", FIRST_COMPILE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [used_and_deleted, used_and_bound_anew, its_size_is_read, held_by_another,
                                     watched_by_a_callback])
def test_a_tensor_that_was_used_ends_where_it_is_let_go(program, backend):
    compiled = fxjit.compile(program, backend=backend)
    expected = program(X)
    for _ in range(2):
        found = compiled(X)
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1], expected[1])


def test_a_parameter_that_a_trace_has_used_is_let_go_of_without_a_break():
    weight = torch.nn.Parameter(torch.ones(2))

    def step(weight, x):
        weight = weight * x
        return weight.sum()

    for sizes in (2, 2), (1, 2), (3, 2):
        x = torch.ones(sizes)
        assert torch.equal(fxjit.compile(step, backend="eager", fullgraph=True)(weight, x), step(weight, x))
