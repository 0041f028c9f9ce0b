"""Entry code piece by piece: the graph, sources, effects, blocks, branches, what is kept alive, what a traceback shows."""

from __future__ import annotations

import gc
import sys
import traceback
import types
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import stepping
from stepping import Known

from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.bytecode.versions import VERSION
from fxjit.frontend.effects import Effects
from fxjit.frontend.result import Break, FrameState, GraphInput, Return, TraceResult, WithBlock
from fxjit.frontend.rng_steps import RngSteps
from fxjit.frontend.values.base import NULL, Lazy, Rebuilder, Value
from fxjit.guards.source import AttrSource, ClosureCellSource, LocalSource, Source
from fxjit.resume import cache, entry
from fxjit.resume.function import ResumePoint


class Existing(Value):
    """An object from outside."""

    def __init__(self, source: Source, kind: type = object) -> None:
        super().__init__(source)
        self.kind = kind

    def pytype(self) -> type:
        return self.kind


class Computed(Value):
    """What the graph computes."""

    def __init__(self) -> None:
        super().__init__(None)
        self.node = object()  # type: ignore[assignment]


class Listed(Value):
    """A list, made while tracing or from outside; it may contain itself."""

    shell = True

    def __init__(self, items: list[Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.items = items

    def rebuild(self, cg: Rebuilder) -> None:
        cg.asm.build_list(0)

    def fill(self, cg: Rebuilder) -> None:
        for item in self.items:
            cg.push(item)
        cg.asm.build_list(len(self.items))
        cg.asm.list_extend(1)

    def write_back(self, cg: Rebuilder) -> None:
        for item in self.items:
            cg.push(item)
        cg.asm.build_list(len(self.items))
        cg.asm.call_const(set_list, 2)
        cg.asm.pop()


def set_list(old: list[Any], new: list[Any]) -> None:
    old[:] = new


class Graph:
    def __init__(self, *sources: Source) -> None:
        self.inputs = [GraphInput(source, None) for source in sources]


def assemble(fn: Any, stop: Return | Break, compiled: Any = None, graph: Any = None, log: Effects | None = None) -> Any:
    """The function that the entry for `fn` runs."""
    log = log or Effects()
    code = decode(fn.__code__)
    result = TraceResult(
        code=code, arg_names=code.argument_slots, graph=graph or Graph(), guards=None,  # type: ignore[arg-type]
        effects=log.records(), effect_log=log, end=stop, first_line=0, globals=fn.__globals__,
        finish_trace=lambda: None, rng_steps=RngSteps(),
    )  # fmt: skip
    planned = entry.plan(result)
    made = types.FunctionType(entry.assemble(result, planned, compiled), fn.__globals__, "new", None, fn.__closure__)

    def call(*args: Any) -> Any:
        return stepping.finished(made(*args))

    call.planned, call.made = planned, made  # type: ignore[attr-defined]
    return call


def stop_at(fn: Any, call_of: str, stack: Sequence[Value], locals_: dict[str, Value], cells: Any = None, blocks: Any = (),
            kind: str = "instruction") -> Break:  # fmt: skip
    """A stop at the CALL behind the load of a global name."""
    code = decode(fn.__code__)
    start = next(i.index for i in code.instructions if i.argval == call_of and i.opname == "LOAD_GLOBAL")
    index = next(i.index for i in code.instructions[start:] if i.opname == "CALL")
    return Break(index, kind, FrameState(tuple(stack), locals_, cells or {}, blocks), None)  # type: ignore[arg-type]


def callable_entries(fn: Any) -> list[Value]:
    """[NULL, callable] in the order of this Python."""
    return [NULL, Known(fn)] if VERSION.null_below else [Known(fn), NULL]


def x(name: str = "x") -> Existing:
    return Existing(LocalSource(name))


# -- graph and result ----------------------------------------------------------------------------------------------


def test_the_graph_is_called_with_its_inputs_and_gives_what_is_needed() -> None:
    def fn(a: Any, b: Any) -> Any: ...

    calls = []

    def compiled(*args: Any) -> Any:
        calls.append(args)
        return ("first", "second")

    one, two = Computed(), Computed()
    new = assemble(fn, Return(Listed([two, one, two, x("b")])), compiled,
                   Graph(LocalSource("b"), AttrSource(LocalSource("a"), "real")))  # fmt: skip
    assert new.planned.outputs == [two, one]
    assert new(3, "b") == ["first", "second", "first", "b"]
    assert calls == [("b", 3)]


def test_objects_from_outside_keep_their_identity_and_new_ones_are_made_once() -> None:
    def fn(x: Any) -> Any: ...

    shared = Listed([x()])
    whole = Listed([shared, shared])
    whole.items.append(whole)
    thing = object()
    got = assemble(fn, Return(whole))(thing)
    assert got[0] is got[1] and got[2] is got and got[0][0] is thing


def test_what_was_never_looked_at_is_loaded_from_where_it_is() -> None:
    def fn(x: Any) -> Any: ...

    thing = object()
    trace = types.SimpleNamespace(lazies=[])
    lazy = Lazy(trace, thing, LocalSource("x"))  # type: ignore[arg-type]
    assert assemble(fn, Return(lazy))(thing) is thing


# -- effects -------------------------------------------------------------------------------------------------------


class Box:
    pass


def test_effects_are_replayed_in_order_after_all_that_they_overwrite_was_read() -> None:
    def fn(box: Any, items: Any) -> Any: ...

    log = Effects()
    box = Existing(LocalSource("box"), Box)
    old = Existing(AttrSource(LocalSource("box"), "value"))
    seen: list[Any] = []
    items = Listed([old, old], LocalSource("items"))
    log.mutate(items)
    log.store_attr(box, "value", Known("new"))
    log.store_attr(box, "gone", None)
    log.call_later(lambda *args: seen.append([str(arg) for arg in args]), [old, "const"])
    given_box, given_items = Box(), [1]
    given_box.value, given_box.gone = "old", 1  # type: ignore[attr-defined]
    assert assemble(fn, Return(old), log=log)(given_box, given_items) == "old"
    assert vars(given_box) == {"value": "new"}
    assert given_items == ["old", "old"] and seen == [["old", "const"]]


# -- stops ---------------------------------------------------------------------------------------------------------


def opaque(value: Any) -> Any:
    return value


def breaks_once(x: Any, unused: Any) -> Any:
    kept = [x]
    got = opaque(x)
    return kept, got


def test_a_stop_runs_the_call_and_goes_on_with_what_is_live() -> None:
    kept = Listed([x()])
    stop = stop_at(breaks_once, "opaque", [*callable_entries(opaque), x()], {"x": x(), "unused": x("unused"), "kept": kept})
    thing = object()
    assert assemble(breaks_once, stop)(thing, 1) == ([thing], thing)


def test_nothing_dead_is_kept_alive_while_the_rest_runs() -> None:
    class Tensor:
        pass

    alive: dict[str, Any] = {}

    def look(value: Any) -> Any:
        gc.collect()
        alive["in the call"] = [name for name, obj in references.items() if obj() is not None]
        return value

    def later() -> None:
        gc.collect()
        alive["in the rest"] = [name for name, obj in references.items() if obj() is not None]

    scope = {"opaque": look, "later": later}
    exec("def fn(x):\n y = x\n got = opaque(y)\n got = None\n later()\n return got", scope)
    fn: Any = scope["fn"]
    out, dead = Computed(), Computed()
    stop = stop_at(fn, "opaque", [*callable_entries(look), Known(1)], {"y": out, "x": dead})
    references: dict[str, Any] = {}

    def compiled(given: Any) -> Any:
        made = (Tensor(), Tensor())
        references.update(out=weakref.ref(made[0]), dead=weakref.ref(made[1]), given=weakref.ref(given))
        return made

    log = Effects()
    log.call_later(lambda *args: None, [out, dead])
    new = assemble(fn, stop, compiled, Graph(LocalSource("x")), log)

    assert new(Tensor()) is None
    assert "dead" not in alive["in the call"] and "out" not in alive["in the call"]
    assert alive["in the rest"] == [] or alive["in the rest"] == ["given"], "a caller of Python's may hold an argument"


def captures(x: Any) -> Any:
    count = x

    def bump() -> Any:
        nonlocal count
        count += 1
        return count

    opaque(bump)
    bump()
    return count, bump


def test_cells_are_shared_with_the_functions_that_were_made_while_tracing() -> None:
    class Cell(Value):
        shell = True

        def rebuild(self, cg: Rebuilder) -> None:
            cg.call(types.CellType)

        def fill(self, cg: Rebuilder) -> None:
            cg.asm.dup()
            cg.push(x())
            cg.asm.swap(2)
            cg.asm.store_attr("cell_contents")

    class Made(Value):
        def rebuild(self, cg: Rebuilder) -> None:
            def closure() -> None:
                cg.push(cell)
                cg.asm.build_tuple(1)

            code = next(item for item in captures.__code__.co_consts if isinstance(item, types.CodeType))
            cg.asm.make_function(code, closure)

    cell, bump = Cell(), Made()
    stop = stop_at(captures, "opaque", [*callable_entries(opaque), bump], {"bump": bump}, {"count": cell})
    count, got = assemble(captures, stop)(5)
    assert count == 6 and got() == 7


def outer(start: int) -> Any:
    total = start

    def inner(x: int) -> Any:
        nonlocal total
        total += x
        opaque(x)
        total += x
        return total

    return inner


def test_free_variables_stay_the_same_cells() -> None:
    inner = outer(100)
    log = Effects()
    stop = stop_at(inner, "opaque", [*callable_entries(opaque), x()], {"x": x()},
                   {"total": Existing(ClosureCellSource("total"))})  # fmt: skip
    assert assemble(inner, stop, log=log)(5) == 105
    assert inner.__closure__[0].cell_contents == 105


# -- with ----------------------------------------------------------------------------------------------------------


class Manager:
    log: list[str] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Manager:
        self.log.append(f"+{self.name}")
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self.log.append(f"-{self.name}" + (f" {kind.__name__}" if kind else ""))


class Managing:
    exit_state = None

    def __init__(self, name: str) -> None:
        self.name = name

    def push_manager(self, cg: Rebuilder) -> None:
        cg.call(Manager, self.name)


def say(value: Any) -> Any:
    Manager.log.append(f"call {value}")
    if value == "raise":
        raise KeyError(value)
    return value


def inside(x: Any) -> Any:
    with Manager("a"):
        with Manager("b"):
            say(x)
            Manager.log.append("rest of b")
            if x == "raise later":
                raise ValueError(x)
        Manager.log.append("rest of a")
    return "end"


def stopped_inside(kind: str) -> Any:
    blocks = (WithBlock(0, Managing("a")), WithBlock(1, Managing("b")))
    exits = [Known("exit a"), Known("exit b")]
    stack = [*exits, *callable_entries(say), x()]
    return assemble(inside, stop_at(inside, "say", stack, {"x": x()}, blocks=blocks, kind=kind))


@pytest.fixture(autouse=True)
def quiet() -> None:
    Manager.log = []


def test_blocks_are_entered_around_the_call_and_again_for_the_rest() -> None:
    assert stopped_inside("instruction")("hello") == "end"
    assert Manager.log == ["+a", "+b", "call hello", "-b", "-a", "+a", "+b", "rest of b", "-b", "rest of a", "-a"]


def test_an_exception_of_the_call_leaves_all_blocks() -> None:
    with pytest.raises(KeyError) as caught:
        stopped_inside("instruction")("raise")
    assert Manager.log == ["+a", "+b", "call raise", "-b KeyError", "-a KeyError"]
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames[-2:]] == ["inside", "say"]
    assert frames[-2].line == "say(x)"
    assert sys.exc_info() == (None, None, None)


def test_an_exception_of_the_rest_leaves_the_blocks_entered_again() -> None:
    with pytest.raises(ValueError):
        stopped_inside("instruction")("raise later")
    assert Manager.log[5:] == ["+a", "+b", "rest of b", "-b ValueError", "-a ValueError"]


def test_a_stop_that_runs_nothing_enters_only_in_the_resume_function() -> None:
    assert stopped_inside("resume")("hello") == "end"
    assert Manager.log[-6:] == ["+b", "call hello", "rest of b", "-b", "rest of a", "-a"]


# -- branches ------------------------------------------------------------------------------------------------------


def choosing(x: Any, y: Any) -> Any:
    if opaque(x):
        y = ("yes", y)
    else:
        y = ("no", y)
    return y


def test_a_branch_behind_the_call_has_two_resume_functions() -> None:
    stop = stop_at(choosing, "opaque", [*callable_entries(opaque), x()], {"x": x(), "y": x("y")})
    new = assemble(choosing, stop)
    assert [new(value, 1) for value in (0, 5, [], "text")] == [("no", 1), ("yes", 1), ("no", 1), ("yes", 1)]
    made = [item for item in new.made.__code__.co_consts if isinstance(item, types.CodeType)]
    assert len(made) == 2


# -- names, lines, sharing -----------------------------------------------------------------------------------------


def failing(x: Any) -> Any:
    opaque(x)
    y = x + 1
    return (
        y.missing
    )


def test_tracebacks_show_the_users_function_and_lines() -> None:
    stop = stop_at(failing, "opaque", [*callable_entries(opaque), x()], {"x": x()})
    new = assemble(failing, stop)
    with pytest.raises(AttributeError) as caught:
        new(1)
    frames = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if frame.name == "failing"]
    assert {(frame.filename, frame.name) for frame in frames} == {(__file__, "failing")}
    first = failing.__code__.co_firstlineno
    assert [frame.lineno - first for frame in frames if frame.name == "failing"] == [4], "just as eager"


def test_the_graph_fails_on_the_first_line_traced() -> None:
    def compiled() -> Any:
        raise ZeroDivisionError

    new = assemble(failing, Return(Computed()), compiled)
    with pytest.raises(ZeroDivisionError) as caught:
        new(1)
    frame = traceback.extract_tb(caught.value.__traceback__)[-2]
    assert (frame.name, frame.lineno) == ("failing", failing.__code__.co_firstlineno + 1)


def two_breaks(x: Any) -> Any:
    a = opaque(x)
    b = opaque(a)
    return a, b


def test_a_stop_in_a_resume_function_continues_the_original() -> None:
    code = two_breaks.__code__
    decoded = decode(code)
    first, second = (i.index for i in decoded.instructions if i.opname == "CALL")
    one = cache.resume_function_of(code, ResumePoint(first + 1, (False,), (), ("x",)))
    two = cache.resume_function_of(code, ResumePoint(second + 1, (False,), (), ("a",)))
    inside = decode(one.code)
    again = next(i.index for i in inside.instructions if i.opname == "CALL")
    assert cache.locate(one.code, again) == cache.Origin(code, second)
    assert cache.locate(one.code, again + 1) == cache.Origin(code, second + 1)
    assert cache.locate(code, 3) == cache.Origin(code, 3)
    assert cache.resume_function_of(code, ResumePoint(second + 1, (False,), (), ("a",))) is two
    assert cache.origin_of(two.code) == cache.Origin(code, second + 1)
    assert cache.origin_of(code) is None
    assert two.code.co_name == "two_breaks" and two.code.co_firstlineno == code.co_firstlineno


def test_resume_functions_go_with_the_code_they_continue() -> None:
    scope: dict[str, Any] = {}
    exec("def f(x):\n print(x)\n return x", scope)
    code = scope["f"].__code__
    index = next(i.index for i in decode(code).instructions if i.opname == "CALL")
    made = weakref.ref(cache.resume_function_of(code, ResumePoint(index + 1, (False,), (), ("x",))).code)
    original = weakref.ref(code)
    del code, scope
    gc.collect()
    assert original() is None and made() is None


def test_what_lies_before_the_place_is_left_out() -> None:
    from fxjit.frontend.bytecode.flow import loops

    def fn(x: Any) -> Any:
        for item in x:
            try:
                opaque(item)
            except ValueError:
                pass
        opaque(x)
        return x

    decoded = decode(fn.__code__)
    last = [i.index for i in decoded.instructions if i.opname == "CALL"][-1]
    made = decode(cache.resume_function_of(fn.__code__, ResumePoint(last + 1, (False,), (), ("x",))).code)
    assert loops(decoded) and not loops(made)
    assert decoded.protected and not made.protected


def test_stepping_helpers_agree_with_plain_calls() -> None:
    state = stepping.start(two_breaks, 4)
    assert stepping.finish(state) == two_breaks(4)
