"""The default dtype, the precision of products, deterministic algorithms and kernels of attention, set in the function: steps
of the graph, behind which operators are traced and compiled under what was set. (Flags of cuDNN: test_backend_flags.py.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fxjit

BACKENDS = ("eager", "aot_eager", "native")
cuda, cudnn, mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
#: Backends and operators with a precision of their own, or that of what stands before them.
PRECISIONS = [("generic", "all"), *((backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn"))]
AT_FIRST = [torch._C._get_fp32_precision_getter(*of) for of in PRECISIONS]
FLAGS = [(cuda.matmul, "allow_fp16_reduced_precision_reduction"), (cuda.matmul, "allow_bf16_reduced_precision_reduction"),
         (cudnn, "enabled"), (cudnn, "benchmark"), (cudnn, "deterministic"), (mkldnn, "enabled"), (mkldnn, "deterministic")]
FLAGS_AT_FIRST = [getattr(*flag) for flag in FLAGS]


def state() -> tuple[Any, ...]:
    return (torch.get_default_dtype(), precision(), torch.get_deterministic_debug_mode(),
            cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled(),
            cudnn.allow_tf32, torch.is_warn_always_enabled(), *(getattr(*flag) for flag in FLAGS), own_precisions())


def precision() -> str | None:
    """None where torch refuses to tell it, since older names for it and newer ones were used."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def own_precisions() -> list[str]:
    """The precision of each, and what it is where the one before has another: which tells its own."""
    found = [torch._C._get_fp32_precision_getter(*of) for of in PRECISIONS]
    for of in PRECISIONS[:2]:
        before = found[PRECISIONS.index(of)]
        if before == "none":
            torch._C._set_fp32_precision_setter(*of, "ieee")
            found += [torch._C._get_fp32_precision_getter(*each) for each in PRECISIONS]
            torch._C._set_fp32_precision_setter(*of, before)
    return found


def as_at_first() -> None:
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
    cudnn.allow_tf32 = True
    for of, precision in zip(PRECISIONS, AT_FIRST, strict=True):
        torch._C._set_fp32_precision_setter(*of, precision)
    for flag, value in zip(FLAGS, FLAGS_AT_FIRST, strict=True):
        setattr(*flag, value)
    torch.set_warn_always(False)
    for enable in (cuda.enable_flash_sdp, cuda.enable_math_sdp, cuda.enable_mem_efficient_sdp, cuda.enable_cudnn_sdp):
        enable(True)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flags can be set, also where the modules of torch's own tests have frozen them."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    as_at_first()
    yield
    as_at_first()


def precision_first(x):
    torch.set_float32_matmul_precision("high")
    return x @ x


def precision_last(x):
    y = x @ x
    torch.set_float32_matmul_precision("medium")
    return y


def precision_between(x):
    y = x @ x
    torch.set_float32_matmul_precision("high")
    z = y @ x, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    return z, y @ y


def dtype_of_what_is_made(x):
    first = torch.ones(3) * 0.5
    torch.set_default_dtype(torch.float64)
    second = torch.ones(3) * 0.5
    third = torch.arange(3) * 0.1
    torch.set_default_dtype(torch.float32)
    return first, second + x[0], third, torch.full((2,), 0.1), torch.get_default_dtype()


def dtype_that_stays(x):
    torch.set_default_dtype(torch.float64)
    return torch.zeros(2) + x[0, 0], torch.get_default_dtype()


def dtype_by_what_it_was(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        made = torch.full((3,), 0.1)
    finally:
        torch.set_default_dtype(before)
    return made, torch.full((3,), 0.1) + x


def deterministic(x):
    torch.use_deterministic_algorithms(True)
    y = torch.zeros(3).index_add(0, torch.tensor([0, 0, 2]), x[0]), torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    return y, torch.is_deterministic_algorithms_warn_only_enabled(), torch.get_deterministic_debug_mode()


def by_debug_mode(x):
    torch.set_deterministic_debug_mode("warn")
    return x + 1, torch.get_deterministic_debug_mode()


def attention(x):
    cuda.enable_flash_sdp(False)
    cuda.enable_mem_efficient_sdp(False)
    y = torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
    cuda.enable_flash_sdp(True)
    return y, cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()


def by_the_setting(x):
    if torch.get_float32_matmul_precision() == "highest":
        torch.set_float32_matmul_precision("high")
        return x @ x
    return x - 1


def tf32_of_products(x):
    y = x @ x
    before = cuda.matmul.allow_tf32
    cuda.matmul.allow_tf32 = True
    return y, y @ y, before, cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()


def tf32_of_convolutions(x):
    cudnn.allow_tf32 = False
    return x @ x, cudnn.allow_tf32, cudnn.conv.fp32_precision


def tf32_there_and_back(x):
    cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("medium")
    y = x @ x
    cuda.matmul.allow_tf32 = False
    return y @ x, cuda.matmul.fp32_precision


def precision_of_everything(x):
    torch.backends.fp32_precision = "ieee"
    return x @ x, mkldnn.matmul.fp32_precision, cuda.matmul.fp32_precision


def precision_of_single_operators(x):
    cuda.matmul.fp32_precision = "ieee"
    mkldnn.conv.fp32_precision = "ieee"
    return x @ x, cuda.matmul.fp32_precision, cudnn.conv.fp32_precision


def flags_of_backends(x):
    before = cudnn.enabled, mkldnn.enabled
    cudnn.enabled = not cudnn.enabled
    mkldnn.enabled = False
    y = torch.nn.functional.conv2d(x[None, None], x[None, None, :2, :2])
    mkldnn.enabled = True
    cudnn.benchmark = cudnn.deterministic = True
    return y, before, cudnn.enabled, mkldnn.enabled, cudnn.benchmark


def reductions_of_half_types(x):
    cuda.matmul.allow_fp16_reduced_precision_reduction = False
    cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return (x.half() @ x.half()).float(), cuda.matmul.allow_fp16_reduced_precision_reduction


def warnings_of_torch(x):
    torch.set_warn_always(True)
    return x + 1, torch.is_warn_always_enabled()


def in_a_block(x):
    with mkldnn.flags(enabled=False):
        y = torch.nn.functional.conv2d(x[None, None], x[None, None, :2, :2])
    return y, mkldnn.enabled


IN_GRAPH = [tf32_of_products, tf32_of_convolutions, tf32_there_and_back, precision_of_everything, precision_of_single_operators,
            flags_of_backends, reductions_of_half_types, warnings_of_torch, precision_first,
            precision_last, precision_between, dtype_of_what_is_made, dtype_that_stays, dtype_by_what_it_was,
            deterministic, by_debug_mode, attention, by_the_setting]


def refused(x):
    torch.set_default_dtype(torch.int32)
    return x + 1


def unknown(x):
    torch.set_float32_matmul_precision("lowest")
    return x + 1


def too_many(x):
    torch.use_deterministic_algorithms(True, False)
    return x + 1


def no_precision(x):
    cuda.matmul.fp32_precision = "lowest"
    return x + 1


def no_number_of_truth(x):
    cuda.matmul.allow_fp16_reduced_precision_reduction = "no"
    return x + 1


def no_such_setting(x):
    cuda.matmul.allow_nothing = True
    return x + 1


def both_kinds_of_names(x):
    torch.backends.fp32_precision = "tf32"
    return x @ x, torch.get_float32_matmul_precision()


def tf32_raises_behind(x):
    before = torch.ones(1)
    cudnn.allow_tf32 = False
    cuda.matmul.allow_tf32 = True
    return before, x[(x[0, 0] * 10).long()]


def in_a_block_of_cudnn(x):
    with cudnn.flags(enabled=False):
        cudnn.enabled = True
        y = x + 1
    return y, cudnn.enabled


def caught_behind(x):
    torch.set_default_dtype(torch.float64)
    try:
        made = torch.ones(2) * 0.1 + x[0, :2][(x[0, 0] * 10).long()]
    except IndexError:
        made = torch.zeros(2)
    return made, torch.ones(1)


def raises_behind(x):
    before = torch.ones(1)
    torch.set_default_dtype(torch.float64)
    return before, x[(x[0, 0] * 10).long()]


def set_back_behind(x):
    torch.set_default_dtype(torch.float64)
    try:
        return torch.ones(1) * x[(x[0, 0] * 10).long()]
    finally:
        torch.set_default_dtype(torch.float32)


def checked_behind(x):
    before = torch.get_default_dtype() is torch.float32
    torch.set_default_dtype(torch.float64 if before else torch.float32)
    y = torch.ones(3) * x[0]
    if y.sum() > 0.5:
        raise ValueError
    return y, before


def values(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.dtype, result.tolist()
    return tuple(map(values, result)) if isinstance(result, tuple) else result


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """What a call comes to, and the settings behind it."""
    try:
        return values(fn(*args)), state()
    except Exception as error:  # noqa: BLE001 - what eager raises
        return type(error), state()


@pytest.mark.sweep(2)
@pytest.mark.filterwarnings("ignore:TF32 acceleration", "ignore:lowest is not one")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [*IN_GRAPH, refused, unknown, too_many, no_precision, no_number_of_truth, no_such_setting,
                                 both_kinds_of_names, tf32_raises_behind, in_a_block, in_a_block_of_cudnn, caught_behind,
                                 raises_behind, set_back_behind, checked_behind],
                         ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    """Called twice from the settings of the beginning, and twice from those that it leaves."""
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend)
    for keeps in (False, True):
        for _ in range(2):
            results = []
            for call in (compiled, fn):
                if not keeps:
                    as_at_first()
                results.append(outcome(call, torch.eye(3)))
                if keeps:
                    results.append(outcome(call, torch.eye(3) * 0.1))
            middle = len(results) // 2
            assert results[:middle] == results[middle:]
        if keeps:
            as_at_first()


@pytest.mark.parametrize("fn", IN_GRAPH, ids=lambda fn: fn.__name__)
def test_no_break(fn: Callable[..., Any]) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    fxjit.compile(fn, backend="eager", fullgraph=True)(torch.eye(3))
    assert fxjit.counters["stats"]["unique_graphs"] == 1 and not fxjit.counters["graph_break"]


def test_what_stands_behind_is_compiled_under_what_was_set() -> None:
    seen = []

    def backend(gm: torch.fx.GraphModule, examples: Any) -> Any:
        seen.append((state(), [node.target for node in gm.graph.nodes if node.op == "call_method"]))
        return gm.forward

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch.set_float32_matmul_precision("high")
        y = y.cos()
        torch.set_default_dtype(torch.float64)
        y = y.tanh()
        torch.set_float32_matmul_precision("highest")
        return y.exp()

    fxjit.reset()
    fn(torch.ones(3))
    behind = state()
    as_at_first()
    fxjit.compile(fn, backend=backend)(torch.ones(3))
    assert [names for _, names in seen] == [["sin"], ["cos"], ["tanh"], ["exp"]]
    assert [found[:2] for found, _ in seen] == [
        (torch.float32, "highest"), (torch.float32, "high"), (torch.float64, "high"), (torch.float64, "highest")]
    assert state() == behind


def test_a_compile_that_fails_leaves_the_settings_as_they_were() -> None:
    def backend(gm: torch.fx.GraphModule, examples: Any) -> Any:
        if torch.get_default_dtype() is torch.float64:
            raise ValueError("not under this")
        return gm.forward

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch.set_default_dtype(torch.float64)
        return y.cos()

    fxjit.reset()
    with pytest.raises(fxjit.errors.BackendCompilerFailed):
        fxjit.compile(fn, backend=backend)(torch.ones(3))
    assert torch.get_default_dtype() is torch.float32


def test_a_break_behind_a_setting() -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x * 2
        torch.set_default_dtype(torch.float64)
        z = torch.ones(2)
        fxjit.graph_break()
        return y, z, torch.ones(2)

    for backend in BACKENDS:
        fxjit.reset()
        compiled = fxjit.compile(fn, backend=backend)
        for _ in range(2):
            results = []
            for call in (compiled, fn):
                as_at_first()
                results.append(outcome(call, torch.eye(3)))
            assert results[0] == results[1]


def test_gradients_of_what_stands_on_both_sides() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = (x @ x).sin()
        torch.set_float32_matmul_precision("high")
        return (y @ x).sum()

    for backend in BACKENDS:
        fxjit.reset()
        found = []
        for call in (fn, fxjit.compile(fn, backend=backend)):
            x = torch.eye(3, requires_grad=True)
            call(x).backward()
            found.append(x.grad)
        torch.testing.assert_close(found[1], found[0])
