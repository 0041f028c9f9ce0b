"""raise, try, except, else, finally; chaining; exceptions that leave the compiled function.

PYTEST_DONT_REWRITE: `assert` is meant as it stands.
"""

from __future__ import annotations

import errno

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


class Wrong(ValueError):
    def __init__(self, code, detail="none"):
        super().__init__(f"wrong: {code}")
        self.code = code
        self.detail = detail

    def describe(self):
        return f"{self.code}/{self.detail}"


class Quiet(Exception):
    pass


def test_raise_and_catch():
    def program(x):
        try:
            raise ValueError("no", 1)
        except ValueError as error:
            return x + 1, error.args, str(error), repr(error), type(error)

    assert_same_as_eager(program, torch.ones(3))


def test_which_handler():
    def program(x, n):
        try:
            if n == 0:
                raise KeyError("k")
            if n == 1:
                raise Wrong(4)
            if n == 2:
                [][n]
            if n == 3:
                {}["missing"]
            x = x * 2
        except (KeyError, IndexError) as error:
            return x + 1, str(error)
        except ValueError as error:
            return x + 2, error.code, error.describe()
        else:
            x = x + 10
        finally:
            x = x + 100
        return x

    for n in range(5):
        assert_same_as_eager(program, torch.ones(3), n)


def test_finally_runs_on_every_way_out():
    def program(x, log):
        def leave(how):
            try:
                if how == "return":
                    return 1
                if how == "raise":
                    raise Quiet
                return 3
            except Quiet:
                return 2
            finally:
                log.append(how)

        for index in range(3):
            try:
                if index == 1:
                    continue
                if index == 2:
                    break
            finally:
                log.append(index)
        return x + 1, leave("return"), leave("raise"), leave("fall")

    assert_same_as_eager(program, torch.ones(3), [])


def test_reraise_and_nesting():
    def inner(n):
        try:
            raise Quiet(n)
        except Quiet:
            if n:
                raise
            return "swallowed"

    def program(x):
        try:
            inner(1)
        except Quiet as error:
            first = error.args
        return x + 1, first, inner(0)

    assert_same_as_eager(program, torch.ones(3))


def test_chaining():
    def program(x):
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise ValueError("second") from error
        except ValueError as error:
            cause, context = error.__cause__, error.__context__
            explicit = (type(cause), cause is context, error.__suppress_context__)
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second")
        except ValueError as error:
            implicit = (error.__cause__, type(error.__context__), error.__suppress_context__)
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second") from None
        except ValueError as error:
            silent = (error.__cause__, type(error.__context__), error.__suppress_context__)
        return x + 1, explicit, implicit, silent

    assert_same_as_eager(program, torch.ones(3))


def test_the_name_of_the_exception_is_unbound_afterwards():
    def program(x):
        try:
            raise Quiet
        except Quiet as error:
            pass
        try:
            return error
        except NameError as missing:
            return x + 1, str(missing)

    assert_same_as_eager(program, torch.ones(3))


def test_raising_what_is_no_exception():
    def program(x):
        messages = []
        for thing in (1, "text", int):
            try:
                raise thing
            except TypeError as error:
                messages.append(str(error))
        try:
            try:
                raise Quiet
            except 5:
                pass
        except TypeError as error:
            messages.append(str(error))
        try:
            raise Quiet from 7
        except TypeError as error:
            messages.append(str(error))
        return x + 1, messages

    assert_same_as_eager(program, torch.ones(3))


def test_assert():
    def program(x, n):
        try:
            assert n > 0, f"bad {n}"
        except AssertionError as error:
            return x, str(error)
        assert n
        return x + 1

    assert_same_as_eager(program, torch.ones(3), 1)
    assert_same_as_eager(program, torch.ones(3), -1)


@pytest.mark.parametrize("how", ["direct", "callee", "native", "custom", "assert"])
def test_an_exception_that_leaves_the_frame(how):
    def fail(n):
        raise ValueError("from below", n)

    def program(x):
        y = x + 1
        if how == "direct":
            raise ValueError(f"direct {how}")
        if how == "callee":
            fail(3)
        if how == "native":
            [][len(how)]
        if how == "custom":
            raise Wrong(5, detail="d")
        assert how != "assert", "asserted"
        return y

    assert_same_as_eager(program, torch.ones(3), fullgraph=False)


def test_effects_before_an_exception_are_kept():
    def program(x, log):
        log.append(1)
        y = x + 1
        log.append(y)
        raise ValueError("stop")

    assert_same_as_eager(program, torch.ones(3), [], fullgraph=False)


def test_exception_attributes():
    def program(x):
        error = Wrong(1)
        error.note = "n"
        stop = StopIteration(4)
        system = OSError(2, "gone")
        return x + error.code, error.note, error.args, stop.value, system.errno, system.strerror, isinstance(error, ValueError)

    assert_same_as_eager(program, torch.ones(3))


def test_a_new_exception_is_returned():
    import fxjit

    def program(x):
        return x + 1, Wrong(3), KeyError("a", 1)

    _, error, key = fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(3))
    assert type(error) is Wrong and (error.code, error.args) == (3, ("wrong: 3",))
    assert type(key) is KeyError and key.args == ("a", 1)


class Unreadable(OSError):
    """Its `__init__` passes on a part of the arguments, which `OSError.__new__` then leaves alone."""

    def __init__(self, message, path):
        self.path = path
        super().__init__(message)


class Silent(OSError):
    def __init__(self):
        pass


def _facts(error):
    return type(error), error.args, str(error), repr(error), error.errno, error.strerror, error.filename, vars(error)


def test_os_errors_are_of_the_class_for_their_number():
    def program(x):
        made = [OSError(errno.EEXIST, "there"), OSError("text"), OSError(), FileNotFoundError(2, "gone"),
                Unreadable("no", "p"), Unreadable("no", path="p"), Silent(), BlockingIOError(errno.EEXIST, "there")]
        try:
            raise OSError(errno.ENOENT, "gone")
        except FileNotFoundError as error:
            made.append(error.with_traceback(None))
        return x + 1, [_facts(each) for each in made]

    assert_same_as_eager(program, torch.ones(3))


def test_an_os_error_that_names_a_file():
    def program(x):
        try:
            raise FileNotFoundError(errno.ENOENT, "gone", "a.txt")
        except OSError as error:
            return x + 1, _facts(error)

    assert_same_as_eager(program, torch.ones(3), fullgraph=False)


@pytest.mark.parametrize("args", [(), ("text",), (2, "gone"), (2, "gone", "a"), (2, "gone", "a", None, "b"), (None, None)])
def test_the_text_of_an_os_error_from_outside(args):
    def program(x, error):
        return x + 1, str(error), f"{error}"

    assert_same_as_eager(program, torch.ones(3), OSError(*args), fullgraph=False)


def test_new_os_errors_are_returned():
    import fxjit

    def program(x):
        return x + 1, OSError(errno.EEXIST, "there"), Unreadable("no", "p"), Silent()

    for theirs, ours in zip(program(torch.ones(3))[1:],
                            fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(3))[1:], strict=True):
        assert _facts(ours) == _facts(theirs)


class Lazy:
    def __getattr__(self, name):
        raise AttributeError("told", name="given") if name == "named" else AttributeError(name)


def test_an_attribute_error_knows_what_was_asked_of_whom():
    def program(x, owners):
        told = []
        for owner, name in [(x, "missing"), *owners, (errno, "ENOPE"), (x + 1, "shapes")]:
            try:
                getattr(owner, name)
            except AttributeError as error:
                told.append((error.name, error.obj is owner))
        try:
            x.rehsape(3)
        except AttributeError as error:
            told.append((error.name, error.obj is x))
        try:
            raise AttributeError("by hand")
        except AttributeError as error:
            told.append((error.name, error.obj))
        return x + 1, told

    owners = [(torch.nn.Linear(2, 2), "wieght"), (Lazy(), "a"), (Lazy(), "named"), (Lazy, "b"), ([], "push")]
    assert_same_as_eager(program, torch.ones(3), owners)


def test_an_attribute_error_that_is_returned():
    import fxjit

    def program(x):
        y = x * 2
        try:
            y.missing
        except AttributeError as error:
            return y, error.with_traceback(None)

    y, error = fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(3))
    assert error.name == "missing" and error.obj is y


def test_an_exception_that_is_kept_has_its_traceback():
    import traceback

    import fxjit

    def look(table):
        return table["missing"]

    def program(x, table):
        y = x + 1
        try:
            look(table)
        except KeyError as error:
            kept = error
        return y, kept

    fxjit.reset()
    expected, (_, kept) = program(torch.ones(3), {})[1], fxjit.compile(program, backend="eager")(torch.ones(3), {})
    assert traceback.format_exception(kept) == traceback.format_exception(expected)
    assert [frame.name for frame in traceback.extract_tb(kept.__traceback__)] == ["program", "look"]
    with pytest.raises(fxjit.errors.Unsupported, match="Exception that is kept after it was caught"):
        fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(3), {})


def test_a_call_that_raises_does_not_split_later_ones():
    """What raises before any operator runs as in eager: an entry that broke there would hold for calls that raise nothing."""
    def check(x, rows):
        if x.shape[0] != rows:
            raise ValueError(f"expected {rows} rows, got {x.shape[0]}")
        return x

    def run(x):
        return check(x, 3) * 2

    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(run, backend="eager")
    for sizes in ((3, 4), (2, 4), (3, 4), (5, 5), (3, 4), (2, 2), (3, 4)):
        x = torch.ones(sizes)
        if sizes[0] == 3:
            assert torch.equal(compiled(x), run(x))
        else:
            with pytest.raises(ValueError, match=f"expected 3 rows, got {sizes[0]}"):
                compiled(x)
    assert fxjit.counters["stats"]["unique_graphs"] == 1
    assert not fxjit.counters["graph_break"]


def test_a_function_that_always_raises_is_compiled_in_the_end():
    calls = []

    def run(x):
        calls.append(len(calls))
        raise LookupError(f"call {len(calls)}")

    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(run, backend="eager")
    for call in range(1, 21):
        with pytest.raises(LookupError, match=f"call {call}$"):
            compiled(torch.ones(2))
    assert sum(fxjit.counters["skip"].values()) < 12
