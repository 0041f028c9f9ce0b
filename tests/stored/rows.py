"""A row of the tables of differences.py: a program, and what is another in the next process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Difference:
    """A program (its `fn` and `args()`), and what is run in the second process before and after it is imported."""

    program: str
    before: str = ""
    after: str = ""
    #: Run in both processes around the calls, which are `call(fn)` there.
    environment: dict[str, str] = field(default_factory=dict)
    #: What is replaced in the program's text.
    edit: tuple[str, str] | None = None
    backend: str = "eager"
    #: The other modules of the program by name, and what is replaced in them.
    library: str = ""
    library_edit: tuple[str, str] | None = None


X = "def args():\n    return (torch.linspace(-1, 1, 12).view(3, 4),)\n"


def of(body: str, **rest: Any) -> Difference:
    """A function of x with this body."""
    head, _, tail = body.rpartition("|")
    lines = "\n".join("    " + line for line in tail.strip("\n").split("\n"))
    return Difference(f"{head}\ndef fn(x):\n{lines}\n{X}", **rest)
