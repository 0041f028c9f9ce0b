"""Each disturbance of a background compile once; `python -m tests.tiers.stress` does many, at random."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.tiers import stress

import fxjit
from fxjit import config
from fxjit.backends.tiers import process


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fxjit.reset()
    monkeypatch.setattr(process, "NICENESS", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # eager itself hangs in a forked child whose parent's operators ran on several
    with config.patch(cache_dir=str(tmp_path)):
        yield
    torch.set_num_threads(threads)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("disturb", stress.DISTURBANCES, ids=lambda each: each.__name__)
def test_a_disturbed_compile_ends_as_eager(disturb: Callable[[stress.Subject], None]) -> None:
    if disturb is stress.fork and not stress.autograd_survives_fork():
        pytest.skip("this build of torch has no autograd in a forked process")
    assert stress.run(1, (disturb,)) >= 4, "before and behind it, when the compile has ended, and with another size"


def test_programs_end_as_eagers_do() -> None:
    """Some runs of `python -m tests.tiers.endings`, in a process of their own, which reaps what they leave."""
    done = subprocess.run([sys.executable, "-m", "tests.tiers.endings", "--runs", "2", "--seed", "5"], capture_output=True,
                          cwd=Path(__file__).parents[2], text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
