"""What functions of modules that give constants give: an object that may change is made anew in each run."""

from __future__ import annotations

import hashlib
import inspect
import re
from types import SimpleNamespace

import pytest
import torch

import fxjit


def digest(x, out):
    y = x * 2
    found = hashlib.new("md5", usedforsecurity=False)
    found.update(b"a")
    return y, found.hexdigest()


def kept(x, out):
    y = x * 2
    out.append(hashlib.new("sha256"))
    return y, len(out)


def at_once(x, out):
    return x * 2, hashlib.new("md5", b"abc").hexdigest()


def handed_on(x, out):
    made = SimpleNamespace(state=hashlib.new("sha1", b"abc"))
    made.state.update(str(len(out)).encode())
    return x * 2, made.state.digest()


def found_places(x, out):
    matches = re.finditer("a", "banana")
    return x * next(matches).start(), [each.start() for each in matches]


def parameters(x, out):
    out.append(inspect.getfullargspec(digest).args)
    out[-1].append("z")
    return x * 2, out[-1], inspect.signature(digest) == inspect.signature(kept)


@pytest.mark.parametrize("program", [digest, kept, at_once, handed_on, found_places, parameters], ids=lambda fn: fn.__name__)
def test_objects_are_made_in_each_run(program):
    compiled = fxjit.compile(program, backend="eager")
    eagers, ours = [], []
    for _ in range(3):
        expected, found = program(torch.ones(2), eagers), compiled(torch.ones(2), ours)
        torch.testing.assert_close(expected[0], found[0])
        assert expected[1:] == found[1:]
    assert len({id(each) for each in ours}) == len(ours)


def test_a_promised_result_is_one_object():
    """As the mark says, nothing calls the function again."""
    @fxjit.assume_constant_result
    def state():
        return hashlib.new("md5")

    def program(x):
        return x * 2, state()

    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[1] is compiled(torch.ones(2))[1]
