"""Hooks of mkdocs (mkdocs.yml): pages of the site that lie elsewhere in the tree, with their links turned to the site's."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
#: Page of the site -> file of the tree.
ELSEWHERE = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md",
             "contributing.md": "CONTRIBUTING.md"}  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=with_links_of_the_site((ROOT / source).read_text())))
    files.append(File.generated(config, "tour.md", content=tour()))
    return files


def with_links_of_the_site(text: str) -> str:
    """Links to docs/ and to files that are pages of the site lead to those; a link to any other file is its words alone."""
    pages = {source: page for page, source in ELSEWHERE.items()}

    def turned(found: re.Match[str]) -> str:
        words, target = found.groups()
        if target.startswith("docs/"):
            return f"[{words}]({target.removeprefix('docs/')})"
        return f"[{words}]({pages[target]})" if target in pages else words

    return re.sub(r"\[([^\]]+)\]\((?!\w+:)([^)\s]+)\)", turned, text)


def tour() -> str:
    """docs/tour.py as a page."""
    program = (ROOT / "docs/tour.py").read_text()
    return f"# A tour that runs\n\n`python docs/tour.py` runs this page.\n\n```python\n{program}```\n"
