"""Processes that share a cache folder, killed at random moments or all at once.

`python -m tests.native.cache_stress` does many.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.native import cache_stress


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    place, scratch = tmp_path / "cache", tmp_path / "tmp"
    for each in (place, scratch):
        each.mkdir(mode=0o700)
    return place, scratch


def test_killed_processes_leave_nothing_and_harm_no_other(folders):
    assert cache_stress.killed(4, *folders, seed=1) > 0
    assert not cache_stress.left_over(*folders)


def test_processes_that_begin_at_once_are_right(folders):
    cache_stress.together(4, *folders)
    assert not cache_stress.left_over(*folders)


def test_what_is_left_over_is_seen(folders):
    """The check can fail."""
    cache_stress.together(1, *folders)
    (folders[0] / "kernels").mkdir(mode=0o700, exist_ok=True)
    (folders[0] / "kernels" / ("0" * 40 + ".so")).write_bytes(b"half")
    (folders[0] / "kernels" / "lock").write_bytes(b"")
    assert len(cache_stress.left_over(*folders)) == 2
