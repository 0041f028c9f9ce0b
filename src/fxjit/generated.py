"""The text of the Python that torch.fx writes for each graph. It keeps all of it for tracebacks, until the process ends: some
ten texts for each compile of a graph that goes through AOTAutograd. Here they go with the entry that they were made for.

The text of a complex number may have two names in it that torch.fx does not know."""

from __future__ import annotations

import contextlib
import linecache
import weakref
from collections.abc import Iterator
from typing import Any

from torch.fx import graph as fx_graph
from torch.fx import graph_module

#: torch.fx's texts, under the file names of the code objects; empty where this torch keeps them elsewhere.
_TEXTS: dict[str, str] = getattr(getattr(graph_module, "_loader", None), "eval_cache", {})

#: Where torch has no table of them, its generated code knows no such numbers, and the graph that has one fails to compile.
_register_builtin: Any = getattr(fx_graph, "_register_custom_builtin", lambda *row: None)

for _name in ("infj", "nanj"):
    _register_builtin(_name, f"{_name} = complex('{_name}')", complex(_name))


class Texts:
    """Those that are made in the block of `noted`, by whichever thread."""

    #: They are forgotten when this goes; at once where it is None.
    holder: object = None


@contextlib.contextmanager
def noted() -> Iterator[Texts]:
    texts, before = Texts(), frozenset(_TEXTS)
    try:
        yield texts
    finally:
        made = frozenset(_TEXTS) - before
        if texts.holder is None:
            _forget(made)
        else:
            weakref.finalize(texts.holder, _forget, made).atexit = False


def _forget(names: frozenset[str]) -> None:
    for name in names:
        _TEXTS.pop(name, None)
        linecache.cache.pop(name, None)
