"""A break inside functions that are called keeps the graphs of their callers whole: what ran before the break is one graph,
the rests of all are another. The instruction that broke runs under frames of the same functions."""

from __future__ import annotations

import copy
import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.differential import assert_same_as_eager, outcome_with_tracebacks  # noqa: E402

import fxjit  # noqa: E402
from fxjit.testing import EagerAndRecordGraphs  # noqa: E402

HERE = __file__
seen: list[Any] = []


@fxjit.disable
def look(tag: Any = None) -> Any:
    """Breaks the graph; remembers who called, and the grad mode."""
    frame, names = sys._getframe(1), []
    while frame is not None and frame.f_code.co_name != outcome_with_tracebacks.__name__:
        if "fxjit" + "/" not in frame.f_code.co_filename.replace("\\", "/").replace(HERE, ""):
            names.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    seen.append((tag, names, torch.is_grad_enabled()))
    return tag


@fxjit.disable
def fail() -> None:
    raise KeyError("failed")


def assert_same_calls(fn: Callable[..., Any], *args: Any, **options: Any) -> None:
    """As eager, several times; and `look` sees the same."""
    args = args or (torch.tensor([1.0, 2.0]),)

    def make() -> Any:
        seen.clear()
        return copy.deepcopy(args)

    assert_same_as_eager(
        fn, calls=3, fullgraph=False, make=make, tracebacks=True, state=lambda: list(seen), **options
    )  # fmt: skip


def inner(x: Any) -> Any:
    y = x.sin()
    look()
    return y.cos()


def middle(x: Any, by: int = 3) -> Any:
    z = x * by
    return inner(z) + z


def test_inner_and_outer_are_two_graphs() -> None:
    def outer(x: Any) -> Any:
        y = x + 1
        return inner(y) * 2 + y

    assert_same_calls(outer, graphs=[2, 3], breaks=1)


def test_three_deep_are_two_graphs() -> None:
    def outer(x: Any) -> Any:
        return middle(x + 1) * middle(x, by=2)

    assert_same_calls(outer, graphs=[3, 4, 3], breaks=2)


def test_without_the_setting_each_function_has_graphs_of_its_own() -> None:
    def outer(x: Any) -> Any:
        y = x + 1
        return inner(y) * 2 + y

    with fxjit.config.patch(nested_graph_breaks=False):
        assert_same_calls(outer, graphs=[1, 1, 1, 2])


def test_the_break_is_told_once_by_the_inner_functions_line() -> None:
    def outer(x: Any) -> Any:
        return middle(x)

    explained = fxjit.explain(outer)(torch.ones(2))
    (told,) = explained.break_reasons
    assert [frame.name for frame in told.user_stack] == ["outer", "middle", "inner"]
    assert told.user_stack[-1].line == "look()"
    with pytest.raises(fxjit.errors.Unsupported, match="look"):
        fxjit.compile(outer, fullgraph=True, backend="eager")(torch.ones(2))


def test_a_branch_on_data_in_an_inner_function_goes_both_ways() -> None:
    def clip(x: Any) -> Any:
        if x.sum() > 0:
            return x * 2
        return -x

    def outer(x: Any) -> Any:
        return clip(x) + 1

    fxjit.reset()
    backend = EagerAndRecordGraphs()
    compiled = fxjit.compile(outer, backend=backend)
    for x in (torch.ones(2), -torch.ones(2), torch.ones(2), -torch.ones(2)):
        assert torch.equal(compiled(x), outer(x))
    assert len(backend.graphs) == 3 and not fxjit.counters["recompiles"]


def test_what_lies_on_the_stacks_meanwhile() -> None:
    def outer(x: Any) -> Any:
        return [x, inner(x), (lambda a, *b, k: (a, b, k))(x * 2, inner(x), *[1], k=inner(x + 1))], f"{len(middle(x))}"

    assert_same_calls(outer)


class Base:
    def __init__(self, by: float) -> None:
        self.by = by

    def __repr__(self) -> str:
        return f"Base({self.by})"

    def go(self, x: Any) -> Any:
        self.by += 1
        look("base")
        return x * self.by

    def __call__(self, x: Any) -> Any:
        return self.go(x) + 1


class Derived(Base):
    def go(self, x: Any) -> Any:
        captured = lambda: self.by  # noqa: E731 - `self` is a cell
        look("derived")
        return super().go(x + captured()) - captured()


def test_methods_super_and_callable_objects() -> None:
    def outer(x: Any) -> Any:
        obj = Derived(3.0)
        return obj(x) + obj.go(x), obj.by

    assert_same_calls(outer)
    assert_same_calls(lambda x, obj: (obj(x), obj.by), torch.ones(2), Base(2.0))

class Held:
    def __init__(self, value: Any, by: Any = 2, **more: Any) -> None:
        y = value * by
        look(("held", sorted(more)))
        self.value = y + 1


class HeldTwice(Held):
    def __init__(self, x: Any) -> None:
        self.first = x
        super().__init__(x, by=3, a=1)
        look("twice")
        self.last = self.value * 2


@dataclass
class Record:
    a: Any
    b: int = 3
    seen: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.total = self.a + self.b
        look("record")
        self.seen.append(self.total * 2)


class Slotted:
    __slots__ = ("me", "second")

    def __init__(self, x: Any) -> None:
        y = x + 1
        look("slotted")
        self.me, self.second = self, y * 2


class Counting(torch.nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        look(sorted(vars(self)))
        self.by = by

    def forward(self, x: Any) -> Any:
        return x * self.by


def test_constructors_nest() -> None:
    assert_same_calls(lambda x: Held(x + 1).value * 2, graphs=[2, 2], breaks=1)
    assert_same_calls(lambda x: (HeldTwice(x).last, HeldTwice(x + 1).first))
    assert_same_calls(lambda x: (Record(x * 2).seen, Record(x, seen=[1]).seen, Record(x, 4).total), breaks=3)
    assert_same_calls(lambda x: (lambda made: made.me is made and made.second)(Slotted(x)), graphs=[1, 1], breaks=1)
    assert_same_calls(lambda x: Counting(2.0)(x) + 1, graphs=[2], breaks=1)
    assert_same_calls(lambda x: [x, Held(HeldTwice(x).last, by=x).value, f"{Held(x, **{'c': 1}).value}"])


def test_what_a_constructor_returns_and_raises() -> None:
    class Returns:
        def __init__(self, x: Any, what: Any) -> None:
            y = x + 1
            look("returns")
            self.y = y
            return what(y)  # noqa: PLE0101

    class Raises:
        def __init__(self, x: Any) -> None:
            self.y = x + 1
            fail()

    def outer(x: Any, what: Any) -> Any:
        return Returns(x, what).y * 2

    def made_in_between(x: Any) -> Any:
        with torch.no_grad():
            return Raises(x + 1).y

    assert_same_calls(outer, torch.ones(2), lambda y: None, breaks=1)
    assert_same_calls(outer, torch.ones(2), lambda y: 3)
    assert_same_calls(outer, torch.ones(2), lambda y: y)
    assert_same_calls(made_in_between)


def test_objects_that_more_than_init_makes() -> None:
    class New:
        def __new__(cls, x: Any) -> Any:
            made = super().__new__(cls)
            made.before = x * 2
            look("new")
            return made

        def __init__(self, x: Any) -> None:
            y = self.before + x
            look("init")
            self.after = y * 2

    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            look("meta")
            return super().__call__(*args)

    class OfMeta(metaclass=Meta):
        def __init__(self, x: Any) -> None:
            y = x + 1
            look("of meta")
            self.y = y

    class Table(dict):
        def __init__(self, x: Any) -> None:
            super().__init__(a=x)
            look(sorted(self))
            self["b"] = x * 2

    class Problem(Exception):
        def __init__(self, x: Any) -> None:
            look("problem")
            super().__init__("text")
            self.x = x * 2

    assert_same_calls(lambda x: (New(x).after, OfMeta(x).y, sorted(Table(x).items()), Problem(x).x))


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        look("layer")
        return y.relu()


def test_modules_with_the_frames_of_torch_between() -> None:
    torch.manual_seed(0)
    first, second = Layer(), Layer()

    def outer(x: Any) -> Any:
        return second(first(x) + 1) * 2

    assert_same_calls(outer, graphs=[1, 3, 2], breaks=2)


def test_hooks_of_a_module() -> None:
    class Quiet(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            y = x + 1
            fxjit.graph_break()
            return y * 2

    layer = Quiet()
    layer.register_forward_pre_hook(lambda module, args: (args[0] - 1,))
    layer.register_forward_hook(lambda module, args, output: output + 1)
    assert_same_calls(lambda x: layer(x) * 2, graphs=[2, 3], breaks=1)


def test_closures_share_their_cells() -> None:
    def outer(x: Any) -> Any:
        count, kept = 0, []

        def step(a: Any) -> Any:
            nonlocal count, x
            count += 1
            kept.append(lambda: (count, x))
            x = x + a
            look(count)
            count += 10
            return a * count

        y = step(x)
        z = step(y)
        return y, z, count, [each() for each in kept], x

    assert_same_calls(outer)


def test_mutations_are_seen_in_order() -> None:
    def fill(items: list[Any], table: dict[str, Any], x: Any) -> Any:
        items.append(x * 2)
        table["first"] = len(items)
        look((len(items), dict(table)))
        items.append(x * 3)
        table["second"] = items
        return items[-1]

    def outer(x: Any, items: list[Any]) -> Any:
        table: dict[str, Any] = {"zero": items}
        last = fill(items, table, x)
        items.append(last)
        return table, items

    assert_same_calls(outer, torch.ones(2), [1], breaks=1)


def test_blocks_around_and_inside_are_as_they_should_be() -> None:
    def block(x: Any) -> Any:
        with torch.no_grad():
            y = x * 2
            look("inside")
            return y, torch.is_grad_enabled()

    @torch.no_grad()
    def decorated(x: Any) -> Any:
        look("decorated")
        return x + 1, torch.is_grad_enabled()

    def outer(x: Any) -> Any:
        with torch.enable_grad():
            a = block(x)
            look("between")
            b = decorated(x)
        return a, b, block(x), torch.is_grad_enabled()

    assert_same_calls(outer)
    with torch.no_grad():
        assert_same_calls(outer)


def test_an_exception_of_the_instruction_goes_through_the_users_functions() -> None:
    def fails(x: Any) -> Any:
        with torch.no_grad():
            y = x * 2
            fail()
        return y

    def between(x: Any) -> Any:
        with torch.enable_grad():
            return fails(x + 1)

    def outer(x: Any) -> Any:
        return between(x) + 1

    def catches(x: Any) -> Any:
        try:
            return between(x)
        except KeyError:
            return x, torch.is_grad_enabled()

    assert_same_calls(outer)
    assert_same_calls(catches)


def test_an_exception_of_the_rest_goes_through_the_users_functions() -> None:
    def fails(x: Any) -> Any:
        with torch.no_grad():
            look()
            if len(x) == 2:
                raise ValueError("after the break")
        return x

    def outer(x: Any) -> Any:
        y = x + 1
        return fails(y) + y

    assert_same_calls(outer)


def test_recursion_is_compiled_once_and_not_once_a_level() -> None:
    def down(x: Any, n: int) -> Any:
        look(n)
        return x if n == 0 else down(x + 1, n - 1) * 2

    assert_same_calls(lambda x: down(x, 12))
    fxjit.reset()
    fxjit.compile(down, backend="eager")(torch.ones(2), 30)
    assert fxjit.counters["frames"]["ok"] < 30


def test_where_a_caller_cannot_wait_the_break_is_its_own() -> None:
    def in_loop(x: Any) -> Any:
        for _ in range(2):
            x = inner(x)
        return x

    def in_try(x: Any) -> Any:
        try:
            return inner(x)
        finally:
            look("finally")

    def in_generator(x: Any) -> Any:
        yield inner(x)
        yield inner(x + 1)

    def by_builtin(x: Any) -> Any:
        return sorted([2, 1], key=lambda n: (inner(x), n)[1])

    def by_operator(x: Any) -> Any:
        class Number:
            def __add__(self, other: Any) -> Any:
                return inner(other)

        return Number() + x

    for called in (in_loop, in_try, lambda x: list(in_generator(x)), by_builtin, by_operator):
        assert_same_calls(lambda x, called=called: called(x + 1))


def test_a_skipped_function_is_skipped_alone() -> None:
    def skipped(x: Any) -> Any:
        y = x + 1
        fxjit.skip_frame()
        return y * 2

    fxjit.reset()
    backend = EagerAndRecordGraphs()
    assert torch.equal(fxjit.compile(lambda x: skipped(x * 3) - 1, backend=backend)(torch.ones(2)), torch.full((2,), 7.0))
    assert len(backend.graphs) == 2


def test_arguments_of_every_kind() -> None:
    def takes(a: Any, /, b: Any = 2, *rest: Any, k: Any = 3, **more: Any) -> Any:
        total = a * b + k
        look((len(rest), sorted(more)))
        return total + sum(rest) + sum(more.values()), rest, more

    def outer(x: Any) -> Any:
        return takes(x), takes(x, 1, 2, 3, k=4, z=5), takes(*[x, 2], **{"k": 1, "y": 2})

    assert_same_calls(outer)


def test_warnings_name_the_line_that_the_user_wrote() -> None:
    def warns(x: Any) -> Any:
        y = x + 1
        warnings.warn("told", stacklevel=2)
        return y * 2

    def outer(x: Any) -> Any:
        return warns(x)

    def caught(fn: Callable[..., Any]) -> Any:
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            fn(torch.ones(2))
        return [(str(each.message), each.filename, each.lineno) for each in record]

    fxjit.reset()
    assert caught(fxjit.compile(outer, backend="eager")) == caught(outer)


def test_nothing_outlives_what_the_users_frames_would_hold() -> None:
    alive: list[Any] = []

    @fxjit.disable
    def count() -> int:
        gc.collect()
        return sum(ref() is not None for ref in alive)

    @fxjit.disable
    def note(x: Any) -> Any:
        alive.append(weakref.ref(x))
        return x

    def holds(x: Any) -> Any:
        big = note(x * 2)
        y = big + 1
        del big
        return count(), y

    def outer(x: Any) -> Any:
        mine = note(x + 1)
        z = mine * 2
        del mine
        n, y = holds(z)
        return n, y + z

    fxjit.reset()
    compiled = fxjit.compile(outer, backend="eager")
    for _ in range(2):
        alive.clear()
        assert compiled(torch.ones(2))[0] == 0


def test_functions_of_other_modules_keep_their_globals(tmp_path: Any) -> None:
    namespace: dict[str, Any] = {"look": look, "factor": 5, "__name__": "elsewhere"}
    lines = ["def there(x):", "    global count", "    y = x * factor", "    look()", "    count = len(y)",
             "    return y + factor + count"]
    exec(compile("\n".join(lines), str(tmp_path / "elsewhere.py"), "exec"), namespace)
    there = namespace["there"]
    assert_same_calls(lambda x: there(x) + 1, graphs=[1, 3])
    namespace["factor"] = 7
    assert torch.equal(fxjit.compile(there, backend="eager")(torch.ones(2)), torch.full((2,), 16.0))


def test_a_generator_is_closed_inside_the_block_that_let_it_go() -> None:
    log: list[Any] = []

    def items(x: Any) -> Any:
        try:
            look()
            yield x + 1
            yield x + 2
        finally:
            log.append(torch.is_grad_enabled())

    def inner(x: Any) -> Any:
        with torch.no_grad():
            x = x * next(items(x))
            log.append("behind")
        return x

    def outer(x: Any) -> Any:
        return inner(x + 1) * 2

    compiled = fxjit.compile(outer, backend="eager")
    for fn in (outer, compiled, compiled):
        log.clear()
        assert torch.equal(fn(torch.ones(2)), torch.full((2,), 12.0))
        assert log == [False, "behind"]
