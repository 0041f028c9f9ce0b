"""Fixtures of the native backend's tests: one cache folder for all of them, and ways to compile and to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.differential import KERNELS, assert_same_call, scaled
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit import _C, config
from fxjit.backends.native import pipeline, spec
from fxjit.backends.native.choose import channels_last


@pytest.fixture(scope="session", autouse=True)
def kernel_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with config.patch(cache_dir=str(tmp_path_factory.mktemp("cache"))):
        yield


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program the tests compile is checked after each stage."""
    monkeypatch.setattr(pipeline, "verifier", spec.check)


@pytest.fixture(params=[512, 256], ids=["AVX-512", "AVX2"])
def vectors(request: pytest.FixtureRequest) -> Iterator[int]:
    """The test with each kind of vectors that kernels of our own are compiled for, if this processor has it."""
    before = _C.vector_bits()
    if before < request.param:
        pytest.skip("this processor has no such vectors")
    _C.set_vector_bits(request.param)
    yield request.param
    _C.set_vector_bits(before)


def to_kernels(
    function: Callable[..., Any], *inputs: Any, mode: str = "fake", names: str = "test", decompositions: Any = None
) -> Callable[..., Any]:
    """The function traced to ATen and compiled, with a kernel for every operator that has a lowering."""
    gm = make_fx(function, decomposition_table=decompositions, tracing_mode=mode)(*inputs)
    compiled = pipeline.compile_graph(gm, inputs, names, lone_kernels=True).finish()
    return lambda *args: compiled(list(args))


@pytest.fixture
def kernels() -> Callable[..., Any]:
    return to_kernels


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The translation units compiled meanwhile."""
    found: list[str] = []
    start = pipeline.cc.start

    def note(source: str, *args: Any, **options: Any) -> Any:
        found.append(source)
        return start(source, *args, **options)

    monkeypatch.setattr(pipeline.cc, "start", note)
    return found


def assert_same(actual: torch.Tensor, expected: torch.Tensor, what: str = "", scale: float = 1.0) -> None:
    """Values within the type's tolerance (NaN equal to NaN), the same dtype, shape and strides."""
    assert actual.dtype is expected.dtype, f"{what}: {actual.dtype}, eager {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: {tuple(actual.shape)}, eager {tuple(expected.shape)}"
    strides = [(a, b) for n, a, b in zip(expected.shape, actual.stride(), expected.stride()) if n > 1]
    assert expected.numel() == 0 or all(a == b for a, b in strides), (
        f"{what}: strides {actual.stride()}, eager {expected.stride()}"
    )
    rtol, atol = KERNELS.get(expected.dtype, (0.0, 0.0))
    torch.testing.assert_close(
        actual, expected, rtol=rtol * scale, atol=atol * scale, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


@pytest.fixture(name="assert_same")
def assert_same_fixture() -> Callable[..., None]:
    return assert_same


@pytest.fixture
def assert_kernels_same() -> Callable[..., None]:
    """A call comes to the same as in eager when every operator that has a lowering is a kernel."""

    def check(
        function: Callable[..., Any], *inputs: Any, mode: str = "fake", scale: float = 1.0, decompositions: Any = None
    ) -> None:
        compiled = to_kernels(function, *inputs, mode=mode, decompositions=decompositions)
        assert_same_call(lambda *args: list(function(*args)), compiled, *inputs, rtol=scaled(scale), strides=False)

    return check


@pytest.fixture(params=[0, 1 << 60], ids=["channels last", "plain"])
def image_layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Convolutions of any size take images channels last, or none does."""
    monkeypatch.setattr(channels_last, "channels_last_work", lambda: request.param)
    monkeypatch.setattr(channels_last, "work_of_copy", lambda: 0)
    fxjit.reset()
    with config.patch(cache_graphs=False, small_graphs_as_captured=False):
        yield
    fxjit.reset()
