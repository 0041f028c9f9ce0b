"""Weak references to dicts and other objects from outside, made in compiled code."""

from __future__ import annotations

import collections
import weakref
from typing import Any

import pytest
import torch

import fxjit


class Holder:
    held: Any = None


KEPT = collections.OrderedDict(a=1)


def asked(x: torch.Tensor, holder: Holder) -> Any:
    reference = weakref.ref(holder.held)
    return x + reference()["a"], reference() is holder.held


def of_a_global(x: torch.Tensor, holder: Holder) -> Any:
    reference = weakref.ref(KEPT)
    return x + reference()["a"], reference() is KEPT  # type: ignore[index]  # alive


def overwritten(x: torch.Tensor, holder: Holder) -> Any:
    reference = weakref.ref(holder.held)
    holder.held = 3
    return x + 1, reference() is None


def kept_in_a_variable(x: torch.Tensor, holder: Holder) -> Any:
    kept = holder.held
    reference = weakref.ref(kept)
    holder.held = 3
    return x + 1, reference() is None, len(kept)


def replaced_global(x: torch.Tensor, holder: Holder) -> Any:
    global KEPT
    reference = weakref.ref(KEPT)
    KEPT = collections.OrderedDict(a=2)
    return x + 1, reference() is None


@pytest.mark.parametrize("fn", [asked, of_a_global, overwritten, kept_in_a_variable, replaced_global])
def test_as_in_eager(fn: Any) -> None:
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(3):
        found = []
        for function in (fn, compiled):
            holder = Holder()
            holder.held = collections.OrderedDict(a=1)
            found.append(str(function(torch.ones(2), holder)))
        assert found[0] == found[1]


def test_it_is_the_one_that_there_is() -> None:
    compiled = fxjit.compile(lambda x, d: (x + 1, weakref.ref(d)), backend="eager", fullgraph=True)
    given = collections.OrderedDict(a=1)
    assert compiled(torch.ones(2), given)[1] is weakref.ref(given)
