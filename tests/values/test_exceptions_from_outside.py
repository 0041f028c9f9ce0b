"""Exceptions that the program made before the compiled call: what raising, chaining and tracebacks leave on them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


class Error(Exception):
    pass


class Other(Exception):
    pass


def _made() -> Error:
    return Error(1)


def _raised() -> Error:
    try:
        raise Error(1)
    except Error as error:
        return error


def _caused() -> Error:
    try:
        try:
            raise Other(0)
        except Other as other:
            raise Error(1) from other
    except Error as error:
        return error


def _in_context() -> Error:
    try:
        try:
            raise Other(0)
        except Other:
            raise Error(1)  # noqa: B904  # a context is wanted
    except Error as error:
        return error


KINDS = (_made, _raised, _caused, _in_context)
TRACEBACK = _raised().__traceback__
assert isinstance(TRACEBACK, types.TracebackType)

#: What is done with `e`, an exception from outside, and with others beside it; each below its name.
PROGRAMS = """
# nothing
pass
# with_traceback of none
e.with_traceback(None)
# with_traceback
out.append(e.with_traceback(TRACEBACK) is e)
# with_traceback of a number
try: e.with_traceback(5)
except TypeError as error: out.append(str(error))
# with_traceback of nothing
try: e.with_traceback()
except TypeError as error: out.append(str(error))
# no traceback
e.__traceback__ = None
# traceback
e.__traceback__ = TRACEBACK
# cause
e.__cause__ = Other(2)
# no cause
e.__cause__ = None
# context
e.__context__ = Other(3)
# no context
e.__context__ = None
# suppress
e.__suppress_context__ = True
# do not suppress
e.__suppress_context__ = False
# suppress, cause
e.__suppress_context__ = False; e.__cause__ = None
# a number for a bool
try: e.__suppress_context__ = 5
except TypeError as error: out.append(str(error))
# raise
try: raise e
except Error as error: out.append(error is e)
# raise from
try: raise e from Other(4)
except Error: pass
# raise from a class
try: raise e from Other
except Error: pass
# raise from none
try: raise e from None
except Error: pass
# raise without traceback
try: raise e.with_traceback(None)
except Error: pass
# raise again
try:
    try: raise e
    except Error: raise
except Error: pass
# finally
try:
    try: raise e
    finally: out.append(1)
except Error: pass
# raise while another is handled
try: raise Other(5)
except Other:
    try: raise e
    except Error: pass
# raise from, while another is handled
try: raise Other(5)
except Other:
    try: raise e from Other(6)
    except Error: pass
# another while it is handled
try: raise e
except Error:
    try: raise Other(7)
    except Other as o: out.append((o.__context__ is e, o.__cause__))
# another from it
try:
    try: raise e
    except Error as error: raise Other(8) from error
except Other as o: out.append((o.__context__ is e, o.__cause__ is e))
# one made before
m = Other(9)
try:
    try: raise m
    except Other: raise e
except Error: out.append(e.__context__ is m)
try:
    try: raise e
    except Error: raise m
except Other: out.append((m.__context__ is e, e.__context__))
# a function raises
def raises(): raise e
try: raises()
except Error: pass
# thrown into a generator
def g():
    try: yield 1
    except Error as error: out.append(error is e); yield 2
i = g(); next(i); out.append(i.throw(e))
# left by a context
class C:
    def __enter__(self): pass
    def __exit__(self, t, v, tb): out.append(tb is None); return True
with C(): raise e
# the context is replaced
n = Error(1); n.__context__ = Other(1)
try:
    try: raise Other(2)
    except Other: raise n
except Error as error: out.append(repr(error.__context__))
# a context that leads back is cut
a, b = Error(1), Other(2)
try:
    try:
        try: raise a
        except Error: raise b
    except Other: raise a
except Error as error: out.append((repr(error.__context__), b.__context__))
# raised three times
n = Error(1)
for k in range(3):
    try:
        try: raise Other(k)
        except Other: raise n
    except Error as error: out.append(repr(error.__context__))
# kept with a traceback
try: raise Error(4)
except Error as error: k = error.with_traceback(None)
out.append(k.__traceback__)
out.append(k.with_traceback(TRACEBACK).__traceback__ is TRACEBACK)
return out, k, x + 1
"""


def _programs() -> dict[str, str]:
    return dict(each.split("\n", 1) for each in PROGRAMS.lstrip("\n# ").split("\n# "))


def _program(body: str) -> Callable[..., Any]:
    read = "out.append((repr(e.__cause__), repr(e.__context__), e.__suppress_context__, e.__traceback__ is None))"
    lines = ["out = []", read, *body.splitlines(), read, "return out, x + 1"]
    names: dict[str, Any] = dict(globals())
    exec("def program(e, x):\n" + "\n".join(f"    {line}" for line in lines), names)
    return names["program"]  # type: ignore[no-any-return]  # a function


def _state(error: BaseException) -> tuple[Any, ...]:
    return repr(error.__cause__), repr(error.__context__), error.__suppress_context__, error.__traceback__ is None


def _seen(program: Callable[..., Any], make: Callable[[], Error]) -> tuple[Any, ...]:
    given = make()
    told, *others = program(given, torch.ones(2))
    return told, _state(given), [_state(other) for other in others if isinstance(other, Exception)]


@pytest.mark.parametrize("action", _programs())
def test_exceptions_end_as_in_eager(action: str) -> None:
    program = _program(_programs()[action])
    compiled = fxjit.compile(program, backend="eager")
    for make in KINDS:
        for _ in range(2):
            assert _seen(compiled, make) == _seen(program, make), make.__name__


@pytest.mark.parametrize("name", ["__cause__", "__context__", "__traceback__", "__suppress_context__", "args"])
@pytest.mark.parametrize("error", [ValueError(1), KeyError("k")])
def test_attributes_of_exceptions_refuse_what_they_do_not_take(name, error):
    def written(x, given):
        try:
            setattr(given, name, 3)
        except TypeError as refused:
            return x + 1, str(refused), given.args

    def deleted(x, given):
        try:
            delattr(given, name)
        except TypeError as refused:
            return x + 1, str(refused), given.args

    def of_its_own(x, given):
        return written(x, ValueError(2)), deleted(x, ValueError(2))

    for fn in (written, deleted, of_its_own):
        assert_same_as_eager(fn, torch.ones(2), error, breaks=0)
