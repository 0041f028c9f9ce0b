"""`config.reorderable_functions`: calls that wait for the graph say what they would have said, in the same order."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter

seen: list[object] = []


def note(*what, **more):
    seen.append(("note", str(what), str(more)))


class Recorder:
    def __init__(self, name):
        self.name = name

    def record(self, *what):
        seen.append((self.name, str(what)))


FIRST, SECOND = Recorder("first"), Recorder("second")
LOGGER = logging.getLogger("fxjit.tests.reorder")


def everything_at_its_time(x, items):
    print("start", x, items, sep="|")
    y = x * 2
    items.append(y)
    print(y, {"a": y, 1: (2, [y])}, {3}, items, x.shape, x.dtype, end=".\n")
    y.add_(1)
    x.mul_(3)
    print(y, x.sum(), len(items), file=sys.stderr)
    y.mul_(0)
    return y


def views_share_their_writes(x, items):
    row = x[0:1]
    print(x, row)
    x.add_(5)
    print(row)
    row.zero_()
    print(x)
    return x + 1


def texts_of_tensors(x, items):
    y = x + 1
    text = f"y is {y}"
    y.add_(1)
    print(text, f"{y!r:}", f"{y.sum():8.3f}|", f"{items} {[y]} {y.shape}")
    print("sum " + str(y.sum()), "{} {:.2f} {name!r}".format(y, y.sum(), name=x), format(y.max(), ".1e"))
    logging.info(f"{x.sum():.3f} {text}")
    LOGGER.info(f"{text}, {y}")
    y.zero_()
    return y * 2, text, text + f"{y}", f"{text}" is text


def texts_by_percent(x, items):
    y = x + 1
    print("%s" % y, "%s and %r: %d%%" % (y, [y], 3), "%(y)s at %(n)3d" % {"y": y, "n": 4}, "%-40s|" % y)
    total = y.sum()
    print("%.3f|%8.2e|%+g" % (total, total, total), "%d" % y.numel(), "%d %5d" % (y.argmax(), len(items)))
    y.add_(1)
    print(" | ".join([f"{total:.2f}", "n", "%s" % y]), "-" * 2 + f"{total}" * 2, f"{f'{total:.1f}':>12}|")
    y.zero_()
    return y * 2


def a_text_that_is_needed_at_once(x, items):
    text = f"{x.sum():.0f}"
    print(text.zfill(5), {text: 1}, len(text), text == "5", getattr(x, "shape", f"{x}"))
    return x * int(f"{x.numel()}"), sorted([text, f"{x}"])


def a_format_that_tensors_do_not_have(x, items):
    print(f"{x.sum():3d}")
    return x


def integers_of_other_tensors(x, items):
    print("%d" % x.sum())
    try:
        print("%d" % x)
    except (TypeError, ValueError, RuntimeError) as error:
        print(type(error))
    try:
        print("%s" % (x, 1))  # noqa: F507
    except TypeError as error:
        print(error)
    return x + 1


def containers_of_the_callers(x, items):
    print(items)
    items.append(7)
    items[0] = "changed"
    print(items, x)
    return x - 1


def functions_of_the_users(x, items):
    note(x, 1, key=[x])
    FIRST.record(x)
    x = x + 1
    note(x)
    return x


def records(x, items):
    LOGGER.info("x is %s and %d", x, 3)
    x = x * 2
    logging.info("root sees %s", x)
    LOGGER.debug("not enabled %s", x)
    warnings.warn("careful", stacklevel=1)
    print(x)
    return x


def before_what_raises(x, items):
    print("before", x)
    raise ValueError(x.shape)


def in_the_output_of_the_moment(x, items):
    out = io.StringIO()
    kept, sys.stdout = sys.stdout, out
    print("inside", x)
    sys.stdout = kept
    print("outside", x)
    return out.getvalue(), x + 1


class Holder:
    value = 0


HOLDER = Holder()


def tell():
    seen.append(("value", HOLDER.value))


def writes_around_a_call(x, items):
    HOLDER.value = 1
    tell()
    HOLDER.value = 2
    tell()
    HOLDER.value = 3
    return x + HOLDER.value


PROGRAMS = [
    writes_around_a_call, everything_at_its_time, views_share_their_writes, containers_of_the_callers,
    functions_of_the_users, records, before_what_raises, texts_of_tensors, texts_by_percent,
]  # fmt: skip
FUNCTIONS = {print, note, tell, FIRST.record, logging.info, logging.Logger.info, warnings.warn}


def outcome(fn):
    """The result, and all that was said."""
    seen.clear()
    out, err, told = io.StringIO(), io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(told)
    handler.setFormatter(logging.Formatter("%(name)s %(filename)s:%(lineno)d %(funcName)s %(message)s"))
    root, x, items = logging.getLogger(), torch.arange(4.0).reshape(2, 2), [1]
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = fn(x, items)
        except ValueError as error:
            result = error.args
        finally:
            root.removeHandler(handler)
            root.setLevel(before)
    texts = [(str(each.message), each.lineno) for each in warned]
    return [repr(result), str(x), str(items), out.getvalue(), err.getvalue(), told.getvalue(), texts, list(seen)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_said_is_what_eager_says(program):
    expected = outcome(program)
    fxjit.reset()
    fxjit.counters.clear()
    with fxjit.config.patch(reorderable_functions=FUNCTIONS):
        compiled = fxjit.compile(program, backend="eager")
        for _ in range(2):
            assert outcome(compiled) == expected
    assert "Call of a function with an effect outside the program" not in fxjit.counters["graph_break"]


@pytest.mark.parametrize("program", [
    a_text_that_is_needed_at_once, a_format_that_tensors_do_not_have, integers_of_other_tensors,
])
def test_texts_that_cannot_wait_are_made_at_once(program):
    expected = outcome(program)
    fxjit.reset()
    with fxjit.config.patch(reorderable_functions=FUNCTIONS):
        compiled = fxjit.compile(program, backend="eager")
        assert [outcome(compiled) for _ in range(2)] == [expected, expected]


def test_what_is_written_to_a_stream_set_in_between_is_not_put_off():
    expected = outcome(in_the_output_of_the_moment)
    fxjit.reset()
    with fxjit.config.patch(reorderable_functions=FUNCTIONS):
        compiled = fxjit.compile(in_the_output_of_the_moment, backend="eager")
        assert [outcome(compiled) for _ in range(2)] == [expected, expected]


def graphs_and_operators(fn):
    """Of `fn` while `print` breaks the graph, and while it waits."""
    counts = []
    for functions in (set(), {print}):
        fxjit.reset()
        counter = CompileCounter()
        with fxjit.config.patch(reorderable_functions=functions), contextlib.redirect_stdout(io.StringIO()):
            fxjit.compile(fn, backend=counter)(torch.ones(2))
        counts.append((counter.frame_count, counter.op_count))
    return counts


def test_one_graph_instead_of_three():
    def fn(x):
        x = x + 1
        print(x)
        x = x + 2
        print(x)
        return x + 3

    assert graphs_and_operators(fn) == [(3, 3), (1, 3)], "nor are copies made of what nothing writes to"


def test_a_bound_method_speaks_for_its_own_object():
    def fn(x):
        SECOND.record(x)
        FIRST.record(x)
        return x + 1

    fxjit.reset()
    fxjit.counters.clear()
    with fxjit.config.patch(reorderable_functions={SECOND.record}):
        seen.clear()
        fxjit.compile(fn, backend="eager")(torch.ones(1))
    assert [name for name, _ in seen] == ["second", "first"]


def test_texts_of_tensors_wait_for_one_graph():
    def fn(x):
        x = x + 1
        print(f"x is {x}, {x.sum():.2f} in all")
        return x + 3

    assert graphs_and_operators(fn) == [(3, 3), (1, 3)]


def test_numbers_from_data_wait_for_one_graph():
    def fn(x):
        loss = (x * 2).mean().item()
        print("loss %.3f" % loss, f"{loss:8.2f}", loss, "{:g}".format(loss))
        return x + loss

    with fxjit.config.patch(capture_scalar_outputs=True):
        assert graphs_and_operators(fn)[1][0] == 1
    out, expected = io.StringIO(), io.StringIO()
    for run, said in ((fn, expected), (fxjit.compile(fn, backend="eager"), out)):
        with fxjit.config.patch(capture_scalar_outputs=True, reorderable_functions={print}), contextlib.redirect_stdout(said):
            assert [float(run(torch.ones(2) * step)[0]) for step in range(3)] == [0, 3, 6]
    assert out.getvalue() == expected.getvalue()


def test_a_text_that_is_only_passed_on_is_not_compiled_for_again():
    def fn(x, name):
        x = x + 1
        print(f"{name}: x is {x}")
        return x + 3

    fxjit.reset()
    out, expected = io.StringIO(), io.StringIO()
    compiled = fxjit.compile(fn, backend="eager")
    for run, said in ((fn, expected), (compiled, out)):
        with contextlib.redirect_stdout(said):
            for step in range(12):
                run(torch.ones(2) * step, f"step {step}")
    assert out.getvalue() == expected.getvalue()
    assert fxjit.counters["frames"]["ok"] <= 4
    assert not fxjit.counters["skip"]


def test_an_object_whose_text_may_change_breaks_the_graph():
    class Text:
        def __init__(self):
            self.value = "old"

        def __str__(self):
            return self.value

    def fn(x, text):
        print(text)
        text.value = "new"
        return x + 1

    out = io.StringIO()
    fxjit.reset()
    fxjit.counters.clear()
    with fxjit.config.patch(reorderable_functions={print}), contextlib.redirect_stdout(out):
        fxjit.compile(fn, backend="eager")(torch.ones(1), Text())
    assert out.getvalue() == "old\n"
    assert fxjit.counters["graph_break"]["Call of a function with an effect outside the program"] == 1


def test_the_setting_takes_functions_and_the_environment_their_names(monkeypatch):
    with pytest.raises(fxjit.errors.ConfigError, match="must be a set of functions"):
        fxjit.config.reorderable_functions = {"print"}
    setting = fxjit.config.SETTINGS["reorderable_functions"]
    monkeypatch.setenv(setting.env, "print, logging.info")
    try:
        fxjit.config.reset("reorderable_functions")
        assert fxjit.config.reorderable_functions == {print, logging.info}
    finally:
        monkeypatch.delenv(setting.env)
        fxjit.config.reset("reorderable_functions")
    assert fxjit.config.reorderable_functions == frozenset()
