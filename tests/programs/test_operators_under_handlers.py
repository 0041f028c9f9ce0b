"""Operators of the program's that raise when they run: the program's handlers see it, as they do in eager."""

from __future__ import annotations

import pytest
import torch

import fxjit


@torch.library.custom_op("fxjit_tests::refusing", mutates_args=())
def refusing(x: torch.Tensor) -> torch.Tensor:
    if float(x.sum()) > 100:
        raise ValueError("too large")
    return x.clone()


@refusing.register_fake
def _(x):
    return torch.empty_like(x)


def direct(x, seen):
    try:
        y = torch.ops.fxjit_tests.refusing(x * 2)
        seen.append("no")
    except ValueError:
        y = x - 1
        seen.append("yes")
    return y * 2


def overload(x, seen):
    try:
        y = torch.ops.fxjit_tests.refusing.default(x + 1)
    except ValueError as error:
        seen.append(str(error))
        raise RuntimeError("other") from error
    finally:
        seen.append("end")
    return y


def in_a_callee(x, seen):
    def called(x):
        return refusing(x.sin() * 200).cos()

    x = x * 3
    try:
        return called(x)
    except ValueError:
        seen.append(len(seen))
        return x


def in_a_loop(x, seen):
    for factor in (1.0, 100.0, 2.0):
        try:
            x = x + torch.ops.fxjit_tests.refusing(x * factor)
        except ValueError:
            seen.append(factor)
    return x


def without_a_handler(x, seen):
    with torch.no_grad():
        return torch.ops.fxjit_tests.refusing(x) + 1


PROGRAMS = [direct, overload, in_a_callee, in_a_loop, without_a_handler]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_handler_sees_what_an_operator_raises(program, backend):
    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend)
    for value in (1.0, 90.0, 2.0):
        found = []
        for call in (program, compiled):
            seen = []
            try:
                result = call(torch.full((3,), value), seen)
            except Exception as error:
                result = type(error), str(error)
            found.append((result, seen))
        (expected, seen), (mine, seen_by_mine) = found
        assert seen_by_mine == seen and type(mine) is type(expected)
        if isinstance(mine, torch.Tensor):
            torch.testing.assert_close(mine, expected)
        else:
            assert mine == expected


def test_with_fullgraph_it_is_in_the_graph_and_what_it_raises_leaves_the_function():
    compiled = fxjit.compile(direct, fullgraph=True, backend="eager")
    assert torch.equal(compiled(torch.ones(3), []), torch.full((3,), 4.0))
    with pytest.raises(ValueError, match="too large"):
        compiled(torch.full((3,), 90.0), [])


def test_an_operator_of_torchs_stays_in_the_graph():
    def f(x, i):
        try:
            return torch.ops.aten.index_select(x, 0, i) + 1
        except IndexError:
            return x

    explained = fxjit.explain(f)(torch.ones(3), torch.tensor([1]))
    assert explained.graph_break_count == 0
