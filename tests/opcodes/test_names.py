"""LOAD_*, STORE_* and DELETE_* of locals, cells, globals and attributes."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same, assert_same_as_eager

import fxjit

SCALE = 3
counter = 0


class Box:
    shared = 2

    def __init__(self, value):
        self.value = value


def test_locals_are_rebound_and_deleted():
    def program(x):
        y = x + 1
        z = y
        del y
        y = z * 2
        return y, z

    assert_same_as_eager(program, torch.ones(3))


def test_an_unbound_local_raises():
    def program(x, flag):
        if flag:
            y = x + 1
        return y

    assert_same_as_eager(program, torch.ones(3), True)
    assert_same_as_eager(program, torch.ones(3), False, fullgraph=False)


def test_a_closure_reads_and_writes_its_cells():
    def program(x):
        total = x
        count = 0

        def add(amount):
            nonlocal total, count
            total = total + amount
            count += 1

        add(1)
        add(x)
        return total, count

    assert_same_as_eager(program, torch.ones(3))


def test_an_argument_can_be_a_cell():
    def program(x, scale):
        def inner():
            return x * scale

        scale = scale + 1
        return inner()

    assert_same_as_eager(program, torch.ones(3), 2)


def test_a_deleted_cell_is_unbound():
    def program(x):
        y = x

        def inner():
            return y  # noqa: F821

        del y
        x = x + 1
        try:
            return inner()
        except NameError as error:
            return x, str(error)

    assert_same_as_eager(program, torch.ones(3))


def test_free_variables_of_the_compiled_function():
    scale = 2
    offset = torch.ones(3)

    def program(x):
        return x * scale + offset

    assert_same_as_eager(program, torch.ones(3))


def test_a_free_variable_that_is_written():
    calls = 0

    def program(x):
        nonlocal calls
        calls += 1
        return x + 1

    assert_same_as_eager(program, torch.ones(3))
    assert calls == 4


def test_globals_are_read():
    def program(x):
        return x * SCALE

    assert_same_as_eager(program, torch.ones(3))


def test_globals_are_written():
    def program(x):
        global counter
        counter = counter + 1
        return x + 1

    before = counter
    assert_same_as_eager(program, torch.ones(3))
    assert counter == before + 4


def test_a_global_is_made_and_deleted():
    def program(x):
        global made_here
        made_here = x + 1
        y = made_here * 2
        del made_here
        return y

    assert_same_as_eager(program, torch.ones(3))
    assert "made_here" not in globals()


def test_an_undefined_name_raises():
    def program(x):
        try:
            return x + undefined_name  # noqa: F821
        except NameError as error:
            return x, str(error)

    assert_same_as_eager(program, torch.ones(3))


def test_attributes_are_read_written_and_deleted():
    def program(x, box):
        box.value = box.value + x
        box.extra = x * box.shared
        y = box.extra
        del box.extra
        return y, hasattr(box, "extra")

    assert_same_as_eager(program, torch.ones(3), Box(torch.zeros(3)))


def test_super_finds_the_next_class():
    class Child(Box):
        def __init__(self, value):
            super().__init__(value)
            self.child = True

        def get(self):
            return super().shared * self.value

    def program(x):
        return Child(x).get()

    assert_same_as_eager(program, torch.ones(3))


def test_constants():
    def program(x):
        return x + 1, None, True, 1.5, "text", b"bytes", (1, (2, "3")), ..., 1j

    assert_same_as_eager(program, torch.ones(3))


def _executed():
    names = {"count": 1}
    exec("def up():\n    global count\n    count = count + 1\n    return count\n", names)
    return names


@pytest.mark.parametrize("case", ["reads", "writes", "reads after"])
def test_globals_that_the_program_also_has_as_a_dict(case):
    def reads(x, names):
        before = names["count"]
        return before, names["up"](), names["count"], x + 1

    def writes(x, names):
        up = names["up"]
        names["count"] = 5
        return up(), names["count"], x + 1

    def reads_after(x, names, up):
        return up(), names["count"], up(), x + 1

    program = {"reads": reads, "writes": writes, "reads after": reads_after}[case]
    compiled = fxjit.compile(program, backend="eager")
    plain, ours = _executed(), _executed()
    for _ in range(2):
        rest = (plain["up"],) if case == "reads after" else ()
        expected = program(torch.ones(3), plain, *rest)
        rest = (ours["up"],) if case == "reads after" else ()
        assert_same(expected, compiled(torch.ones(3), ours, *rest))
    assert plain["count"] == ours["count"]
