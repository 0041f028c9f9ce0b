"""Whose code a file has (fxjit.origins): by the folders in which installers put packages, in virtual environments, too."""

from __future__ import annotations

import os
import sysconfig
import traceback
from types import CodeType

import pytest
import torch

import fxjit
from fxjit import events
from fxjit.origins import Whose, is_installed, is_library, origin_of
from fxjit.skips import frame_verdict

TORCH = os.path.dirname(torch.__file__)
FXJIT = os.path.dirname(fxjit.__file__)
STANDARD = os.path.dirname(os.path.realpath(os.__file__))
PACKAGES = sysconfig.get_paths()["purelib"]

FILES = {
    f"{TORCH}/nn/modules/linear.py": (Whose.TORCH, "nn/modules/linear.py"),
    f"{TORCH}/../torch/nn/modules/linear.py": (Whose.TORCH, "nn/modules/linear.py"),
    f"{FXJIT}/api.py": (Whose.FXJIT, "api.py"),
    f"{FXJIT}/demo.py": (Whose.PROGRAM, "demo.py"),
    f"{STANDARD}/unittest/case.py": (Whose.STANDARD_LIBRARY, "unittest/case.py"),
    f"{STANDARD}/typing.py": (Whose.STANDARD_LIBRARY, "typing.py"),
    f"{STANDARD}/test/test_list.py": (Whose.PROGRAM, "test/test_list.py"),
    f"{PACKAGES}/einops/einops.py": (Whose.PACKAGE, "einops/einops.py"),
    # A virtual environment that sees the packages of the Python it was made from.
    f"{STANDARD}/site-packages/einops/einops.py": (Whose.PACKAGE, "einops/einops.py"),
    "/home/ann/.local/lib/python3.12/site-packages/six.py": (Whose.PACKAGE, "six.py"),
    "/usr/lib/python3/dist-packages/einops/einops.py": (Whose.PACKAGE, "einops/einops.py"),
    "/usr/local/lib/python3.12/dist-packages/einops/einops.py": (Whose.PACKAGE, "einops/einops.py"),
    "/home/ann/train.py": (Whose.PROGRAM, "/home/ann/train.py"),
    "train.py": (Whose.PROGRAM, "train.py"),
    "": (Whose.PROGRAM, ""),
    "<string>": (Whose.GENERATED, "<string>"),
    "<ipython-input-3-1f2e>": (Whose.GENERATED, "<ipython-input-3-1f2e>"),
    "<frozen importlib._bootstrap>": (Whose.IMPORT_SYSTEM, "<frozen importlib._bootstrap>"),
}


@pytest.mark.parametrize("name", FILES)
def test_whose_a_file_is(name: str) -> None:
    origin = origin_of(name)
    whose, inner = FILES[name]
    assert (origin.whose, origin.inner) == (whose, inner)
    assert is_library(name) == (whose in (Whose.TORCH, Whose.FXJIT, Whose.STANDARD_LIBRARY))
    assert is_installed(name) == (whose not in (Whose.PROGRAM, Whose.GENERATED))


def code_in(file: str) -> CodeType:
    namespace: dict[str, object] = {}
    exec(compile("def f(x): return x + 1", file, "exec"), namespace)
    return namespace["f"].__code__  # type: ignore[attr-defined]  # a function


@pytest.mark.parametrize("name", [name for name, (whose, _) in FILES.items() if whose in (Whose.PACKAGE, Whose.PROGRAM)])
def test_frames_of_packages_and_of_the_program_are_compiled(name: str) -> None:
    assert not frame_verdict(code_in(name), {}).skip


def test_frames_of_packages_that_only_call_others_pass_by() -> None:
    for folder in (PACKAGES, f"{STANDARD}/site-packages", "/usr/lib/python3/dist-packages"):
        verdict = frame_verdict(code_in(f"{folder}/pluggy/_callers.py"), {})
        assert (verdict.skip, verdict.rule) == (True, "the package pluggy")


def test_messages_show_the_frames_of_the_program_and_of_packages() -> None:
    frames = tuple(traceback.FrameSummary(name, 1, "f", lookup_line=False) for name in FILES)
    shown = {frame.filename for frame in events.user_frames(frames)}
    assert shown == {name for name in FILES if not is_library(name)}
