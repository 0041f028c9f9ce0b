"""Products that are multiplied by blocks of rows in the kernel that reads them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxjit
from fxjit import config

pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other libraries multiply by themselves")

#: Enough of them that each thread has whole blocks, and that the last block is not whole.
ROWS, WIDTH, COLUMNS = 1403, 24, 192


def operands(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


EPILOGUES = {
    "gelu": lambda x, w, b, r: F.gelu(F.linear(x, w, b)),
    "no bias": lambda x, w, b, r: torch.tanh(F.linear(x, w)) * 2,
    "residual": lambda x, w, b, r: F.linear(x, w, b) + r,
    "layer norm": lambda x, w, b, r: F.layer_norm(F.linear(x, w, b) + r, (COLUMNS,), b, b),
    "softmax": lambda x, w, b, r: torch.softmax(F.linear(x, w, b), -1),
    "sum of rows": lambda x, w, b, r: (F.linear(x, w, b) / 8).exp().sum(-1),  # whichever library multiplies, errors stay small
    "several results": lambda x, w, b, r: ((y := F.linear(x, w, b)).relu(), y * r, (y + 1).sum(-1)),
    "to half": lambda x, w, b, r: F.silu(F.linear(x, w, b)).to(torch.bfloat16),
    "mm": lambda x, w, b, r: torch.sigmoid(x.reshape(-1, WIDTH) @ w.t()),
    "addmm of columns": lambda x, w, b, r: torch.addmm(b, x.reshape(-1, WIDTH), w.t().contiguous()).relu() + 1,
    "scaled by columns": lambda x, w, b, r: F.linear(x, w, b).cos() * b + r,
    "a part of the rows": lambda x, w, b, r: F.gelu(F.linear(x.reshape(-1, WIDTH)[:, : WIDTH // 2], w[:, : WIDTH // 2], b)),
}


@pytest.fixture(autouse=True)
def counted_anew() -> None:
    fxjit.reset()


def tiles() -> int:
    return fxjit.counters["native"]["products in kernels"]


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("lead", [(ROWS,), (23, 61)], ids=["matrix", "batch of matrices"])
def test_products_with_their_epilogues_are_eagers(name, lead):
    function = EPILOGUES[name]
    x, w, b, r = operands((*lead, WIDTH), (COLUMNS, WIDTH), (COLUMNS,), (*lead, COLUMNS))
    with torch.no_grad():
        wanted, got = function(x, w, b, r), fxjit.compile(function, backend="native")(x, w, b, r)
    torch.testing.assert_close(got, wanted)
    for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (got, wanted)), strict=True):
        assert one.stride() == other.stride() and one.dtype is other.dtype
    assert tiles() == 1


@pytest.mark.parametrize(("function", "why"), [
    (lambda x, w, b, r: (y := F.linear(x, w, b), F.gelu(y)), "the product is a result"),
    (lambda x, w, b, r: (F.linear(x, w, b).sigmoid() * r.abs()).sum(0), "columns are reduced"),
    (lambda x, w, b, r: F.gelu(F.linear(x[:100], w, b)), "few rows"),
    (lambda x, w, b, r: F.gelu(F.linear(x.t().contiguous().t(), w, b)), "columns that are contiguous"),
    (lambda x, w, b, r: F.gelu(F.linear(x.double(), w.double(), b.double())), "doubles"),
])
def test_other_products_are_blas_calls_of_their_own(function, why):
    x, w, b, r = operands((ROWS, WIDTH), (COLUMNS, WIDTH), (COLUMNS,), (ROWS, COLUMNS))
    with torch.no_grad():
        torch.testing.assert_close(fxjit.compile(function, backend="native")(x, w, b, r), function(x, w, b, r))
    assert tiles() == 0, why


@pytest.mark.parametrize(("inner", "tiled"), [(128, 1), (1024, 1), (1088, 0), (2048, 0)])
def test_weights_too_large_to_be_packed_for_each_block_are_multiplied_in_one_call(inner, tiled):
    """256 columns: up to 1 MiB of weights, and above."""

    def function(x, w, b):
        return F.gelu(F.linear(x, w, b))

    x, w, b = operands((ROWS, inner), (256, inner), (256,))
    with torch.no_grad():
        torch.testing.assert_close(fxjit.compile(function, backend="native")(x, w, b), function(x, w, b), rtol=1e-4, atol=1e-4)
    assert tiles() == tiled


def test_a_library_from_the_disk_multiplies_before_this_process_compiled_anything(tmp_path):
    code = f"""
import torch, fxjit
from fxjit.counters import counters
torch.manual_seed(0)
x, w = torch.randn({ROWS}, {WIDTH}), torch.randn({COLUMNS}, {WIDTH})
def function(x, w):
    return torch.tanh(torch.nn.functional.linear(x, w)) * 2
with torch.no_grad():
    torch.testing.assert_close(fxjit.compile(function)(x, w), function(x, w))
print(counters["native"]["products in kernels"], counters["cache"]["graph hit"])
"""
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                              env=config.child_environment(FXJIT_CACHE_DIR=str(tmp_path)))
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert said == [["1", "0"], ["1", "1"]]


def test_what_a_product_reads_may_be_written_to_behind_it():
    def function(x, w, b):
        y = F.gelu(F.linear(x, w, b))
        x.mul_(2)
        return y + F.linear(x, w, b)

    x, w, b = operands((ROWS, WIDTH), (COLUMNS, WIDTH), (COLUMNS,))
    mine, theirs = x.clone(), x.clone()
    with torch.no_grad():
        torch.testing.assert_close(fxjit.compile(function, backend="native")(mine, w, b), function(theirs, w, b))
    torch.testing.assert_close(mine, theirs)


def test_rows_vary():
    def function(x, w, b):
        return F.layer_norm(F.gelu(F.linear(x, w, b)), (COLUMNS,))

    compiled = fxjit.compile(function, backend="native")
    with torch.no_grad():
        for rows in (ROWS, 2 * ROWS, 700, 1, 0, 5 * ROWS):
            x, w, b = operands((rows, WIDTH), (COLUMNS, WIDTH), (COLUMNS,))
            torch.testing.assert_close(compiled(x, w, b), function(x, w, b))
    assert tiles() == 2, "one of the first size, one of all"


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_have_tiles_of_their_own(threads):
    def function(x, w, b):
        return F.gelu(F.linear(x, w, b))

    x, w, b = operands((2 * ROWS, WIDTH), (COLUMNS, WIDTH), (COLUMNS,))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with torch.no_grad():
            compiled = fxjit.compile(function, backend="native")
            torch.testing.assert_close(compiled(x, w, b), function(x, w, b))
            torch.set_num_threads(1 if threads > 1 else 3)  # fewer than it was compiled for, or more
            torch.testing.assert_close(compiled(x, w, b), function(x, w, b))
    finally:
        torch.set_num_threads(before)
    assert tiles() >= 1


def test_training_has_eagers_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, COLUMNS), nn.GELU(), nn.LayerNorm(COLUMNS), nn.Linear(COLUMNS, WIDTH))
    x = torch.randn(ROWS, WIDTH)
    model(x).square().mean().backward()
    wanted = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    fxjit.compile(model)(x).square().mean().backward()
    for each, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(each.grad, grad)


def test_a_stored_library_is_connected_again(tmp_path):
    """What the disk keeps knows no address; whoever loads it sets that."""
    def function(x, w, b):
        return F.gelu(F.linear(x, w, b))

    x, w, b = operands((ROWS, WIDTH), (COLUMNS, WIDTH), (COLUMNS,))
    with config.patch(cache_dir=str(tmp_path)), torch.no_grad():
        for _ in range(2):
            fxjit.reset()
            torch.testing.assert_close(fxjit.compile(function, backend="native")(x, w, b), function(x, w, b))
