"""The text of the Python that torch.fx writes for each graph. It keeps all of it for tracebacks, until the process ends: some
ten texts for each compile of a graph that goes through AOTAutograd. Here they go with the entry that they were made for."""

from __future__ import annotations

import contextlib
import linecache
import weakref
from collections.abc import Iterator

from torch.fx import graph_module

#: torch.fx's texts, under the file names of the code objects; empty where this torch keeps them elsewhere.
_TEXTS: dict[str, str] = getattr(getattr(graph_module, "_loader", None), "eval_cache", {})


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
