"""Functions made in the traced frame: closures, decorators, what is returned to the caller."""

from __future__ import annotations

import functools

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


def test_a_returned_closure_works():
    def program(x):
        total = x + 1

        def add(y, scale=2, *, offset: int = 3):
            """Adds."""
            return total + y * scale + offset

        return add

    made = fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(3))
    plain = program(torch.ones(3))
    assert torch.equal(made(torch.ones(3)), plain(torch.ones(3)))
    assert (made.__name__, made.__doc__, made.__qualname__) == (plain.__name__, plain.__doc__, plain.__qualname__)
    assert made.__defaults__ == plain.__defaults__
    assert made.__kwdefaults__ == plain.__kwdefaults__


def test_closures_share_a_cell():
    import fxjit

    def program(x):
        count = 0

        def bump():
            nonlocal count
            count += 1
            return count

        def read():
            return count

        bump()
        return x + count, bump, read

    _, bump, read = fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(3))
    assert (read(), bump(), read()) == (1, 2, 2)


def test_a_recursive_closure_is_returned():
    import fxjit

    def program(x):
        def fact(n):
            return 1 if n < 2 else n * fact(n - 1)

        return x + fact(3), fact

    _, fact = fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(3))
    assert fact(5) == 120


def test_decorators_with_wraps():
    def twice(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(fn(*args, **kwargs), **kwargs)

        return wrapper

    @twice
    def outside(x, n=1):
        return x + n

    def program(x):
        @twice
        def inside(y):
            return y * 3

        return outside(x, n=2), inside(x), inside.__name__, outside.__name__

    assert_same_as_eager(program, torch.ones(3))


def test_lru_cache_is_traced_through():
    @functools.lru_cache(maxsize=None)
    def factor(n):
        return n * 2

    def program(x):
        return x * factor(3)

    assert_same_as_eager(program, torch.ones(3))


def test_function_attributes_of_new_functions():
    def program(x):
        def inner(y):
            return y

        inner.tag = 3
        return x + inner.tag, getattr(inner, "other", None), inner.__name__, callable(inner)

    assert_same_as_eager(program, torch.ones(3))


def test_a_method_of_a_new_function():
    def program(x):
        def inner(y, z=2):
            return y * z

        return inner.__call__(x), inner.__defaults__

    assert_same_as_eager(program, torch.ones(3))


def test_import_inside_a_function():
    def program(x):
        import math
        import os.path as path
        from collections import OrderedDict
        from math import pi

        return x * math.floor(pi), OrderedDict(a=1), path.basename("a/b")

    assert_same_as_eager(program, torch.ones(3))


def test_importing_what_is_not_there():
    def program(x):
        try:
            from math import no_such_name  # noqa: F401
        except ImportError:
            x = x + 1
        try:
            import no_such_module_anywhere  # noqa: F401
        except ModuleNotFoundError:
            x = x + 2
        return x

    assert_same_as_eager(program, torch.ones(3))


def test_a_class_statement_runs_as_it_stands():
    def program(x):
        class Local:
            factor = 2

        y = x * 2
        return y + Local.factor

    assert_same_as_eager(program, torch.ones(3), fullgraph=False)


def test_a_cached_function_made_here():
    import sys

    @functools.lru_cache(maxsize=None)
    def outside(n):
        return n if n < 2 else outside(n - 1) + outside(n - 2)

    def program(x):
        @functools.cache
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)

        return x + fib(40) % 7 + outside(50) % 5, fib.__name__, sys.getrecursionlimit()

    assert_same_as_eager(program, torch.ones(3))


def test_what_a_function_refuses_to_be_called():
    def program(x):
        def inner():
            return 1

        inner.__name__ = "other"
        refused = []
        for name, value in (("__name__", 7), ("__qualname__", None), ("__defaults__", [1]), ("__builtins__", {})):
            try:
                setattr(inner, name, value)
            except (TypeError, AttributeError) as error:
                refused.append((type(error), str(error)))
        return x + inner(), refused, inner.__name__

    assert_same_as_eager(program, torch.ones(3), fullgraph=False)


def test_a_function_whose_code_gets_another_name():
    """As torch 2.15 names what `no_grad` makes of a function."""
    def program(x):
        def inner(y, by=2):
            """Multiplies."""
            return y * by

        code = inner.__code__.replace(co_name="other", co_qualname="some.other")
        inner.__code__ = code
        return inner(x), inner.__code__ is code, inner.__name__, inner.__qualname__, inner.__doc__

    assert_same_as_eager(program, torch.ones(3))

    def given(x):
        def inner(y):
            return y * 2

        inner.__code__ = inner.__code__.replace(co_name="other")
        return inner

    made = fxjit.compile(given, backend="eager", fullgraph=True)(torch.ones(3))
    assert (made.__name__, made.__code__.co_name) == ("inner", "other") and made(2) == 4


def test_a_function_that_gets_the_code_of_another():
    def program(x):
        def inner(y):
            return y * 2

        code = inner.__code__
        inner.__code__ = code.replace(co_consts=tuple(7 if const == 2 else const for const in code.co_consts))
        return inner(x)

    assert_same_as_eager(program, torch.ones(3), fullgraph=False)


@pytest.mark.parametrize("decorator", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_functions_in_a_mode_of_torch(decorator):
    def program(x):
        def function(y):
            """Adds."""
            return y @ y.t()

        def generator(y):
            yield y * 2
            yield y + 1

        made, each = decorator()(function), decorator()(generator)
        return made(x), made.__name__, made.__doc__, made.__wrapped__ is function, list(each(x))

    assert_same_as_eager(program, torch.ones(3, 3))
