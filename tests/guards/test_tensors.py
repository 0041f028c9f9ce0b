"""Tensor guards: each fact that a graph is made of is guarded, read through torch's C shim, with no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frames import Frame, X, holds
from torch._subclasses import FakeTensorMode

from fxjit import _C, tensor_shim
from fxjit.guards.kinds import TensorIs, TensorSpec
from fxjit.guards.source import TensorOffsetSource, TensorSizeSource, TensorStrideSource


def test_the_shim_is_in_use_here() -> None:
    assert tensor_shim.ensure()
    assert _C.tensor_ready()


def base() -> torch.Tensor:
    return torch.ones(2, 3, 4)


CHANGES: dict[str, Any] = {
    "dtype": lambda: base().double(),
    "device": lambda: torch.ones(2, 3, 4, device="meta"),
    "requires_grad": lambda: base().requires_grad_(),
    "fewer dims": lambda: torch.ones(2, 12),
    "more dims": lambda: torch.ones(2, 3, 4, 1),
    "size": lambda: torch.ones(2, 3, 5),
    "first size": lambda: torch.ones(1, 3, 4),
    "stride": lambda: torch.ones(2, 4, 3).transpose(1, 2),
    "view stride": lambda: torch.ones(2, 3, 8)[..., ::2],
    "layout": lambda: base().to_sparse(),
    "parameter": lambda: torch.nn.Parameter(base()),
    "subclass": lambda: base().as_subclass(type("Sub", (torch.Tensor,), {})),
    "conjugate bit": lambda: torch.ones(2, 3, 4, dtype=torch.complex64).conj(),
    "no tensor": lambda: 5,
    "None": lambda: None,
    "list": lambda: [1.0],
    "fake tensor": lambda: FakeTensorMode().from_tensor(base()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tensor_guard_fails_for(change: str) -> None:
    guard = TensorIs(X, TensorSpec.of(base()))
    assert Frame(x=base()).tree(guard).num_python == 0
    assert not holds(guard, x=CHANGES[change]())
    other = CHANGES[change]()
    if isinstance(other, torch.Tensor):
        itself = TensorIs(X, TensorSpec.of(other))
        assert holds(itself, x=other)
        assert not holds(itself, x=base())


def test_negative_and_inference_bits() -> None:
    plain = torch.ones(3, dtype=torch.complex64)
    negative = torch._neg_view(plain)
    with torch.inference_mode():
        inference = torch.ones(3, dtype=torch.complex64)
    for one in (plain, negative, inference):
        guard = TensorIs(X, TensorSpec.of(one))
        assert [holds(guard, x=other) for other in (plain, negative, inference)].count(True) == 1


def test_what_does_not_matter_does_not_fail() -> None:
    guard = TensorIs(X, TensorSpec.of(base()))
    assert holds(guard, x=torch.zeros(2, 3, 4))
    assert holds(guard, x=torch.ones(5, 3, 4)[3:]), "another storage offset"
    assert holds(guard, x=torch.full((2, 3, 4), float("nan")))
    marked = base()
    marked.note = "an attribute"
    marked.grad = None
    assert holds(guard, x=marked)
    assert holds(guard, x=base().detach())
    assert holds(TensorIs(X, TensorSpec.of(base().requires_grad_())), x=base().requires_grad_() * 1), "no leaf"


def test_changes_in_place_are_seen() -> None:
    x = base()
    guard = TensorIs(X, TensorSpec.of(x))
    tree = Frame(x=x).tree(guard)
    assert tree.check((x,), None, {}, {})
    x.requires_grad_()
    assert not tree.check((x,), None, {}, {})
    x.requires_grad_(False)
    assert tree.check((x,), None, {}, {})
    x.data = torch.ones(9)
    assert not tree.check((x,), None, {}, {})
    x.data = base()
    x.resize_(3, 2, 4)
    assert not tree.check((x,), None, {}, {})


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
)
def test_every_dtype_is_told_from_the_others_in_c(dtype: torch.dtype) -> None:
    x = torch.empty(2, 3, dtype=dtype)
    guard = TensorIs(X, TensorSpec.of(x))
    assert Frame(x=x).tree(guard).num_python == 0
    assert holds(guard, x=torch.empty(2, 3, dtype=dtype))
    assert not holds(guard, x=torch.empty(2, 3, dtype=torch.int64 if dtype is not torch.int64 else torch.int32))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, 3).to_sparse(),
        lambda: torch.ones(3, 3).to_sparse_csr(),
        lambda: torch.ones(3, 3).to_sparse_csc(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.ones(3, 3).to_mkldnn(),
    ],
    ids=["coo", "csr", "csc", "nested", "quantized", "mkldnn"],
)
def test_tensors_of_other_kinds(make: Any) -> None:
    try:
        one, two = make(), make()
    except (RuntimeError, NotImplementedError):
        pytest.skip("this torch cannot make one")
    try:
        spec = TensorSpec.of(one)
    except RuntimeError:
        pytest.skip("has no sizes")
    guard = TensorIs(X, spec)
    assert holds(guard, x=two)
    assert not holds(guard, x=torch.ones(3, 3))


def test_scalar_empty_and_many_dimensions() -> None:
    for shape in ((), (0,), (0, 3), (1,) * 12, (2, 1, 3, 1, 2, 1, 2)):
        guard = TensorIs(X, TensorSpec.of(torch.ones(shape)))
        assert holds(guard, x=torch.zeros(shape))
        assert not holds(guard, x=torch.ones((*shape, 1)))


def test_dynamic_dimensions_are_open_and_the_others_are_not() -> None:
    guard = TensorIs(X, TensorSpec.of(base(), dynamic_dims={1}))
    assert guard.spec.sizes == (2, None, 4) and guard.spec.strides == (None, 4, 1)
    assert holds(guard, x=torch.ones(2, 7, 4))
    assert not holds(guard, x=torch.ones(2, 7, 5))
    assert not holds(guard, x=torch.ones(3, 7, 4))
    everything = TensorIs(X, TensorSpec.of(base(), dynamic_dims={0, 1, -1}))
    assert everything.spec.sizes == (None,) * 3
    assert holds(everything, x=torch.ones(9, 8, 7)) and not holds(everything, x=torch.ones(9, 8))


def test_subclasses_with_sizes_of_their_own_are_checked_in_python() -> None:
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Wrapper:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    x = Wrapper(base())
    guard = TensorIs(X, TensorSpec.of(x))
    assert Frame(x=x).tree(guard).num_python == 1
    assert holds(guard, x=Wrapper(base()))
    assert not holds(guard, x=Wrapper(torch.ones(2, 2)))
    assert not holds(guard, x=base())


def test_numbers_of_a_tensor() -> None:
    x = torch.arange(24).view(2, 3, 4).permute(2, 0, 1)[1:, 1:]
    frame = Frame(x=x)
    assert [frame.in_c(TensorSizeSource(X, dim)) for dim in range(3)] == list(x.shape)
    assert [frame.in_c(TensorStrideSource(X, dim)) for dim in range(3)] == list(x.stride())
    assert frame.in_c(TensorOffsetSource(X)) == x.storage_offset()
    fake = FakeTensorMode().from_tensor(x)
    assert Frame(x=fake).in_c(TensorSizeSource(X, 0)) == 3


def test_differences_in_words() -> None:
    guard = TensorIs(X, TensorSpec.of(base()))
    assert guard.why(torch.ones(2, 3, 5)) == "expected size(2) 4, found 5"
    assert guard.why(base().double()) == "expected dtype torch.float32, found torch.float64"
    assert guard.why(3) == "expected type Tensor, found int"
    assert "mark_dynamic(x, 2)" in guard.hint_for(torch.ones(2, 3, 5))
    assert str(guard.spec) == "Tensor float32[2, 3, 4] on cpu"


def test_without_the_shim_guards_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_shim, "ensure", lambda: False)
    guard = TensorIs(X, TensorSpec.of(base()))
    assert Frame(x=base()).tree(guard).num_python == 1
    assert holds(guard, x=base()) and not holds(guard, x=torch.ones(2))


def test_a_layout_that_is_not_as_expected_is_refused_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = (torch.ones(2), torch.ones(3))
    keys = tuple(torch._C._dispatch_keys(t).raw_repr() for t in examples)
    libraries = tuple(f"{torch.__path__[0]}/lib/{name}" for name in tensor_shim._LIBRARIES)
    try:
        assert "export" in _C.tensor_init(torch.Tensor, (), examples, keys, lambda codes: (), 0, 0, 0)
        assert "dispatch key" in _C.tensor_init(torch.Tensor, libraries, examples, (12345, 6), lambda codes: (), 0, 0, 0)
        problem = _C.tensor_init(torch.Tensor, libraries, examples, keys, lambda codes: ((1,), (2,)), 0, 0, 0)
        assert problem == "the dispatch key set was not found in a tensor" or "what is not so" in problem
        assert not _C.tensor_ready()
        monkeypatch.setattr(tensor_shim, "_problem", lambda: "something is odd")
        tensor_shim.ensure.cache_clear()
        with pytest.warns(RuntimeWarning, match="something is odd"):
            assert not tensor_shim.ensure()
    finally:
        monkeypatch.undo()
        tensor_shim.ensure.cache_clear()
        assert tensor_shim.ensure()


def test_versions_are_what_torch_says() -> None:
    assert tensor_shim.ensure()
    written = torch.ones(3)
    written.add_(1).mul_(2)
    parameter = torch.nn.Parameter(torch.ones(2))
    tensors = (written, parameter, written[1:])
    assert _C.tensor_versions(tensors, (1, 0, 2)) == [0, 2, 2]
    with torch.inference_mode():
        uncounted = torch.ones(2)
    with pytest.raises(RuntimeError, match="version counter"):
        _C.tensor_versions((uncounted,), (0,))
    with pytest.raises(IndexError):
        _C.tensor_versions(tensors, (3,))
