"""The page that `Explanation.to_html` draws: whole HTML, nothing from outside, guards and hints in `title`s, the source as
the user wrote it."""

from __future__ import annotations

import html
import linecache
from html.parser import HTMLParser

import pytest
import torch

import fxjit

VOID = {"meta", "br", "hr", "img", "input", "link", "col"}


class Page(HTMLParser):
    """Checks that tags nest, and collects what is looked at."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.titles, self.urls, self.text = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(set(names)) == len(names), f"an attribute twice: {attributes}"
        self.tags.append(tag)
        for name, value in attributes:
            if name == "title":
                self.titles.append(value)
            if name in ("src", "href", "action", "data") or "url(" in (value or ""):
                self.urls.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            assert "url(" not in data and "@import" not in data
        self.text.append(data)


def breaks(x, text="<b>&\"'"):
    y = x + 1  # <i>&amp;</i> "quoted" 'too'
    print(text)
    if y.sum() > 0:
        y = y * 2
    return y


def loops(x):
    for _ in range(2):
        x = x + 1
        fxjit.graph_break("in a <loop>")
    return x


def outer(x):
    return loops(breaks(x)) - 1


@pytest.mark.parametrize("fn", [breaks, loops, outer, lambda x: x + 1])
def test_the_page_is_whole_and_stands_alone(fn, tmp_path, capsys):
    explanation = fxjit.explain(fn)(torch.ones(2))
    written = explanation.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(written)
    assert written.lstrip().lower().startswith("<!doctype html>")
    assert not page.urls
    assert not {"script", "link", "iframe", "img", "object", "embed"} & set(page.tags)
    shown = "".join(page.text)
    for line in range(fn.__code__.co_firstlineno, fn.__code__.co_firstlineno + 2):
        assert linecache.getline(__file__, line).strip() in shown, "the source as it was written, escaped once"


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(capsys):
    explanation = fxjit.explain(outer)(torch.ones(2))
    shown = explanation._repr_html_()
    frame = Page(shown)
    assert frame.tags == ["iframe"] and "<style" not in shown
    assert html.unescape(shown.split('srcdoc="')[1].split('"')[0]) == explanation.to_html()


def test_guards_and_hints_are_on_hover(tmp_path, capsys):
    explanation = fxjit.explain(outer)(torch.ones(2))
    page = Page(explanation.to_html(tmp_path / "page.html").read_text(encoding="utf-8"))
    hover = "\n".join(page.titles)
    assert "x: Tensor float32[2] on cpu" in hover, "guards"
    for why in (*explanation.break_reasons, *explanation.skips):
        assert all(html.unescape(hint) in hover for hint in why.hints)
        assert why.reason in hover + "".join(page.text)


def test_the_page_shows_the_users_source_and_the_text_all_hints(tmp_path, capsys):
    net = torch.nn.Linear(2, 2)

    def through_a_module(x):
        return loops(net(x)) + 1

    explanation = fxjit.explain(through_a_module)(torch.ones(2))
    page = Page(explanation.to_html())
    assert "loops(net(x)) + 1" in "".join(page.text)
    assert torch.nn.modules.linear.__file__ not in "".join(page.text), "no files of torch"
    (skip,) = explanation.skips
    assert skip.hints and all(f"Hint: {hint}" in str(explanation) for hint in skip.hints)
    assert "config.resume_in_loops" in str(explanation)


def test_the_page_of_a_module_of_torch_shows_its_source(tmp_path, capsys):
    page = Page(fxjit.explain(torch.nn.Linear(2, 2))(torch.ones(2)).to_html())
    assert torch.nn.modules.linear.__file__ in "".join(page.text)


class Rows(HTMLParser):
    """The lines of source of a page: by their text, the colour, the class, and what is told and hinted at beside them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.rows, self.cell = [], -1
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "tr":
            self.rows.append({"break": given.get("class") == "break", "cells": ["", "", ""], "hover": ""})
            self.cell = -1
        elif tag == "td":
            self.cell += 1
            if self.cell == 1:
                self.rows[-1].update(colour=given.get("style"), skipped=given.get("class") == "skipped")
        elif tag == "pre":
            self.cell = -1  # the summary, which is no table
        elif self.rows and self.cell == 2:
            self.rows[-1]["hover"] += given.get("title") or ""

    def handle_data(self, data):
        if self.rows and self.cell >= 0:
            self.rows[-1]["cells"][self.cell] += data

    def line(self, text):
        (found,) = [row for row in self.rows if text in row["cells"][1]]
        return found


def helper_that_is_skipped(x):
    for _ in range(2):
        x = x - 3
        fxjit.graph_break("in the loop")
    return x


def three_kinds(a, flag):
    b = torch.abs(a) + 1
    b = b * 7
    if flag:
        b = b.sin()
    print("between")
    c = b.tanh()
    return helper_that_is_skipped(c) * 5


def test_each_line_has_the_colour_of_what_became_of_it(capsys):
    page = Rows(fxjit.explain(three_kinds)(torch.ones(2), False).to_html())
    first, second, third = (page.line(text)["colour"] for text in ("torch.abs(a)", "b.tanh()", "(c) * 5"))
    assert len({first, second, third, None}) == 4, "three graphs, three colours"
    assert page.line("b = b * 7")["colour"] == first
    plain = [page.line(text) for text in ("def three_kinds", "if flag:", "b = b.sin()", 'print("between")')]
    assert [row["colour"] for row in plain] == [None] * 4, "no operator of theirs is in a graph"
    assert [row["cells"][1].strip() for row in page.rows if row["skipped"]] == [
        "def helper_that_is_skipped(x):", "for _ in range(2):", "x = x - 3", 'fxjit.graph_break("in the loop")', "return x"]
    broke = page.line('print("between")')
    assert broke["break"] and broke["cells"][2].startswith("break: Call of a function")
    assert "Remove the call" in broke["hover"] and "reorderable_functions" in broke["hover"], "its hints"
    assert [row["cells"][1].strip() for row in page.rows if row["break"]] == [
        'fxjit.graph_break("in the loop")', 'print("between")']
    skipped = page.line("def helper_that_is_skipped")
    assert "skipped: Graph break in a loop" in skipped["cells"][2] and "Move the body of the loop" in skipped["hover"]
    traced = page.line("def three_kinds")
    assert "guards" in traced["cells"][2] and "a: Tensor float32[2] on cpu" in traced["hover"]
    assert "flag" in traced["hover"]
