"""A few of the random programs of views, writes and modes; many more by `python -m tests.fuzz.recorded`."""

from __future__ import annotations

import pytest
from tests.fuzz import recorded

#: That differed with aot_eager: a write past autograd to a view of a leaf, a shape changed in place, a view among several of a
#: written input, views under inference mode that were written since, writes to views of one tensor.
FOUND = (51, 111, 112, 124, 139, 253, 368, 404, 406, 410, 414, 456, 485)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("first", range(10_000, 10_100, 20))
def test_random_programs_are_eagers(first: int, backend: str) -> None:
    assert [found for seed in range(first, first + 20) if (found := recorded.difference(seed, backend)) is not None] == []


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("seed", FOUND)
def test_programs_that_differed(seed: int, backend: str) -> None:
    assert recorded.difference(seed, backend) is None
