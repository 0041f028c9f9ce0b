"""The page of a run: `python -m fxjit report script.py`, FXJIT_REPORT=folder. One whole HTML file with nothing from outside,
that says of a small program what happened in it."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys

import pytest
import torch
from tests.api.test_explain_page import Page

import fxjit
from fxjit import _C
from fxjit.report.flame import Span, flame_of

SCRIPT = """
import sys
import torch

@torch.compile
def step(x, <TAG>=2):
    y = x.sin() * <TAG>
    print("between", sys.argv[1:])
    return y.sum(-1).exp() + 1

for rows in (300, 301, 302):
    step(torch.randn(rows, 50))
if "fail" in sys.argv:
    raise SystemExit(3)
""".replace("<TAG>", "scale")


def ran(tmp_path, *command, **environment):
    (tmp_path / "script.py").write_text(SCRIPT)
    return subprocess.run([sys.executable, *command], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True,
                          text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("run")
    result = ran(tmp_path, "-m", "fxjit", "report", "script.py", "a&b", "fail", FXJIT_CACHE_DIR=str(tmp_path / "cache"))
    assert result.returncode == 3, result.stderr
    assert "fxjit_report/report.html" in result.stderr and "between ['a&b', 'fail']" in result.stdout
    return (tmp_path / "fxjit_report" / "report.html").read_text(encoding="utf-8")


def section(text, title):
    return text.split(f"<h2>{title}</h2>")[1].split("<h2>")[0]


def words(text):
    return html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", text, flags=re.S)))


def test_a_frame_is_named_by_the_line_that_it_goes_on_at(page):
    """The first line of the function, or that of the call that broke the graph; also where the backend tells of a graph."""
    rows = re.findall(r"<tr>.*?</tr>", section(page, "Frames, in order"), flags=re.S)
    compiled = [words(row) for row in rows if "kind compiled" in row]
    assert any("script.py:5" in row for row in compiled) and any("script.py:8" in row for row in compiled)
    assert all("script.py:" in words(row) for row in rows if "as captured" in row)


def test_caches_are_told_by_what_they_keep(page):
    found = words(section(page, "Caches"))
    assert "captured graphs" in found and "kernels" in found and "not there" in found and "graph miss" not in found


def test_the_page_is_whole_and_stands_alone(page):
    parsed = Page(page)
    assert page.lower().startswith("<!doctype html>") and not parsed.urls
    assert not {"script", "link", "iframe", "img", "object", "embed"} & set(parsed.tags)
    assert "script.py a&b fail" in "".join(parsed.text), "its title, escaped once"
    assert "prefers-color-scheme: dark" in page and "max-width: 45em" in page and "overflow-wrap: anywhere" in page


def test_frames_are_told_in_order(page):
    rows = [words(row).split() for row in section(page, "Frames, in order").split("<tr>")[2:]]
    kinds = [row[2] for row in rows]
    assert kinds.count("compiled") == 4 and kinds.count("break") == 2 and kinds.count("recompiled") == 2
    assert kinds.index("break") < kinds.index("compiled"), "the break that ended the first graph"
    times = [float(row[0]) for row in rows]
    assert times == sorted(times)


def test_a_break_is_shown_over_the_source(page):
    rows = page.split("<h2>Source</h2>")[1].split("<tr")
    (broke,) = [row for row in rows if 'print("between"' in html.unescape(row)]
    assert broke.startswith(" class=break") and "break: Call of a function with an effect" in broke
    first, second = ([row for row in rows if text in row] for text in ("y = x.sin()", "y.sum(-1)"))
    assert "background:var(--g0)" in first[0] and "background:var(--g1)" in second[0]


def test_a_recompile_names_the_guard_with_its_value_then_and_now(page):
    assert "x: expected size(0) 300, found 301" in words(section(page, "Compiled again"))


def test_compile_seconds_are_a_tree_of_phases(page):
    flame = words(section(page, "Where compile seconds went"))
    for name in ("all compiles", "step", "trace", "backend", "aot"):
        assert name in flame


def test_kernels_have_source_calls_and_share(page):
    kernels = section(page, "Kernels")
    calls = [words(cell).strip() for cell in re.findall(r"<td>kernel</td><td class=num>(\d+)</td>", kernels)]
    assert calls and all(int(each) in (1, 2) for each in calls), "one call with the constant size, two with the symbol"
    assert 'extern "C" int' in words(kernels) and "%" in kernels
    graphs = [int(each) for each in re.findall(r"<td>graph</td><td class=num>(\d+)</td>", kernels)]
    assert graphs == [6], "two graphs of one function, three calls each"
    for table in kernels.split("</table>")[:2]:
        shares = [float(share) for share in re.findall(r"<td class=num>([\d.]+)%</td>", table)]
        assert abs(sum(shares) - 100) < 0.1 * len(shares), "what a table names is the whole, but for rounding"


def test_the_setting_writes_one_page_for_each_process(tmp_path):
    result = ran(tmp_path, "-m", "fxjit", "run", "script.py", FXJIT_REPORT=str(tmp_path / "pages"))
    assert result.returncode == 0, result.stderr
    (written,) = (tmp_path / "pages").iterdir()
    assert re.fullmatch(r"report_\d+\.html", written.name)
    assert "graph" in words(section(written.read_text(encoding="utf-8"), "Kernels"))


def test_phases_that_lie_inside_each_other_are_parts():
    spans = [Span("trace", "f", 0, 1), Span("aot", "", 1.5, 3), Span("backend", "f", 1, 4), Span("native", "g", 2, 2.5),
             Span("trace", "f", 5, 6)]
    root = flame_of(spans)
    f = root.parts["f"]
    assert root.seconds == f.seconds == 5 and f.parts["trace"].seconds == 2 and f.parts["trace"].runs == 2
    assert f.parts["backend"].parts["aot"].parts["native"].seconds == 0.5


def test_nothing_is_counted_while_no_page_is_wanted():
    before = _C.counted_ranges()
    fxjit.compile(lambda x: x.sin() * 3)(torch.ones(50))
    assert _C.counted_ranges() == before
