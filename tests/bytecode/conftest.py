"""Bytecode needs nothing of torch, and its tests run on every supported Python without it: where torch is missing, the
packages on the way to the modules under test are entered without their `__init__`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

here = Path(__file__).resolve()
sys.path.insert(0, str(here.parent))
if importlib.util.find_spec("torch") is None:
    for name in ("fxjit", "fxjit.frontend"):
        package = ModuleType(name)
        package.__path__ = [str(here.parents[2] / "src" / name.replace(".", "/"))]
        sys.modules.setdefault(name, package)
