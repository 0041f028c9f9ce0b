"""Namespaces: `__dict__` of functions and modules beside attributes set in the same frame, `sys.modules`, cells."""

from __future__ import annotations

import functools
import math
import sys
import textwrap
import types

import torch
from tests.differential import assert_same_as_eager

X = torch.ones(2)
HOLDER = types.ModuleType("holder")


def fresh():
    def function():
        """What it is for."""

    return function


def assert_same_function(program):
    """Eager and compiled give the same, and leave the same in the function that they are given."""
    given = []

    def make():
        given.append(fresh())
        return given[-1], X

    assert_same_as_eager(program, make=make, state=lambda: given[-1].__dict__, fullgraph=False)


def test_a_functions_namespace_has_what_was_just_set():
    def program(function, x):
        x = x + 1
        function.first = 1
        function.second = 2
        del function.first
        return dict(function.__dict__), list(vars(function).items()), "first" in function.__dict__, len(function.__dict__)

    assert_same_function(program)


def test_a_functions_namespace_stays_the_same_object():
    def program(function, x):
        x = x + 1
        namespace = function.__dict__
        function.first = 1
        namespace["second"] = 2
        namespace.setdefault("third", 3)
        return dict(namespace), function.second, namespace.pop("first"), hasattr(function, "first"), namespace is vars(function)

    assert_same_function(program)


def test_what_a_function_has_of_its_own_is_not_in_it():
    def program(function, x):
        x = x + 1
        function.__doc__ = "another"
        function.__name__ = "renamed"
        return dict(function.__dict__), function.__doc__, function.__name__

    assert_same_function(program)


def test_update_wrapper_takes_attributes_set_before():
    def program(function, x):
        def wrapper():
            pass

        x = x + 1
        function.mark = "set"
        functools.update_wrapper(wrapper, function)
        return wrapper.mark, wrapper.__wrapped__ is function, wrapper.__doc__

    assert_same_function(program)


def test_a_modules_namespace_has_what_was_just_set():
    def program(function, x):
        x = x + 1
        namespace = HOLDER.__dict__
        HOLDER.value = 2
        found = namespace["value"], vars(HOLDER).get("value"), "value" in namespace, namespace is vars(HOLDER)
        namespace["other"] = 3
        found += (HOLDER.other,)
        del HOLDER.value, HOLDER.other
        return found, "value" in namespace, math.__dict__["pi"]

    assert_same_function(program)
    assert not hasattr(HOLDER, "value") and not hasattr(HOLDER, "other")


def test_the_table_of_modules():
    def program(function, x):
        x = x + 1
        found = "math" in sys.modules, sys.modules["math"].pi, sys.modules.get("no_such_module", 3)
        real = sys.modules["textwrap"]
        sys.modules["textwrap"] = HOLDER
        import textwrap

        found += (textwrap is HOLDER,)
        sys.modules["textwrap"] = real
        import textwrap

        return *found, textwrap is HOLDER, len([name for name in list(sys.modules) if name == "math"])

    assert_same_function(program)
    assert sys.modules["textwrap"] is textwrap


def test_cells_compare_by_what_they_hold():
    def program(function, x):
        def cell(value):
            def holds():
                return value

            return holds.__closure__[0]

        def empty():
            def holds():
                return nothing

            if x is None:
                nothing = 0
            return holds.__closure__[0]

        x = x + 1
        return cell(2) < cell(3), cell(-36) == cell(-36.0), cell(1) != cell(2), empty() == empty(), empty() < cell("text")

    assert_same_function(program)
