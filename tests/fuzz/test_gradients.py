"""Random programs over views, writes and gradients (gradients.py) end as in eager."""

import pytest

from .gradients import difference


@pytest.mark.parametrize("seed", range(20))
def test_random_views_and_writes(seed):
    assert not difference(seed)
