"""Stored entries of modules in DistributedDataParallel: parts of a graph that is cut at its buckets are found by the next
process, and only where it would be cut so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.distributed.test_ddp import ONE_LAYER, Branches, compare, layers
from torch import distributed

import fxjit
from fxjit import config
from fxjit.counters import counters

#: The module, whether it was compiled before it was wrapped, the size of a bucket, and how many entries are then found and
#: not found: of a module that is compiled with its wrapper, the wrapper's own is always the same.
RUNS = (
    ("layers", False, ONE_LAYER, (0, 2)), ("layers", False, ONE_LAYER, (2, 0)), ("layers", False, 3 * ONE_LAYER, (1, 1)),
    ("layers", True, ONE_LAYER, (0, 1)), ("layers", True, ONE_LAYER, (1, 0)), ("branches", False, ONE_LAYER, (1, 1)),
    ("branches", False, ONE_LAYER, (2, 0)), ("layers", False, 3 * ONE_LAYER, (2, 0)),
)


def train_again_and_again(folder: str) -> list[tuple[int, int]]:
    """Trained by what are new processes to the store."""
    found = []
    with config.patch(store_entries=True, cache_graphs=True, cache_dir=f"{folder}/{distributed.get_rank()}"):
        for what, inside, size, _ in RUNS:
            fxjit.reset()
            hits, misses = counters["cache"]["entry hit"], counters["cache"]["entry miss"]
            torch.manual_seed(0)
            compare(layers() if what == "layers" else Branches(), "native", inside, bucket_cap_mb=size)
            found.append((counters["cache"]["entry hit"] - hits, counters["cache"]["entry miss"] - misses))
    return found


def test_parts_are_found_where_the_graph_would_be_cut_alike(ranks: Any, tmp_path: Path) -> None:
    assert ranks(train_again_and_again, str(tmp_path)) == [[expected for *_, expected in RUNS]] * 2
