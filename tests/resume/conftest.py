"""New bytecode is written without torch, and the tests of it run on every supported Python without it: where torch is
missing, the packages on the way to the modules under test are entered without their `__init__`."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

here = Path(__file__).resolve()
sys.path.insert(0, str(here.parent))
if importlib.util.find_spec("torch") is None:
    for name in ("fxjit", "fxjit.frontend", "fxjit.frontend.values", "fxjit.guards"):
        package = ModuleType(name)
        package.__path__ = [str(here.parents[2] / "src" / name.replace(".", "/"))]
        sys.modules.setdefault(name, package)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Each test runs in a thread of its own: one that stops at PUSH_EXC_INFO leaves an exception that is being handled, which
    nobody but the thread's end takes away. (A trace never stops there.)"""
    raised = []

    def run():
        try:
            pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
        except BaseException as error:  # noqa: BLE001 - it is raised below
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return True
