"""Every helper of Asm, as a function that runs."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any

import pytest

from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.decode import decode


def template() -> None:
    """Gives its names and its file to what is assembled."""


def function(write: Callable[[Asm], None], args: Sequence[str] = (), cells: dict[str, CellType] | None = None) -> Any:
    asm = Asm(args, tuple(cells or ()))
    asm.line(10)
    asm.prologue()
    write(asm)
    asm.return_value()
    scope = {"__builtins__": __builtins__, "number": 5}
    return FunctionType(asm.finish(template.__code__), scope, "made", None, tuple((cells or {}).values()) or None)


def result(write: Callable[[Asm], None], *args: Any, cells: dict[str, CellType] | None = None) -> Any:
    return function(write, [f"a{n}" for n in range(len(args))], cells)(*args)


class Unfriendly:
    """An object that must be left alone."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a constant is not compared")

    def __hash__(self) -> int:
        raise AssertionError("a constant is not hashed")


@pytest.mark.parametrize(
    "obj", [Unfriendly(), [1], {"x": 1}, {1}, frozenset({"a", "b c"}), ("x", [1]), 1, 1.0, True, -0.0, "text", None, ...,
            float("nan"), (1, (2, "y")), int, print, Asm], ids=lambda obj: type(obj).__name__)  # fmt: skip
def test_any_object_is_a_constant_and_stays_itself(obj: Any) -> None:
    made = function(lambda asm: asm.load_const(obj))
    assert made() is obj
    hash(made.__code__)


def test_equal_constants_stay_apart() -> None:
    def write(asm: Asm) -> None:
        for obj in (1, 1.0, True, 0.0, -0.0, first, second):
            asm.load_const(obj)
        asm.build_tuple(7)

    first, second = [1], [1]
    got = result(write)
    assert repr(got) == "(1, 1.0, True, 0.0, -0.0, [1], [1])" and got[5] is first and got[6] is second


def test_locals() -> None:
    def write(asm: Asm) -> None:
        temp = asm.fresh_local("temp")
        assert not temp.isidentifier() and temp != asm.fresh_local("temp")
        asm.load_local("a0")
        asm.store_local(temp)
        asm.take_local(temp)
        asm.load_local("a1")
        asm.delete_local("a1")
        asm.build_tuple(2)

    assert result(write, 1, 2) == (1, 2)


def test_cells_and_globals() -> None:
    cell = CellType(7)

    def write(asm: Asm) -> None:
        asm.load_deref("x")
        asm.load_const(8)
        asm.store_deref("x")
        asm.load_cell("x")
        asm.load_global("number")
        asm.load_builtin("len")
        asm.load_globals()
        asm.load_item("number")
        asm.build_tuple(5)

    assert result(write, cells={"x": cell}) == (7, cell, 5, len, 5)
    assert cell.cell_contents == 8


class Thing:
    def __init__(self) -> None:
        self.x = [1, 2]


def test_attributes_and_items() -> None:
    def write(asm: Asm) -> None:
        asm.load_local("a0")
        asm.load_attr("x")
        asm.load_item(1)
        asm.load_local("a0")
        asm.store_attr("y")  # a0.y = a0.x[1]
        asm.load_const(9)
        asm.load_local("a0")
        asm.load_attr("x")
        asm.load_const(0)
        asm.store_subscript()  # a0.x[0] = 9
        asm.load_local("a0")
        asm.load_attr("x")
        asm.load_const(1)
        asm.delete_subscript()  # del a0.x[1]
        asm.load_local("a0")
        asm.load_attr("__dict__")
        asm.begin_call(dict)
        asm.copy(3)
        asm.call(1)
        asm.load_local("a0")
        asm.delete_attr("y")
        asm.swap(2)
        asm.pop()

    thing = Thing()
    assert result(write, thing) == {"x": [9], "y": 2}
    assert not hasattr(thing, "y")


def test_the_stack() -> None:
    def write(asm: Asm) -> None:
        for n in range(4):
            asm.load_const(n)
        asm.rot(3)  # 0 3 1 2
        asm.dup()
        asm.swap(3)  # 0 3 2 2 1
        asm.copy(4)
        asm.build_tuple(6)

    assert result(write) == (0, 3, 2, 2, 1, 3)


def test_building() -> None:
    def write(asm: Asm) -> None:
        asm.load_const("k")
        asm.load_const(1)
        asm.build_map(1)
        asm.load_const({"l": 2})
        asm.dict_update(1)
        asm.load_const(1)
        asm.build_list(1)
        asm.load_const((2, 3))
        asm.list_extend(1)
        asm.load_const(4)
        asm.build_set(1)
        asm.load_const(1)
        asm.load_const(None)
        asm.build_slice(2)
        asm.load_const("a")
        asm.load_const("b")
        asm.build_string(2)
        asm.load_const((5, 6))
        asm.unpack(2)
        asm.binary("-")
        asm.build_tuple(6)

    assert result(write) == ({"k": 1, "l": 2}, [1, 2, 3], {4}, slice(1, None), "ab", 1)


def show(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def test_calls_of_every_kind() -> None:
    def write(asm: Asm) -> None:
        asm.begin_call(show)
        asm.load_const(1)
        asm.load_const(2)
        asm.call(2, ("k",))
        asm.null_before()
        asm.load_local("a0")
        asm.load_attr("upper")
        asm.null_after()
        asm.call(0)
        asm.load_const(3)
        asm.call_const(show, 1)
        asm.load_const(3)
        asm.load_const(4)
        asm.call_const(show, 2)
        asm.call_const(show, 0)
        asm.begin_call(show)
        asm.load_const((5,))
        asm.load_const({"z": 6})
        asm.call_ex(True)
        asm.build_tuple(6)

    assert result(write, "text") == (
        ((1,), {"k": 2}), "TEXT", ((3,), {}), ((3, 4), {}), ((), {}), ((5,), {"z": 6}))  # fmt: skip


def test_functions_and_their_closures() -> None:
    def inner_writer(asm: Asm) -> None:
        asm.load_deref("x")
        asm.load_local("a0")
        asm.binary("+")

    cell = CellType(7)
    inner = function(inner_writer, ["a0"], {"x": cell}).__code__

    def write(asm: Asm) -> None:
        def closure() -> None:
            asm.load_cell("x")
            asm.build_tuple(1)

        asm.null_before()
        asm.make_function(inner, closure)
        asm.null_after()
        asm.load_const(1)
        asm.call(1)
        asm.null_before()
        asm.make_function(template.__code__, None)
        asm.null_after()
        asm.call(0)
        asm.build_tuple(2)

    assert result(write, cells={"x": cell}) == (8, None)


def test_jumps() -> None:
    def write(asm: Asm) -> None:
        otherwise, end = asm.label(), asm.label()
        asm.load_local("a0")
        asm.jump_if_false(otherwise)
        asm.load_const("true")
        asm.jump(end)
        asm.place(otherwise)
        asm.load_const("false")
        asm.place(end)

    assert [result(write, x) for x in (1, 0, [], "x", None)] == ["true", "false", "false", "true", "false"]


def test_a_jump_over_more_than_one_byte_counts() -> None:
    def write(asm: Asm) -> None:
        far, end = asm.label(), asm.label()
        asm.load_local("a0")
        asm.jump_if_true(far)
        for n in range(70_000):
            asm.load_const(n % 400 + 1000)
            asm.pop()
        asm.load_const("near")
        asm.jump(end)
        asm.place(far)
        asm.load_const("far")
        asm.place(end)

    assert (result(write, 1), result(write, 0)) == ("far", "near")


def test_handlers() -> None:
    def write(asm: Asm) -> None:
        handler = asm.label()
        asm.load_const("below")
        with asm.under(asm.guarding(handler, push_lasti=False)):
            asm.load_const(1)
            asm.load_local("a0")
            asm.binary("/")
        asm.build_tuple(2)
        asm.return_value()
        asm.place(handler)
        asm.emit("PUSH_EXC_INFO")
        asm.swap(2)
        asm.emit("POP_EXCEPT")
        asm.call_const(str, 1)
        asm.build_tuple(2)

    assert result(write, 4) == ("below", 0.25)
    assert result(write, 0) == ("below", "division by zero")


def test_raising_and_lines() -> None:
    def write(asm: Asm) -> None:
        asm.line(12)
        asm.load_local("a0")
        asm.raise_()
        asm.load_const(None)

    try:
        result(write, KeyError("k"))
    except KeyError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        assert (frame.filename, frame.name, frame.lineno) == (__file__, "template", 12)
    else:
        raise AssertionError("it raises")


def test_decoding_is_shared_and_does_not_keep_code_alive() -> None:
    import gc
    import weakref

    scope: dict[str, Any] = {}
    exec("def f(x): return x + 1", scope)
    code = scope["f"].__code__
    assert decode(code).instructions is decode(code).instructions
    gone = weakref.ref(code)
    del code, scope
    gc.collect()
    assert gone() is None
