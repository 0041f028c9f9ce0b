"""Every test here begins and ends with nothing compiled and every setting as it comes."""

from __future__ import annotations

import pytest

import fxjit
from fxjit import config


@pytest.fixture(autouse=True)
def clean():
    before = config.to_dict()
    fxjit.reset()
    yield
    for name, value in before.items():
        if config.to_dict()[name] != value:
            config.patch({name: value}).__enter__()
    fxjit.set_logs()
    fxjit.set_stance("default")
    fxjit.uninstall()
    fxjit.reset()
