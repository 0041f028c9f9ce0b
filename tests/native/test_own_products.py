"""Products by our own kernels, of all layouts and of sizes around those of blocks; and which library is called."""

from __future__ import annotations

import itertools
import mmap
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import fxjit
from fxjit import _C, config, tensor_shim
from fxjit.backends.native.executor import plan
from fxjit.backends.native.lower import blas
from fxjit.backends.native.runtime import measured, own_products
from fxjit.backends.native.runtime.own_products import Library
from fxjit.counters import counters

needs_kernels = pytest.mark.skipif(
    not tensor_shim.ensure() or _C.product_class(64, 64, 64, False, False) < 0, reason="this processor has no AVX2"
)

#: Rows, columns and terms: around the kernels' 14 x 32 and 6 x 16, a chain's 192, a block's 168 x 1024 and depth of 768, few
#: rows, few columns, for which rows are not packed, and rows that are packed once for all columns, which threads share from 256
#: each on.
SIZES = [
    (1, 70, 300), (1, 16500, 1), (2, 331, 47), (3, 64, 3100), (4, 131, 193), (5, 3300, 1), (6, 41, 300), (8, 70, 513),
    (9, 33, 3100), (12, 31, 257), (13, 31, 160), (14, 32, 192),
    (15, 33, 193), (29, 100, 385), (43, 17, 769), (60, 1025, 40), (169, 65, 200), (340, 96, 800), (1030, 40, 30),
    (32, 32, 32), (33, 31, 768), (64, 1030, 1600), (257, 49, 770),
    (300, 48, 48), (100, 104, 104), (70, 16, 96), (600, 208, 300), (50, 80, 512), (45, 500, 1100),
    (120, 1290, 700), (169, 530, 1000), (500, 600, 1700), (513, 520, 400),
]  # fmt: skip

has_tiles = tensor_shim.ensure() and _C.program_can("tiles")


@pytest.fixture(params=[Library.VECTORS, pytest.param(
    Library.TILES, marks=pytest.mark.skipif(not has_tiles, reason="this processor has no tiles of bfloat16"))])  # fmt: skip
def ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """All products of programs that are built now are our kernels'."""
    numbers: set[int] = set()

    def always(shape, number):
        numbers.add(number)
        return request.param

    monkeypatch.setattr(own_products, "fastest", always)
    yield numbers
    for number in numbers:
        _C.set_product_library(number, Library.BLAS)
    fxjit.reset()


def laid_out(rows: int, columns: int, turned: bool, gap: int = 0) -> torch.Tensor:
    """A matrix of random numbers; `gap`: numbers between its lines that are not its own."""
    if turned:
        return laid_out(columns, rows, False, gap).t()
    return torch.randn(rows, columns + gap)[:, :columns]


@pytest.mark.sweep(2)
@pytest.mark.usefixtures("vectors")
@needs_kernels
@pytest.mark.parametrize("m, n, k", SIZES)
def test_products_are_as_near_to_the_true_ones_as_atens(ours, m: int, n: int, k: int):
    for (a_turned, b_turned), gap in zip(itertools.product((False, True), repeat=2), (0, 3, 0, 5), strict=True):
        a, b = laid_out(m, k, a_turned, gap), laid_out(k, n, b_turned, gap)
        fxjit.reset()
        found = fxjit.compile(torch.mm, fullgraph=True)(a, b)
        true = a.double() @ b.double()
        scale = a.double().abs() @ b.double().abs()  # what rounding errors are relative to
        error, atens = ((each - true).abs() / scale for each in (found, torch.mm(a, b)))
        assert error.max() <= max(2 * atens.max(), 2 * torch.finfo(torch.float32).eps)
        assert error.square().mean().sqrt() <= max(1.1 * atens.square().mean().sqrt(), torch.finfo(torch.float32).eps / 2)
    assert ours


@pytest.mark.usefixtures("vectors")
@needs_kernels
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_changes_no_result(ours, threads: int):
    before = torch.get_num_threads()
    cases = [(torch.randn(m, k), torch.randn(n, k), torch.randn(n)) for m, n, k in SIZES[-16:]]
    compiled = fxjit.compile(torch.nn.functional.linear, dynamic=False, recompile_limit=len(cases))  # none by MKL
    try:
        torch.set_num_threads(1)
        alone = [compiled(*case) for case in cases]
        torch.set_num_threads(threads)
        for case, expected in zip(cases, alone, strict=True):
            assert torch.equal(compiled(*case), expected)
            torch.testing.assert_close(expected, torch.nn.functional.linear(*case), atol=1e-3, rtol=1e-4)
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("vectors")
@needs_kernels
def test_infinities_and_nan_stay_where_they_are(ours):
    a, b = torch.randn(20, 40), torch.randn(40, 37)
    a[3, 5], b[7, 36] = float("inf"), float("nan")
    compiled = fxjit.compile(torch.mm, fullgraph=True)
    torch.testing.assert_close(compiled(a, b), torch.mm(a, b), equal_nan=True, atol=1e-4, rtol=1e-4)


@needs_kernels
@pytest.mark.parametrize("high, low", [(0, -149), (60, -80), (38, 0), (127, -127), (90, -100), (-100, -149), (-126, -149)])
def test_numbers_of_all_sizes(ours, high: int, low: int):
    """Tiles know no numbers below 2^-126 and would overflow early: what they cannot do goes by vectors."""
    def numbers(rows: int, columns: int, high: int, low: int) -> torch.Tensor:
        exponents = torch.randint(low, high + 1, (rows, columns)).double()
        return (torch.randn(rows, columns).sign() * (1 + torch.rand(rows, columns)) * torch.exp2(exponents)).float()

    compiled = fxjit.compile(torch.mm, fullgraph=True)
    for others in ((0, -3), (-min(high, 120), -126), (20, -20)):
        a, b = numbers(70, 45, high, low), numbers(45, 67, *others)
        a[3:9] *= 2.0**-30
        for first, second in ((a, b), (b.t().contiguous(), a.t())):
            found = compiled(first, second)
            true, scale = first.double() @ second.double(), first.double().abs() @ second.double().abs()
            unit = torch.finfo(torch.float32)
            finite = scale < unit.max  # elsewhere the order of a sum decides whether it is infinite
            allowed = 6 * unit.eps * scale + 60 * unit.smallest_normal * unit.eps  # sums of what is smaller are rounded, too
            assert ((found.double() - true).abs() <= allowed)[finite].all()


@needs_kernels
def test_what_float32_can_do_exactly_is_exact(ours):
    whole = torch.randint(-300, 300, (70, 100)).float() @ torch.eye(100)
    compiled = fxjit.compile(torch.mm, fullgraph=True)
    assert torch.equal(compiled(whole, whole.t()), torch.mm(whole.double(), whole.double().t()).float())
    x, rows = torch.randn(90, 41), torch.randint(90, (65,))
    assert torch.equal(compiled(torch.nn.functional.one_hot(rows, 90).float(), x), x[rows])  # all 24 bits of each number


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2])
def test_other_libraries_products_in_between(ours, threads: int):
    """Tiles are a thread's state, which oneDNN's kernels of bfloat16 set, too."""
    before = torch.get_num_threads()
    a, b = torch.randn(96, 160), torch.randn(160, 64)
    x, w = torch.randn(2, 32, 16, 16).bfloat16(), torch.randn(32, 32, 3, 3).bfloat16()
    q = torch.randn(2, 4, 64, 32).bfloat16()
    theirs = [lambda: a.bfloat16() @ b.bfloat16(), lambda: F.conv2d(x, w), lambda: F.scaled_dot_product_attention(q, q, q)]
    try:
        torch.set_num_threads(threads)
        compiled = fxjit.compile(torch.mm, fullgraph=True)
        expected, others = compiled(a, b), [each() for each in theirs]
        for turn in range(60):
            assert torch.equal(theirs[turn % 3](), others[turn % 3])
            for _ in range(turn % 4):
                assert torch.equal(compiled(a, b), expected)
    finally:
        torch.set_num_threads(before)


@needs_kernels
def test_signals_and_threads_in_between(ours):
    a, b, seen = torch.randn(300, 300), torch.randn(300, 300), []
    compiled = fxjit.compile(torch.mm, fullgraph=True)
    expected, right = compiled(a, b), []

    def work():
        right.extend(torch.equal(compiled(a, b), expected) for _ in range(30))

    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(torch.equal(compiled(a, b), expected)))
    others = [threading.Thread(target=work) for _ in range(3)]
    for each in others:
        each.start()
    try:
        end = time.monotonic() + 20
        while len(seen) < 10 and time.monotonic() < end:
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each in others:
            each.join()
        signal.signal(signal.SIGALRM, before)
    assert len(seen) >= 10 and all(seen) and all(right) and len(right) >= 120


@pytest.mark.usefixtures("vectors")
@needs_kernels
@pytest.mark.parametrize("count", [1, 3, 7])
def test_batches(ours, count: int):
    @fxjit.compile(fullgraph=True)
    def scores(q, k, v):
        return torch.bmm(torch.bmm(q, k.mT), v)

    whole = torch.randn(count, 50, 3 * 33)
    q, k, v = whole.split(33, dim=2)  # views with gaps between their rows
    torch.testing.assert_close(scores(q, k, v), torch.bmm(torch.bmm(q, k.mT), v), atol=1e-3, rtol=1e-4)
    flat = torch.randn(1, 50, 33).expand(count, 50, 33)
    torch.testing.assert_close(scores(flat, flat, flat), torch.bmm(torch.bmm(flat, flat.mT), flat), atol=1e-3, rtol=1e-4)
    assert ours


@needs_kernels
def test_gradients_and_epilogues_in_blocks(ours):
    layers = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.GELU(), torch.nn.Linear(96, 7))
    compiled = fxjit.compile(layers, fullgraph=True)
    x, y = (torch.randn(2, 1100, 48).requires_grad_(), None)
    y = x.detach().clone().requires_grad_()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layers(x), atol=1e-4, rtol=1e-4)
    for model, given in ((layers, x), (compiled, y)):
        layers.zero_grad()
        model(given).square().sum().backward()
        gradients = [given.grad, *(each.grad.clone() for each in layers.parameters())]
        if model is layers:
            expected = gradients
    for found, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-2, rtol=1e-3)


@needs_kernels
def test_libraries_are_compared_once_and_what_was_found_is_kept(tmp_path):
    shape = (300, 300, 300, False, True)
    number = _C.product_class(*shape)
    with config.patch(cache_dir=str(tmp_path)):
        counters["native"]["libraries of products compared"] = 0
        own_products._measured.clear()
        first = own_products.fastest(shape, number)
        assert own_products.fastest(shape, number) == first
        own_products._measured.clear()  # another process
        assert own_products.fastest(shape, number) == first
        assert counters["native"]["libraries of products compared"] == 1


@needs_kernels
@pytest.mark.parametrize(
    ("shape", "measured_at"),
    [((300, 300, 40, False, True), (300, 300, 40)), ((4000, 768, 3072, False, True), (512, 768, 768)),
     ((512, 50257, 768, False, True), (512, 2049, 768)), ((8, 50272, 64, False, False), (8, 2048, 64))],
    ids=lambda sizes: "x".join(map(str, sizes[:3])),
)
def test_large_products_are_measured_at_sizes_that_take_no_time(monkeypatch, tmp_path, shape, measured_at):
    """And what their rows have beyond whole vectors stays, without which MKL is faster."""
    asked = []
    monkeypatch.setattr(own_products._C, "time_product", lambda *sizes: asked.append(sizes[:3]) or (2, 1))
    with config.patch(cache_dir=str(tmp_path)):
        assert own_products._compared(shape, _C.product_class(*shape)) is Library.VECTORS
    assert asked == [measured_at]


@needs_kernels
def test_classes_of_products():
    """Sizes up to twice apart from 64 on, layouts, and columns that are no whole vectors."""
    def classes(*shapes):
        return [_C.product_class(*shape) for shape in shapes]

    one, *same = classes((512, 768, 768, False, True), (300, 1024, 600, False, True), (512, 520, 1000, False, True))
    assert {*same} == {one}
    others = classes((512, 769, 768, False, True), (512, 768, 768, False, False), (512, 768, 768, True, True),
                     (513, 768, 768, False, True), (512, 1032, 768, False, True), (512, 768, 512, False, True))
    assert len({one, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    ("own", "shape", "ours"),
    [(120, (1, 768, 768, False, True), True), (140, (1, 768, 768, False, True), False),
     (120, (1, 64, 768, False, True), False),
     (120, (8, 768, 768, False, True), False), (120, (1, 768, 768, False, False), False),
     (90, (8, 64, 768, False, False), True)],
)
def test_weights_from_memory_may_take_longer_in_the_cache(monkeypatch, own: int, shape, ours: bool):
    """Where products of few rows are measured: MKL, which fetches nothing ahead, has half of the memory's speed."""
    monkeypatch.setattr(measured, "get_facts", lambda key: {"nanoseconds": [100, own]})
    assert own_products._compared(shape, 0) is (Library.VECTORS if ours else Library.BLAS)


@pytest.mark.parametrize(
    ("times", "tiles", "fastest"),
    [((100, 90, 80), True, Library.TILES), ((100, 80, 90), True, Library.VECTORS), ((100, 99, 101), True, Library.BLAS),
     ((100, 90, 80), False, Library.VECTORS), ((100, 110, 80), False, Library.BLAS)],
)
def test_the_shortest_time_decides(monkeypatch, times: tuple[int, ...], tiles: bool, fastest: Library):
    """Also where another process measured tiles, for which the system gives this one no leave."""
    monkeypatch.setattr(measured, "get_facts", lambda key: {"nanoseconds": list(times)})
    monkeypatch.setattr(own_products._C, "program_can", lambda name: tiles)
    assert own_products._compared((256, 256, 256, False, False), 0) is fastest


@needs_kernels
def test_vectors_that_no_kernels_are_compiled_for():
    for bits in (0, 128, 1024, -1, _C.vector_bits() * 2):
        with pytest.raises(ValueError, match="no kernels for such vectors"):
            _C.set_vector_bits(bits)
    assert _C.vector_bits() in (0, 256, 512)


def test_a_class_or_a_library_that_is_not_there():
    number = _C.product_class(64, 64, 64, False, False)
    for which, library in ((10**6, 0), (-1, 0), (number, 3), (number, -1), *(() if has_tiles else ((number, 2),))):
        with pytest.raises(ValueError, match="there is no such"):
            _C.set_product_library(which, library)


@needs_kernels
def test_small_products_equal_atens_to_the_bit(ours):
    a, b = torch.randn(25, 25), torch.randn(25, 26)
    assert torch.equal(fxjit.compile(torch.mm, fullgraph=True)(a, b), torch.mm(a, b))
    assert not ours


@needs_kernels
def test_the_setting_leaves_all_products_to_the_blas(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(own_products, "fastest", lambda *_: Library.VECTORS)
    monkeypatch.setattr(own_products._C, "set_product_library", lambda number, library: asked.append(library), raising=True)
    for on in (True, False):
        with config.patch({"cpp.own_products": on}):
            own_products.choose_libraries([(64, 64, 64, False, False)])
    assert asked == [Library.VECTORS, Library.BLAS]


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch):
    """The products of few rows of bfloat16 in programs that are built now."""
    seen = []

    def noted(node, low, weight=None):
        found = blas.product_of_few_rows(node, low, weight)
        seen.extend([] if found is None else [found])
        return found

    monkeypatch.setattr(plan, "product_of_few_rows", noted)
    fxjit.reset()
    with config.patch(cache_graphs=False), torch.no_grad():
        yield seen
    fxjit.reset()


needs_halves = pytest.mark.skipif(
    not tensor_shim.ensure() or not _C.program_can("few rows"), reason="this processor has neither AVX2 nor AVX-512"
)


@needs_halves
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
def test_few_rows_of_bfloat16_are_as_near_to_the_true_ones_as_atens(few_rows, m: int):
    for n, k, gap in ((1, 128, 0), (33, 129, 0), (70, 1000, 6), (131, 321, 2)):
        x = torch.randn(m, k + gap).bfloat16()[:, :k]
        weight, bias = torch.randn(n, k + gap).bfloat16()[:, gap:], torch.randn(n).bfloat16()
        for call, args in ((F.linear, (x, weight)), (F.linear, (x[None].contiguous(), weight, bias)),
                           (torch.mm, (x, weight.t())), (torch.addmm, (bias, x, weight.t()))):
            del few_rows[:]
            fxjit.reset()
            found, atens = fxjit.compile(lambda *args: call(*args), fullgraph=True, dynamic=False)(*args), call(*args)  # noqa: B023
            assert len(few_rows) == 1, (call, n, k)
            assert found.dtype is atens.dtype and found.shape == atens.shape and found.stride() == atens.stride()
            true = x.double() @ weight.double().t() + (bias.double() if len(args) == 3 else 0)
            scale = x.double().abs() @ weight.double().abs().t() + 1
            # Where terms cancel out, what sums of float32 lose, in whatever order, is more than one rounding of the result.
            error, theirs = (((each.double().view(true.shape) - true).abs() / (scale * 1e-4 + true.abs())).max()
                             for each in (found, atens))
            assert error <= max(1.01 * theirs, 2.0**-8)


@needs_halves
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_few_rows_on_threads_and_numbers_at_the_ends(few_rows, threads: int):
    before = torch.get_num_threads()
    x, weight = torch.randn(3, 700).bfloat16(), torch.randn(900, 700).bfloat16()
    x[0, 3], x[1, 699], weight[5, 7], weight[899, 0] = float("inf"), float("nan"), -float("inf"), 3e38
    try:
        torch.set_num_threads(threads)
        found = fxjit.compile(F.linear, dynamic=False)(x, weight)
    finally:
        torch.set_num_threads(before)
    assert len(few_rows) == 1
    torch.testing.assert_close(found, F.linear(x, weight), equal_nan=True)


@needs_halves
def test_what_is_not_few_rows(few_rows):
    weight = torch.randn(64, 256).bfloat16()
    for call, x in ((F.linear, torch.randn(13, 256)), (lambda x, w: x[:, :64] @ w, torch.randn(2, 256)),
                    (lambda x, w: F.linear(x[:, :100], w[:, :100]), torch.randn(2, 256))):
        torch.testing.assert_close(fxjit.compile(call, dynamic=False)(x.bfloat16(), weight), call(x.bfloat16(), weight))
    with config.patch({"cpp.own_products": False}):
        fxjit.compile(F.linear, dynamic=False)(torch.randn(2, 256).bfloat16(), weight)
    assert not few_rows


@needs_halves
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 12])
def test_few_rows_by_weights_of_eight_bits(few_rows, m: int):
    for n, k, gap in [(5, 131, 0), (64, 256, 0), (33, 190, 7), (96, 1000, 0)]:
        weight, scale = torch.randint(-128, 128, (n, k + gap), dtype=torch.int8)[:, gap:], torch.rand(n).bfloat16()
        x = torch.randn(m, k + gap).bfloat16()[:, :k]

        def call(x, weight, scale):
            return torch.mm(x, weight.t().to(x.dtype)) * scale, F.linear(x, weight.to(x.dtype), scale)

        with torch.no_grad():
            ours, eager = fxjit.compile(call, dynamic=False)(x, weight, scale), call(x, weight, scale)
        exact = call(x.double(), weight, scale.double())
        for a, b, true in zip(ours, eager, exact, strict=True):
            assert a.dtype is b.dtype and a.stride() == b.stride()
            assert (a - true).abs().max() <= 1.1 * (b - true).abs().max() + 2**-8 * true.abs().max()
        fxjit.reset()
    assert len(few_rows) == 8


@needs_halves
def test_weights_of_eight_bits_that_are_looked_at_otherwise(few_rows):
    def changed(x, weight):
        wide = weight.to(x.dtype)
        weight.add_(1)
        return F.linear(x, wide), F.linear(x, weight.to(x.dtype))

    def returned(x, weight):
        wide = weight.to(x.dtype)
        return F.linear(x, wide), wide, F.linear(x.repeat(20, 1), wide)

    x, weight = torch.randn(2, 256).bfloat16(), torch.randint(-100, 100, (64, 256), dtype=torch.int8)
    with torch.no_grad():
        for call in (changed, returned):
            first, second = weight.clone(), weight.clone()
            torch.testing.assert_close(fxjit.compile(call)(x, first), call(x, second), rtol=2e-2, atol=1)
            assert torch.equal(first, second)


def _flags_of_pages(tensor: torch.Tensor) -> list[str]:
    """What the kernel notes of the mapping in which the middle of a tensor lies."""
    address, inside = tensor.data_ptr() + tensor.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(each, 16) for each in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return rest
    return []


def _pages_are_chosen() -> bool:
    try:
        return "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not _pages_are_chosen(), reason="this system has no large pages to ask for")
@pytest.mark.parametrize(("dtype", "rows"), [
    pytest.param(torch.bfloat16, 1, marks=needs_halves), (torch.float32, 1), (torch.float32, 100),
])  # fmt: skip
def test_weights_that_few_rows_read_often_are_moved_to_large_pages(dtype: torch.dtype, rows: int):
    x, weight = torch.randn(rows, 1024).to(dtype), torch.randn(4096, 1024).to(dtype)
    compiled, kept, address = fxjit.compile(F.linear, dynamic=False), weight.clone(), weight.data_ptr()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for _ in range(20):
            result = compiled(x, weight)
        if "hg" in _flags_of_pages(weight):  # memory that was freed may have it from before
            break
    assert "hg" in _flags_of_pages(weight)
    close = {"rtol": 2e-2, "atol": 0.25} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(compiled(x, weight), F.linear(x, kept), **close)
    torch.testing.assert_close(result, F.linear(x, kept), **close)
    assert torch.equal(weight, kept) and weight.data_ptr() == address


@pytest.mark.skipif(not _pages_are_chosen(), reason="this system has no large pages to ask for")
def test_no_page_is_moved_where_the_setting_says_so():
    fxjit.reset()
    # Memory that malloc gives may have been asked for before.
    memory = mmap.mmap(-1, 4096 * 2560 * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    x, weight = torch.randn(1, 2560), torch.frombuffer(memory, dtype=torch.float32).view(4096, 2560)
    with config.patch(large_pages=False):
        compiled = fxjit.compile(F.linear, dynamic=False)
        for _ in range(150):
            compiled(x, weight)
        assert "hg" not in _flags_of_pages(weight)
    fxjit.compile(lambda x: x.sin() + 1)(x)  # the next graph that is built asks again
