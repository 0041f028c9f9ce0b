"""A function of the standard library that breaks at a step of its own runs as it is, in one break."""

from __future__ import annotations

import argparse
import calendar
import dataclasses
import typing
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager


def a_data_class(x: torch.Tensor) -> torch.Tensor:
    made: Any = dataclasses.make_dataclass("Made", [("a", object), ("b", object)])(x + 1, x * 2)
    return made.a + made.b  # type: ignore[no-any-return]  # a tensor


def a_named_tuple(x: torch.Tensor) -> torch.Tensor:
    made: Any = typing.NamedTuple("made", [("a", object)])(x * 2)
    return made.a + 1  # type: ignore[no-any-return]  # a tensor


def a_calendar(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * calendar.monthrange(2024, 2)[1]


def arguments(x: torch.Tensor) -> torch.Tensor:
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=3)
    return x * 2 * parser.parse_args([]).n


@pytest.mark.parametrize("fn, breaks", [(a_data_class, 1), (a_named_tuple, 1), (a_calendar, 1), (arguments, 2)])
def test_its_call_breaks_once(fn: Any, breaks: int) -> None:
    assert_same_as_eager(fn, torch.randn(3), fullgraph=False, calls=1, breaks=breaks)
