"""Small models trained under DistributedDataParallel, FSDP2 and tensor parallel have eager's losses; `python -m
benchmarks.distributed --losses` trains larger ones for longer."""

from __future__ import annotations

import pytest
from benchmarks.distributed_losses import MODELS, STRATEGIES, compare

pytestmark = pytest.mark.filterwarnings("ignore")


def differences(name: str) -> dict[str, float]:
    return {strategy: compare(name, strategy, steps=3, width=8, depth=1)[2] for strategy in STRATEGIES}


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_eager(ranks, name):
    for each in ranks(differences, name, seconds=300):
        assert max(each.values()) < 1e-4, each
