"""The hook and the call path need nothing of torch, and their tests run on every supported Python without it: where
torch is missing, the packages on the way to the modules under test are entered without their `__init__`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

if importlib.util.find_spec("torch") is None:
    source = Path(__file__).resolve().parents[2] / "src" / "fxjit"
    for name, folder in {"fxjit": source, "fxjit.frontend": source / "frontend"}.items():
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


@pytest.fixture(autouse=True)
def hook_is_left_as_found() -> Iterator[None]:
    """Every test ends with no region on this thread and the evaluator taken off."""
    from fxjit import _C

    yield
    assert _C.current_region() is None
    info = _C.hook_info()
    assert info["threads"] == 0 and not info["installed"] and not info["bypass"]
