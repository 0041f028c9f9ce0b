"""`str`, `repr`, `ascii` and `format` of objects with methods of their own, f-strings and templates: compiled against eager."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.arange(3.0)


class Loud(str):
    def __str__(self):
        return f"<{super().__str__()}>"


class Count(int):
    def __str__(self):
        return "many"


class Share(float):
    def __str__(self):
        return "some"


class Named:
    """Its repr is what it was made with, whatever that is."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name


class Formatted:
    def __init__(self, result):
        self.result = result

    def __format__(self, spec):
        return self.result


def failure(show, value):
    try:
        return show(value)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("value", [Loud("a"), Count(3), Share(2.5)], ids=lambda value: type(value).__name__)
def test_without_a_specification_the_class_says_how_it_is_shown(value):
    def program(x, value):
        return x + 1, f"{value}", "{}".format(value), format(value), f"{value!s:>8}", "%s" % value, f"{value!r}"

    assert_same_as_eager(program, X, value)


def test_a_specification_is_for_the_builtin_part():
    assert_same_as_eager(
        lambda x, text, count, share: (x + 1, f"{text:>4}", f"{count:03d}", f"{share:.2f}"), X, Loud("a"), Count(3), Share(2.5)
    )


@pytest.mark.parametrize("name", ["plain", "\u0374 and \U0001f40d", Loud("sub"), Loud("\u0374")])
def test_ascii_escapes_what_a_repr_has_beyond_it(name):
    def program(x, named):
        shown = ascii(named)
        return x + 1, shown, type(shown), f"{named!a}", "{!a}".format(named), "=%a" % named

    assert_same_as_eager(program, X, Named(name))


@pytest.mark.parametrize("show", [repr, str, ascii, format, "{}".format, "{!r}".format, lambda v: f"{v}", lambda v: "%s" % v])
def test_a_repr_that_is_no_text_raises(show):
    assert_same_as_eager(lambda x, named: (x + 1, failure(show, named)), X, Named(b"bytes"))


@pytest.mark.parametrize("show", [format, "{}".format, lambda v: f"{v:>3}"])
def test_a_format_that_is_no_text_raises(show):
    assert_same_as_eager(lambda x, value: (x + 1, failure(show, value)), X, Formatted(3))


TEMPLATES = [
    "{",
    "}",
    "{0!x}",
    "{0!}",
    "{0.missing}",
    "{0[1]}",
    "{1}",
    "{other}",
    "{0}{}",
    "{0!rr}",
    "{:x}",
    "{0:{a}}",
    "{0:",
    "{{}}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_with_mistakes_raise_what_they_raise(template):
    def program(x, named):
        try:
            return x + 1, template.format(named, a=named)
        except Exception as error:
            return x - 1, type(error), str(error)

    fxjit.reset()
    assert_same_as_eager(program, X, Named("n"))


def test_what_has_to_be_known_and_is_not_breaks_the_graph():
    """A container shows its items by their reprs; one that is an instance of a subclass of str is not known while tracing."""

    def program(x, named):
        return x.sin(), repr([named, 1])

    with pytest.raises(fxjit.errors.Unsupported, match="has to be known while tracing"):
        fxjit.compile(program, fullgraph=True)(X, Named(Loud("sub")))
    fxjit.reset()
    assert_same_as_eager(program, X, Named(Loud("sub")), fullgraph=False)
