"""The pages of docs/: each Python block of those for users runs as it stands, and the site builds without a warning."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Pages whose Python is what the compiler wrote, and not for reading in.
GENERATED_CODE = {"triton.md"}
PAGES = {path.name: path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in GENERATED_CODE}
BLOCKS = {f"{name}-{number}": block for name, path in PAGES.items()
          for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.S | re.M), 1)}

#: Runs each block in a process of its own, forked from one that has imported what compiled code needs and done nothing else.
RUNNER = """
import contextlib, importlib, json, os, sys, traceback
import torch, fxjit
reading, writing = os.pipe()
if os.fork() == 0:
    with os.fdopen(writing, "w") as said:
        sys.stdout = sys.stderr
        net = torch.nn.Linear(2, 2)
        fxjit.compile(net, dynamic=True)(torch.ones(3, 2)).sum().backward()
        said.write(" ".join(sys.modules))
    os._exit(0)
os.close(writing)
with os.fdopen(reading) as said:
    for name in said.read().split():
        if name.startswith(("torch.", "fxjit.", "sympy.")):
            with contextlib.suppress(ImportError):  # a name that is no module's own
                importlib.import_module(name)
os.wait()
for name, block in json.load(sys.stdin).items():
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        try:
            path = os.path.abspath(name + ".py")
            open(path, "w").write(block)
            exec(compile(block, path, "exec"), {"__name__": "__main__", "__file__": path})
            status = 0
        except BaseException:
            print(traceback.format_exc())
            status = 1
        sys.stdout.flush()
        os._exit(status)
    _, status = os.waitpid(child, 0)
    print(f"\\n==== {name} {status}", flush=True)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Block -> its exit status and what it printed."""
    folder = tmp_path_factory.mktemp("pages")
    done = subprocess.run([sys.executable, "-c", RUNNER], input=json.dumps(BLOCKS), cwd=folder, capture_output=True, text=True,
                          timeout=600, env=os.environ | {"FXJIT_CACHE_DIR": str(folder / "cache")}, check=False)
    parts = re.split(r"\n==== (\S+) (\d+)\n", done.stdout)
    assert len(parts) == 3 * len(BLOCKS) + 1, done.stdout + done.stderr
    return {name: (status, printed + done.stderr) for printed, name, status in zip(*[iter(parts)] * 3, strict=False)}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_python_runs(outcomes, name):
    status, printed = outcomes[name]
    assert status == "0", printed


def test_the_pages_for_users_have_programs():
    assert {name.rpartition("-")[0] for name in BLOCKS} >= {
        "getting_started.md", "moving_over.md", "explanations.md", "troubleshooting.md", "recipes.md"}


def test_links_lead_to_pages_and_headings_that_exist():
    for name, path in PAGES.items():
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
        for target in re.findall(r"(?<!\!)\[[^\]]+\]\((?!https?:)([^)\s]+)\)", text):
            file, _, heading = target.partition("#")
            assert (path.parent / file).exists() if file else True, (name, target)
            if heading:
                there = ((path.parent / file) if file else path).read_text()
                headings = {re.sub(r"[^\w\- ]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
                            for line in there.splitlines() if line.startswith("#")}
                assert heading in headings, (name, target)


@pytest.mark.parametrize("path", [*PAGES.values(), ROOT / "README.md"], ids=lambda path: path.name)
def test_a_table_of_ratios_to_torch_compile_names_its_release(path):
    for section in re.split(r"^(?=#)", path.read_text(), flags=re.M):
        if re.search(r"^\|.*torch\.compile.*\|\n\|[ \-|]+\|$", section, re.M) and re.search(r"\d\.\d+x? \|", section):
            assert re.search(r"torch\s+2\.\d+", section), section.splitlines()[0]


def test_no_page_is_empty():
    """One was, for a while: an edit that failed had left nothing of it."""
    short = [path.name for path in [*PAGES.values(), *ROOT.glob("*.md")] if len(path.read_text()) < 500]
    assert not short


def test_every_page_is_in_the_contents():
    listed = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert set(PAGES) | GENERATED_CODE <= listed


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
                          cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    for page in ("index.html", "tour.html", "recipes.html", "coverage.html", "changelog.html", "search/search_index.json"):
        assert (tmp_path / "site" / page).stat().st_size > 1000, page
