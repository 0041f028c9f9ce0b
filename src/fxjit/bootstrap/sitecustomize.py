"""Installs the drop-in in the processes that a program under `python -m fxjit run` starts: ranks, spawned workers.

`run` puts this folder first in PYTHONPATH, so every Python that inherits the environment imports this file when it starts
(the module `sitecustomize` of site.py). It waits for the process to import torch, and imports nothing of fxjit before. A
`sitecustomize` that this one hides is run as well. Isolated interpreters (`python -I`, `-E`, `-S`) do not come here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Installs the drop-in as soon as torch is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)  # a later path may have one
            return None
        run_module = spec.loader.exec_module

        @functools.wraps(run_module)
        def then_install(module: ModuleType) -> None:
            run_module(module)
            _install()

        spec.loader.exec_module = then_install  # type: ignore[method-assign]  # one loader object a module
        return spec


def _install() -> None:
    try:
        drop_in = importlib.import_module("fxjit.install")
    except ImportError as problem:
        warnings.warn(f"torch.compile stays torch's own in this process: it was started under `python -m fxjit run`, but "
                      f"cannot import fxjit itself ({problem}).", stacklevel=2)
        return
    drop_in.install()


def _run_hidden() -> None:
    """The `sitecustomize` that Python would have imported without this folder in its path."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # and not imported as a part of fxjit
    _here = Path(__file__).resolve().parent
    sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != _here]
    sys.meta_path.insert(0, _AfterTorch())
    _run_hidden()
