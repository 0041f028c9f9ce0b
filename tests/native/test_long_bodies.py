"""Long serial loop bodies run as several loops over tiles (`codegen/loop_fission.py`), with eager's results in all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit
from fxjit.backends.native.codegen.cpp import Line
from fxjit.backends.native.codegen.loop_fission import TILE, fission, tiled_loops


def work(x: torch.Tensor) -> torch.Tensor:
    return (x * 1.5 + 1).tanh() * x.sigmoid() - x * 0.25


def deep(x: torch.Tensor) -> torch.Tensor:
    return work(work(work(x)))


def kernels_of(program: Callable[..., object], *inputs: object, caplog: pytest.LogCaptureFixture) -> str:
    """The source of what `program` compiles to, once its results are seen to be eager's."""
    with caplog.at_level(logging.DEBUG, logger="fxjit.output_code"):
        assert_same_as_eager(program, *inputs, calls=1, backend="native", rtol=1.3e-5)
    return "\n".join(record.getMessage() for record in caplog.records)


# The cut


def value(k: int, text: str, reads: list[str], ctype: str = "float", cost: int = 16) -> Line:
    """The line of a value t<k>."""
    return Line(f"const {ctype} t{k} = {text};", reads, f"t{k}", ctype, cost)


FIRST = value(1, "p0[o0]", [], cost=1)


def store(text: str, *reads: str) -> Line:
    return Line(f"p1[o0] = {text};", reads)


def lines_of(n: int) -> list[Line]:
    """n functions, each of the one before."""
    functions = [value(k, f"tanhf(t{k - 1})", [f"t{k - 1}"]) for k in range(2, n + 2)]
    return [FIRST, *functions, store(f"t{n + 1}", f"t{n + 1}")]


def test_a_body_with_little_work_stays_one_loop() -> None:
    body = lines_of(2)
    assert fission(body) == [body]


def test_functions_of_each_other_are_cut_and_stay_in_order() -> None:
    body = lines_of(8)
    stages = fission(body)
    assert len(stages) == 8
    assert [line for stage in stages for line in stage] == body


def test_functions_side_by_side_stay_one_loop() -> None:
    """The processor works on them at once as it is."""
    names = [f"t{k}" for k in range(2, 14)]
    functions = [value(k, f"tanhf(t1 * {k}.0f)", ["t1"]) for k in range(2, 14)]
    body = [FIRST, *functions, store(" + ".join(names), *names)]
    assert fission(body) == [body]


def test_what_a_later_stage_reads_is_kept_and_nothing_else() -> None:
    stages = [[FIRST, value(2, "(t1 < 0)", ["t1"], "bool", cost=1)], [store("t2 ? 1 : 0", "t2")]]
    text = "\n".join(tiled_loops(stages, "o0", "n0", "#pragma omp simd"))
    assert f"alignas(64) bool kt2[{TILE}];" in text
    assert "kt1" not in text
    assert text.index("kt2[o0 - lo] = t2;") < text.index("const bool t2 = kt2[o0 - lo];")


# The kernels


@pytest.mark.parametrize("size", [1, 63, 64, TILE, TILE + 1, 1000, 20_000])
def test_every_length_gives_eagers_values(size: int, caplog: pytest.LogCaptureFixture) -> None:
    source = kernels_of(deep, torch.randn(size), caplog=caplog)
    assert ("lo +=" in source) == (size >= 64)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((7, 300), (300, 1)),
        ((300, 7), (1, 300)),
        ((3, 5, 257), (1285, 257, 1)),
        ((40, 300), (1, 40)),
        ((2, 70_000), (70_000, 1)),
    ],
)
def test_rows_columns_and_transposed_inputs(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    x = torch.empty_strided(shape, strides).normal_()
    assert_same_as_eager(lambda x: deep(x) * torch.arange(shape[-1]), x, backend="native", rtol=1.3e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = deep(x.float() if dtype is torch.float16 else x)
        return y, (y > 0.2) & (work(y) > 0)

    rtol = {torch.float64: 1e-7, torch.bfloat16: 1.6e-2, torch.float16: 1.3e-5}[dtype]
    assert_same_as_eager(program, torch.randn(1000, dtype=torch.float64).to(dtype), backend="native", rtol=rtol)


def test_an_input_is_overwritten_while_it_is_read() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = deep(x)
        x.mul_(2).add_(work(y))
        return y + x

    x = torch.randn(5000)
    mine, theirs = x.clone(), x.clone()
    torch.testing.assert_close(fxjit.compile(program)(mine), program(theirs))
    torch.testing.assert_close(mine, theirs)


def test_looked_up_values_are_checked_in_their_stage() -> None:
    def program(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return deep(table[index]) + deep(table[index.flip(0)])

    table, index = torch.randn(50), torch.randint(0, 50, (3000,))
    compiled = fxjit.compile(program)
    torch.testing.assert_close(compiled(table, index), program(table, index))
    index[1234] = 50
    with pytest.raises(IndexError):
        compiled(table, index)


def test_sizes_that_vary_and_gradients() -> None:
    compiled = fxjit.compile(deep, dynamic=True)
    for size in (70, 1, 300, 1000):
        x = torch.randn(size, 2 * size, dtype=torch.float64, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        mine, theirs = compiled(x), deep(y)
        torch.testing.assert_close(mine, theirs)
        mine.square().sum().backward()
        theirs.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
