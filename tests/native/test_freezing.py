"""Constant folding of module state (`freezing`): what depends on parameters and buffers alone is calculated once, and again
when one of them changed in any way that counts. Results are eager's in each case."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import assert_same
from torch import nn

import fxjit
from fxjit import _C, config, tensor_shim
from fxjit.backends.native import pipeline
from fxjit.backends.native.choose import packed_weights
from fxjit.backends.native.runtime import own_products
from fxjit.counters import counters

pytestmark = pytest.mark.compiles
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    fxjit.reset()
    counters.clear()
    with config.patch(freezing=True):
        yield


class Standardized(nn.Module):
    """Weights are calculated of a parameter, and positions of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 16)), nn.Parameter(torch.randn(8))
        self.register_buffer("frequencies", torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = (self.weight - self.weight.mean(1, keepdim=True)) / self.weight.std(1, keepdim=True)
        return F.linear(x, weight, self.bias) * torch.outer(torch.arange(4.0), self.frequencies).cos()


def calculated() -> int:
    """How often constants were calculated."""
    return int(counters["native"]["constants calculated"])


def assert_agree(module: nn.Module, compiled: Callable[..., Any], *args: Any, rtol: float = TOLERANCE) -> Any:
    with torch.no_grad():
        expected, found = module(*args), compiled(*args)
    assert_same(expected, found, rtol=rtol)
    return found


def written(module: Standardized) -> None:
    with torch.no_grad():
        module.weight.mul_(2).add_(1)


def part_written(module: Standardized) -> None:
    with torch.no_grad():
        module.weight[3, 4:7] = 5


def buffer_written(module: Standardized) -> None:
    module.frequencies.fill_(0.5)


def replaced(module: Standardized) -> None:
    module.weight = nn.Parameter(torch.randn(8, 16))


def data_replaced(module: Standardized) -> None:
    module.weight.data = torch.randn(8, 16)


def data_replaced_twice(module: Standardized) -> None:
    """The second memory may get the address of the first."""
    module.weight.data = module.weight.data.sin()
    module.weight.data = module.weight.data.sin()


def loaded(module: Standardized) -> None:
    module.load_state_dict(Standardized().state_dict())


def loaded_by_assignment(module: Standardized) -> None:
    module.load_state_dict(Standardized().state_dict(), assign=True)


def trained(module: Standardized) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    module(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def cast_and_back(module: Standardized) -> None:
    module.double().mul = None  # an attribute of the program's own
    module.float()


def written_in_inference_mode(module: Standardized) -> None:
    with torch.inference_mode():
        module.weight.mul_(3)


CHANGES = [written, part_written, buffer_written, replaced, data_replaced, data_replaced_twice, loaded, loaded_by_assignment,
           trained, cast_and_back, written_in_inference_mode]


def test_constants_are_calculated_once():
    module, x = Standardized(), torch.randn(4, 16)
    compiled = fxjit.compile(module, fullgraph=True)
    for _ in range(3):
        assert_agree(module, compiled, x)
    assert calculated() == 1


@pytest.mark.parametrize("change", CHANGES, ids=[each.__name__ for each in CHANGES])
def test_a_change_is_noticed(change: Callable[[Standardized], None]):
    module, x = Standardized(), torch.randn(4, 16)
    compiled = fxjit.compile(module, fullgraph=True)
    before = assert_agree(module, compiled, x)
    change(module)
    after = assert_agree(module, compiled, x)
    known = calculated()
    assert_agree(module, compiled, x)
    assert calculated() == known
    assert change is cast_and_back or not torch.equal(before, after)


def test_a_write_that_counts_no_version_needs_a_reset():
    module, x = Standardized(), torch.randn(4, 16)
    compiled = fxjit.compile(module, fullgraph=True)
    before = assert_agree(module, compiled, x)
    module.frequencies.data.mul_(0.5)
    with torch.no_grad():
        assert torch.equal(compiled(x), before)
    fxjit.reset()
    assert not torch.equal(assert_agree(module, compiled, x), before)


def test_the_option_and_the_setting_of_inductor_are_this_one():
    module, x = Standardized(), torch.randn(4, 16)
    with config.patch(freezing=False):
        assert_agree(module, fxjit.compile(module), x)
        assert calculated() == 0
        assert_agree(module, fxjit.compile(module, options={"freezing": True}), x)
        assert calculated() == 1


def test_training_is_as_ever():
    """With gradients nothing is folded; between two steps of training what was folded is calculated again."""
    module, x = Standardized(), torch.randn(4, 16)
    like = copy.deepcopy(module)
    compiled = fxjit.compile(module, fullgraph=True)
    for step in range(3):
        for each, run in ((module, compiled), (like, like)):
            optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
            run(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert_agree(like, compiled, x, rtol=1e-4)
        assert calculated() == step + 1


def test_inference_mode_and_no_grad_share_no_state():
    module, x = Standardized(), torch.randn(4, 16)
    compiled = fxjit.compile(module, fullgraph=True)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            assert_same(module(x), compiled(x), rtol=TOLERANCE)
    frozen = module.requires_grad_(False)  # nothing records either
    assert_same(frozen(x), compiled(x), rtol=TOLERANCE)


def test_parameters_made_in_inference_mode_count_no_writes():
    """Nothing of them is kept."""
    with torch.inference_mode():
        module, x = Standardized(), torch.randn(4, 16)
        compiled = fxjit.compile(module, fullgraph=True)
        for factor in (1, 2, 3):
            module.frequencies.mul_(factor)
            assert_same(module(x), compiled(x), rtol=TOLERANCE)


def test_modules_that_share_compiled_code_have_constants_of_their_own():
    modules, x = [Standardized() for _ in range(3)], torch.randn(4, 16)
    compiled = [fxjit.compile(each, fullgraph=True) for each in modules]
    for _ in range(3):
        for module, call in zip(modules, compiled, strict=True):
            assert_agree(module, call, x)
    assert calculated() == 3
    assert counters["frames"]["ok"] == 1


def test_constants_end_with_their_module():
    module, x = Standardized(), torch.randn(4, 16)
    compiled = fxjit.compile(Standardized.forward, fullgraph=True)
    with torch.no_grad():
        compiled(module, x)
    memory = weakref.ref(module.weight.untyped_storage())
    assert calculated() == 1
    del module
    gc.collect()
    assert memory() is None


class Returns(nn.Module):
    """The caller writes to what it is given, which is another tensor at each call."""

    def __init__(self, result: str) -> None:
        super().__init__()
        self.weight, self.result = nn.Parameter(torch.randn(6, 6)), result

    def forward(self, x: torch.Tensor) -> Any:
        made = self.weight.exp()
        if self.result == "itself":
            return x @ made, made
        if self.result == "a view":
            return x @ made, made[1:].t()
        if self.result == "a part":
            return x @ made, made.split(2)[1]
        return x @ made, [made.sum(0), made * 2]


@pytest.mark.parametrize("result", ["itself", "a view", "a part", "in a list"])
def test_what_is_returned_is_not_kept(result: str):
    module, x = Returns(result), torch.randn(3, 6)
    compiled = fxjit.compile(module, fullgraph=True)
    for _ in range(3):
        _, given = assert_agree(module, compiled, x)
        for each in given if isinstance(given, list) else [given]:
            each.zero_()


class Counts(nn.Module):
    """A buffer that each call writes to, and one that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.full((5,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (self.calls * 3).exp() + self.scale.sqrt()


def test_a_buffer_that_is_written_to_is_no_constant():
    module = Counts()
    like = copy.deepcopy(module)
    compiled, x = fxjit.compile(module, fullgraph=True), torch.randn(5)
    for _ in range(4):
        with torch.no_grad():
            assert_same(like(x), compiled(x), rtol=TOLERANCE)
    assert_same(like.calls, module.calls)
    assert calculated() == 1  # of `scale`


class Drops(nn.Module):
    """Random numbers are drawn at each call, also where only parameters are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.weight, 0.5, training=True) + torch.rand_like(self.weight)


def test_random_numbers_are_no_constants():
    module, x = Drops(), torch.randn(64)
    compiled = fxjit.compile(module, fullgraph=True)
    for seed in range(3):
        with torch.no_grad():
            torch.manual_seed(seed)
            expected = module(x)
            torch.manual_seed(seed)
            assert_same(expected, compiled(x), rtol=TOLERANCE)
    assert calculated() == 0


class Tables(nn.Module):
    """Looks rows up that a buffer names, which may be out of range."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 4))
        self.register_buffer("places", torch.tensor([0, 3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.embedding(self.places, self.table)


def test_what_may_raise_is_done_at_each_call():
    module, x = Tables(), torch.randn(2, 4)
    compiled = fxjit.compile(module, fullgraph=True)
    assert_agree(module, compiled, x)
    module.places[1] = 7
    for run in (module, compiled):
        with torch.no_grad(), pytest.raises(IndexError):
            run(x)
    module.places[1] = 2
    assert_agree(module, compiled, x)


class Quantized(nn.Module):
    """Weights of eight bits take four times the memory as float32, and are kept as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-100, 100, (1024, 2048), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(1024, 1) / 4096)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.float() * self.scale)


def test_what_takes_more_memory_than_its_state_is_not_kept():
    module, x = Quantized(), torch.randn(4, 2048)
    assert_agree(module, fxjit.compile(module, fullgraph=True), x, rtol=1e-4)
    assert calculated() == 0


def test_weights_are_cast_once_under_autocast():
    module, x = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)), torch.randn(20, 64)
    compiled = fxjit.compile(module, fullgraph=True)
    for turn in (1, 2):
        with torch.autocast("cpu", dtype=torch.bfloat16):  # eager keeps what it cast until it ends
            for _ in range(3):
                assert_agree(module, compiled, x, rtol=2e-2)
        assert calculated() == turn
        with torch.no_grad():
            module[0].weight.mul_(-1)


def test_sizes_that_vary():
    module = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.utils.parametrizations.weight_norm(nn.Linear(16, 4)))
    compiled = fxjit.compile(module, dynamic=True, fullgraph=True)
    for rows in (3, 5, 8):
        assert_agree(module, compiled, torch.randn(rows, 16))
    assert calculated() == 1


def test_images():
    module = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 1)).eval()
    module[1].running_mean.normal_(), module[1].running_var.uniform_(0.5, 2)
    compiled, x = fxjit.compile(module, fullgraph=True), torch.randn(2, 3, 32, 32)
    for _ in range(2):
        assert_agree(module, compiled, x, rtol=1e-4)
    module.train()
    module(x)
    assert_agree(module.eval(), compiled, x, rtol=1e-4)


def test_the_next_process_finds_both_programs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    """On the disk: what is found there is not compiled, and folds as before."""
    monkeypatch.setattr(pipeline, "verifier", None)  # a compile that is looked at is not kept
    module, x = Standardized(), torch.randn(4, 16)
    with config.patch(cache_dir=str(tmp_path), disk_cache=True, cache_graphs=True):
        assert_agree(module, fxjit.compile(module, fullgraph=True), x)
        fxjit.reset()
        counters.clear()
        compiled = fxjit.compile(module, fullgraph=True)
        assert_agree(module, compiled, x)
        written(module)
        assert_agree(module, compiled, x)
        assert calculated() == 2
        assert counters["cache"]["graph hit"] == 1


def test_where_there_is_no_compiler_atens_operators_do_it():
    module, x = Standardized(), torch.randn(4, 16)
    with config.patch({"cpp.compiler": "/nowhere/g++", "disk_cache": False}), pytest.warns(RuntimeWarning, match="ATen"):
        compiled = fxjit.compile(module, fullgraph=True)
        assert_agree(module, compiled, x)
        written(module)
        assert_agree(module, compiled, x)


# Packed weights: values and sizes beside the products are those of test_packed_weights.py


class Layers(nn.Module):
    """Linear layers, and weights that have a column for each result, with and without bias, of two and three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(96, 130), nn.Linear(130, 33, bias=False)
        self.turned, self.bias = nn.Parameter(torch.randn(33, 40)), nn.Parameter(torch.randn(40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.second(F.gelu(self.first(x)))
        rows = torch.addmm(self.bias, hidden.view(-1, 33), self.turned)
        return rows.view(*hidden.shape[:-1], 40) + hidden.view(-1, 33).mm(self.turned).view(*hidden.shape[:-1], 40)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Products by packed weights are said to be faster; the shapes of weights that are packed."""
    seen: list[tuple[int, ...]] = []
    real = _C.pack_weight

    def noted(weight: torch.Tensor, out: torch.Tensor) -> None:
        seen.append(tuple(weight.shape))
        real(weight, out)

    monkeypatch.setattr(packed_weights, "packed_is_faster", lambda *product: True)
    monkeypatch.setattr(_C, "pack_weight", noted)
    return seen


def has_kernels(dtype: torch.dtype) -> bool:
    return tensor_shim.ensure() and _C.program_can(packed_weights.KERNELS[dtype]) and not (
        dtype is torch.float32 and _C.program_can("tiles"))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_are_packed_once(dtype: torch.dtype, dynamic: bool | None, packs: list[tuple[int, ...]]):
    if not has_kernels(dtype):
        pytest.skip("this processor has no kernels for packed weights of this type")
    module, rtol = Layers().to(dtype), TOLERANCE if dtype is torch.float32 else 5e-2
    compiled = fxjit.compile(module, dynamic=dynamic, fullgraph=True)
    x = torch.randn(5, 7, 96).to(dtype)
    assert_agree(module, compiled, x, rtol=rtol)
    assert sorted(packs) == [(33, 130), (40, 33), (40, 33), (130, 96)]
    packs.clear()
    assert_agree(module, compiled, x, rtol=rtol)
    if dynamic:
        assert_agree(module, compiled, torch.randn(1, 2, 96).to(dtype), rtol=rtol)
        assert_agree(module, compiled, torch.randn(90, 7, 96).to(dtype), rtol=rtol)
    assert not packs
    with torch.no_grad():
        module.first.weight.neg_()
    assert_agree(module, compiled, x, rtol=rtol)
    assert len(packs) == 4


def test_few_rows_and_rows_in_blocks_read_weights_as_they_are(packs: list[tuple[int, ...]]):
    module = Layers()
    for rows in (1, 300):
        fxjit.reset()
        assert_agree(module, fxjit.compile(module, fullgraph=True), torch.randn(rows, 4, 96))
    assert calculated() == 0 and not packs


def test_the_choice_is_measured_once(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[Any, ...]] = []

    def compared(*product: Any) -> list[int]:
        asked.append(product)
        return [110, 100] if product[1] < 100 else [100, 99]

    monkeypatch.setattr(own_products, "_compare_packed", compared)
    monkeypatch.setattr(own_products, "nanoseconds", lambda facts, measure, counter, said: measure())
    monkeypatch.setattr(own_products, "_packed", {})
    with config.patch(measure_machine=True):
        assert own_products.packed_is_faster(torch.float32, 33, 300, 700)
        assert own_products.packed_is_faster(torch.float32, 64, 512, 1000)
        assert not own_products.packed_is_faster(torch.bfloat16, 200, 300, 700)
        assert not own_products.packed_is_faster(torch.float32, 2, 3, 4)
    assert asked == [(torch.float32, 64, 320, 320), (torch.bfloat16, 256, 512, 1024)]
    with config.patch(measure_machine=False):
        assert not own_products.packed_is_faster(torch.float32, 33, 300, 700)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_comparison_runs(dtype: torch.dtype):
    if not has_kernels(dtype):
        pytest.skip("this processor has no kernels for packed weights of this type")
    assert all(each > 0 for each in own_products._compare_packed(dtype, 16, 32, 64))
