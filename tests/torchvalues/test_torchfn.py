"""Functions of torch: operators, questions that are answered while tracing, and random numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import fxjit


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


OPERATORS = {
    "pointwise": lambda x: (torch.sin(x), torch.where(x > 0, x, -x), torch.clamp(x, 0, 1), torch.maximum(x, -x)),
    "reductions": lambda x: (torch.sum(x), torch.mean(x, dim=0), torch.amax(x, 1), torch.std_mean(x)),
    "joining": lambda x: (torch.cat([x, x]), torch.stack((x, x), 1), torch.vstack([x, x]), *torch.split(x, 1)),
    "linalg": lambda x: (torch.einsum("ij,kj->ik", x, x), torch.linalg.norm(x), torch.bmm(x[None], x.T[None])),
    "factories": lambda x: (torch.zeros(2, 3), torch.ones_like(x), torch.arange(4), torch.full((2,), 3.0), torch.eye(2),
                            torch.linspace(0, 1, 3), torch.empty(2, 0), torch.tensor([1, 2]), torch.tensor(2.5) * x),
    "functional": lambda x: (F.relu(x), F.softmax(x, -1), F.gelu(x), F.layer_norm(x, (4,)), F.pad(x, (1, 1)),
                             F.linear(x, x), F.one_hot(torch.arange(3), 4), F.mse_loss(x, x * 2), F.normalize(x)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], is_causal=True),
    "namespaces": lambda x: (torch.special.expm1(x), torch.fft.rfft(x).abs(), torch.ops.aten.mul.Tensor(x, x),
                             torch.ops.aten.sin(x)),
    "python": lambda x: (torch.broadcast_tensors(x, x[0]), torch.meshgrid(x[0], x[1], indexing="ij"), torch.atleast_2d(x)),
    "mutation": lambda x: torch.add(x.detach(), 1, out=torch.empty(3, 4)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(assert_same_as_eager, name):
    assert_same_as_eager(OPERATORS[name], leaf(3, 4))


def test_questions(assert_same_as_eager):
    def fn(x):
        return (torch.is_tensor(x), torch.is_floating_point(x), torch.is_complex(x), torch.numel(x), torch.is_grad_enabled(),
                torch.get_default_dtype(), torch.finfo(x.dtype).min, torch.iinfo(torch.int32).max, torch.finfo(torch.half).eps,
                torch.jit.is_scripting(), torch.jit.is_tracing(), torch.cuda.is_available(), torch.device("cpu") == x.device,
                torch.result_type(x, 1), torch.promote_types(torch.int, torch.float), torch.Size([1, 2]),
                torch.is_autocast_enabled(),
                torch.overrides.has_torch_function((x,)), torch.overrides.is_tensor_like(x), torch.backends.mps.is_available(),
                torch.cpu._is_avx2_supported(),
                torch.broadcast_shapes((1, 3), (2, 1)), x + 1)
    assert_same_as_eager(fn, torch.randn(3))


def test_traced_code_knows_that_it_is(graphs_of):
    def fn(x):
        return x + 1 if torch.compiler.is_compiling() else x - 1
    x = torch.randn(3)
    torch.testing.assert_close(graphs_of(fn, x)[0], x + 1)


def length(mask):
    return mask.shape[0]


def masked(x, mask=None):
    if mask is None and not torch.compiler.is_compiling():
        mask = torch.ones(3)
    return x * length(mask)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_raises_only_under_a_compiler_is_captured_as_in_eager(fullgraph, assert_same_as_eager):
    """As the encoder of LongT5, which leaves out its default mask when it is compiled, and then needs one."""
    assert_same_as_eager(lambda x, mask: masked(x + 1, mask), torch.ones(2), None, fullgraph=fullgraph, backend="eager",
                         graphs=1, breaks=0, skips=False)


def test_an_operator_that_raises_only_under_a_compiler_is_captured_as_in_eager(assert_same_as_eager):
    def fn(x, bias):
        if not torch.compiler.is_compiling():
            bias = bias.expand(3, 2)
        return torch.cat([x, bias], 1)
    assert_same_as_eager(fn, torch.ones(3, 2), torch.ones(1, 2), backend="eager", graphs=1, breaks=0, skips=False)


def test_a_function_that_a_break_comes_before_is_captured_as_in_eager(assert_same_as_eager):
    def fn(x):
        x = x * 2
        fxjit.graph_break()
        return masked(x + 1)
    assert_same_as_eager(fn, torch.ones(2), fullgraph=False, backend="eager", graphs=2, breaks=1, skips=False)


def test_what_is_caught_is_as_a_compiler_has_it():
    def fn(x):
        try:
            return masked(x)
        except AttributeError:
            return x * 5 if torch.compiler.is_compiling() else x
    torch.testing.assert_close(fxjit.compile(fn, backend="eager")(torch.ones(2)), torch.full((2,), 5.0))
    assert not fxjit.counters["skip"]


def test_what_raises_in_eager_too_raises_beside_that_question():
    def fn(x):
        if torch.compiler.is_compiling():
            x = x + 0
        raise ValueError(f"no {x.dim()}")
    for _ in range(3):
        with pytest.raises(ValueError, match="^no 1$"):
            fxjit.compile(fn)(torch.ones(2))


def test_random_numbers_come_in_eagers_order(assert_same_as_eager):
    def fn(x):
        return torch.rand(3), F.dropout(x, 0.5), torch.randn_like(x), torch.randint(0, 10, (3,)), x.bernoulli(0.5)
    assert_same_as_eager(fn, torch.rand(3))


def test_a_random_number_that_nobody_uses_is_drawn_too(assert_same_as_eager):
    def fn(x):
        torch.rand(5)
        return torch.rand(3) + x
    assert_same_as_eager(fn, torch.rand(3), backend="eager")


def test_types_of_python_as_dtypes(assert_same_as_eager):
    assert_same_as_eager(
        lambda x, n: (x.to(float), x.to(dtype=bool), x.sum(dtype=float), F.softmax(x, 0, dtype=float),
                      x.new_zeros(2, dtype=int), torch.tensor([-1], dtype=int), torch.tensor([n, 1], dtype=float),
                      torch.arange(3, dtype=float), torch.full((2,), 1, dtype=complex)), torch.randn(2), 3
    )


def test_tensor_classes_as_dtypes(assert_same_as_eager):
    assert_same_as_eager(lambda x: (x.type(torch.LongTensor), x.type(dtype=torch.DoubleTensor), x.type()), torch.randn(2))


def test_numbers_of_numpy_stand_in_graphs_as_pythons():
    ran = []

    def backend(gm, _):
        def run(*inputs):
            outputs = gm(*inputs)
            ran.append(outputs)  # a graph whose text cannot run would be replaced by eager code
            return outputs
        return run

    def fn(x):
        two = np.int64(2)
        half = np.float32(0.5)
        return x.repeat(two), x.reshape([two, 1]), x.chunk(two), x.clamp(max=half), torch.full((two,), half) * x

    x = torch.randn(2)
    ours = fxjit.compile(fn, backend=backend, fullgraph=True)(x)
    for one, other in zip(tree_leaves(ours), tree_leaves(fn(x)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert len(ran) == 1


def test_classes_that_are_no_dtypes_are_refused_as_eager_refuses_them():
    def fn(x):
        return x.to(dict)
    with pytest.raises(TypeError) as eager:
        fn(torch.randn(2))
    with pytest.raises(TypeError) as ours:
        fxjit.compile(fn, backend="eager")(torch.randn(2))
    assert str(ours.value) == str(eager.value)


def test_tensors_of_tensors(assert_same_as_eager):
    assert_same_as_eager(
        lambda x: (torch.as_tensor(x) is x, torch.tensor(x.shape), torch.as_tensor([1.0, 2.0]) + x), torch.randn(2)
    )


def test_assertions(assert_same_as_eager):
    def fn(x):
        torch._assert(x.shape[0] == 3, "three")
        torch._check(x.dim() == 1)
        assert x.numel() == 3, "three"
        return x + 1
    assert_same_as_eager(fn, torch.randn(3))


CHECKS = {
    "check": lambda x, holds: torch._check(holds, lambda: f"check {x.dim()}"),
    "no words": lambda x, holds: torch._check(holds),
    "index": lambda x, holds: torch._check_index(holds, lambda: "index"),
    "value": lambda x, holds: torch._check_value(holds, lambda: "value"),
    "type": lambda x, holds: torch._check_type(holds, lambda: "type"),
    "not implemented": lambda x, holds: torch._check_not_implemented(holds),
    "with": lambda x, holds: torch._check_with(KeyError, holds, lambda: "with"),
    "no truth": lambda x, holds: torch._check_value(3 if holds else [], lambda: "no truth"),
    "all": lambda x, holds: torch._check_tensor_all(x > (0 if holds else 1)),
    "all, words": lambda x, holds: torch._check_tensor_all(x > (0 if holds else 1), lambda: "all"),
    "all with": lambda x, holds: torch._check_tensor_all_with(ValueError, x > (0 if holds else 1), lambda: f"all {x.dim()}"),
}


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("name", CHECKS)
def test_checks(name, holds):
    """A check that fails raises what it raises eagerly; one that holds is no break."""
    def fn(x, holds):
        CHECKS[name](x, holds)
        return x + 1

    def outcome(call):
        try:
            return call(torch.ones(3), holds)
        except Exception as error:
            return type(error), str(error)

    fxjit.reset()
    eager, ours = outcome(fn), outcome(fxjit.compile(fn, backend="eager"))
    assert torch.equal(eager, ours) if isinstance(eager, torch.Tensor) else eager == ours
    assert not holds or name == "no truth" or not fxjit.counters["graph_break"]


def test_tensors_of_a_deque(assert_same_as_eager):
    def fn(x, rewards):
        returns = deque()
        for reward in reversed(rewards):
            returns.appendleft(reward + 0.5 * (returns[0] if returns else 0.0))
        return x + torch.tensor(returns), torch.tensor(data=returns, dtype=torch.float64), torch.as_tensor(returns)
    assert_same_as_eager(fn, torch.randn(3), [1.0, 2.0, 3.0])


def test_functions_as_values(assert_same_as_eager):
    def fn(x):
        table = {"relu": F.relu, "tanh": torch.tanh}
        act = getattr(torch, "sigmoid")
        return [table[name](x) for name in ("relu", "tanh")], act(x), list(map(torch.exp, [x, x])), act is torch.sigmoid
    assert_same_as_eager(fn, leaf(3))


def test_custom_operators(assert_same_as_eager):
    @torch.library.custom_op("fxjit_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x):
        return torch.empty_like(x)

    assert_same_as_eager(lambda x: (twice(x), torch.ops.fxjit_test.twice(x)), torch.randn(3))


def test_arguments_of_operators_that_are_named_as_those_of_factories(assert_same_as_eager):
    """`requires_grad`, `out` and `device` are the operator's own."""
    @torch.library.custom_op("fxjit_test::chosen", mutates_args=())
    def chosen(x: torch.Tensor, requires_grad: bool = False, out: int = 1, device: str = "none") -> torch.Tensor:
        return x * (3 if requires_grad else 2) + out + len(device)

    @chosen.register_fake
    def _(x, requires_grad=False, out=1, device="none"):
        return torch.empty_like(x)

    @fxjit.allow_in_graph
    def allowed(x, requires_grad=False, out=1):
        return x * (3 if requires_grad else 2) + out

    def fn(x):
        counted = torch.ops.prims.iota.default(
            x.shape[0], start=0, step=1, dtype=torch.int64, device=x.device, requires_grad=False)
        return (chosen(x, requires_grad=True, out=4, device="some"), torch.ops.fxjit_test.chosen(x, requires_grad=True),
                allowed(x, requires_grad=True, out=2), counted)

    assert_same_as_eager(fn, torch.randn(3))


@torch.jit.script
def scripted(x: torch.Tensor, factor: float) -> torch.Tensor:
    if factor > 1:
        return x * factor
    return x - factor


@torch.jit.script_if_tracing
def scripted_if_tracing(x):
    return x + 1


@torch.jit.ignore
def ignored_by_script(x):
    return x * 2


def test_scripted_functions_are_the_functions_they_were_made_of(assert_same_as_eager):
    assert_same_as_eager(
        lambda x: scripted(x, 2.0) + scripted(x, 0.5) + scripted_if_tracing(x) + ignored_by_script(x), torch.randn(3)
    )


def test_a_composite_whose_kernel_looks_at_data_is_captured_by_its_decomposition(assert_same_as_eager):
    window = torch.hann_window(16)

    def vocoder(spectrum):
        return torch.istft(spectrum * 2, 16, 4, window=window)

    assert_same_as_eager(vocoder, torch.stft(torch.randn(2, 64), 16, 4, window=window, return_complex=True))


@pytest.mark.parametrize("draw", [torch.rand, torch.randn, lambda *args, **kw: torch.randint(0, 5, args[0], **kw)])
def test_a_generator_that_is_none_is_none_given(draw: Callable[..., torch.Tensor]) -> None:
    """torch has another overload for a generator, which takes no sizes that vary."""
    fxjit.reset()
    compiled = fxjit.compile(lambda x: x + draw(x.shape, generator=None), fullgraph=True, dynamic=True, backend="eager")
    for rows in (3, 4):
        torch.manual_seed(0)
        found = compiled(torch.zeros(rows, 2))
        torch.manual_seed(0)
        assert torch.equal(found, draw((rows, 2)).float())
    assert fxjit.counters["stats"]["unique_graphs"] == 1


VERSION_CHECKS = {
    "a text": lambda: torch.__version__ >= "1.8.0",
    "a text first": lambda: "1.8" <= torch.__version__,
    "numbers": lambda: torch.__version__ > (1, 8),
    "a version": lambda: torch.__version__ >= torch.torch_version.TorchVersion("1.7"),
    "no version": lambda: torch.__version__ < "parrot",
    "one of some": lambda: torch.__version__ in ("1.7", "1.8.0"),
}


@pytest.mark.parametrize("name", VERSION_CHECKS)
def test_the_version_of_torch_is_compared_while_tracing(assert_same_as_eager, name):
    """As in code that serves many releases: `align_corners` where torch has it."""
    check = VERSION_CHECKS[name]
    assert_same_as_eager(lambda x: x * 2 if check() else x + 1, torch.ones(3), graphs=1)


@pytest.mark.parametrize("mark", [torch.jit.unused, torch.jit.ignore, torch.jit.export,
                                  lambda fn: torch.jit.ignore(drop=False)(fn)])
def test_functions_marked_for_scripts_while_tracing(assert_same_as_eager, mark):
    def program(x):
        @mark
        def doubled(y):
            return y * 2

        return doubled(x), doubled._torchscript_modifier

    assert_same_as_eager(program, torch.ones(2))
