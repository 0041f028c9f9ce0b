"""Two ranks, kept for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.distributed.ranks import Ranks

if not torch.distributed.is_available():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    pool = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()


@pytest.fixture
def mortal_ranks(tmp_path: Path) -> Iterator[Ranks]:
    """For one test: it may end them."""
    pool = Ranks(2, tmp_path)
    yield pool
    pool.close()
