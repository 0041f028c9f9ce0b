"""What torch compiles for itself stays with torch's compiler: the higher-order operators that are called eagerly while the
drop-in is installed give what they give without it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._higher_order_ops import associative_scan, map, out_dtype, scan, while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import fxjit

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Q = torch.linspace(-1, 1, 2 * 16 * 16).reshape(1, 2, 16, 16)


def cond_of(x):
    return torch.cond(x.sum() > 3, torch.sin, torch.cos, (x,))


def closed_over(x):
    return torch.cond(x.sum() > 3, lambda: x.sin(), lambda: x.cos(), ())


def nested(x):
    return torch.cond(x.sum() > 3, torch.sin, lambda a: torch.cond(a.sum() < 9, torch.exp, torch.cos, (a,)), (x,))


def while_loop_of(x):
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x))


def scan_of(x):
    return scan(lambda carry, a: (carry + a, carry * a), x[0], x)


def map_of(x):
    return map(lambda row, y: row.sin() + y, x, x[0] + 1)


def associative_scan_of(x):
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


def flex_attention_of(q):
    return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + (i - j))


def block_mask_of(q):
    return flex_attention(q, q, q, block_mask=create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 16, 16, device="cpu"))


def checkpoint_of(x):
    return checkpoint(lambda a: a.sin().exp(), x, use_reentrant=False)


def wrap_activation_checkpoint_of(x):
    return torch.ops.higher_order.tag_activation_checkpoint(torch.fx.symbolic_trace(lambda a: a.sin()), x)


def nested_compile_region_of(x):
    return torch.compiler.nested_compile_region(lambda a: a.sin() + 1)(x)


def out_dtype_of(x):
    return out_dtype(torch.ops.aten.mm.default, torch.int32, x.to(torch.int8), x.to(torch.int8).t())


DIFFERENTIABLE = [
    (cond_of, X), (closed_over, X), (nested, X), (while_loop_of, X), (scan_of, X), (associative_scan_of, X), (checkpoint_of, X),
    (wrap_activation_checkpoint_of, X), (nested_compile_region_of, X), (out_dtype_of, X),
]
#: On a processor torch has no gradients of these.
OTHERS = [(map_of, X), (flex_attention_of, Q), (block_mask_of, Q)]


@pytest.mark.parametrize(("program", "x"), DIFFERENTIABLE + OTHERS, ids=lambda each: getattr(each, "__name__", ""))
def test_it_gives_the_same_with_and_without_the_drop_in(program, x):
    outcomes = []
    for install in (False, True):
        if install:
            fxjit.install()
        given = x.clone().requires_grad_(program in dict(DIFFERENTIABLE))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            leaves = torch.utils._pytree.tree_leaves(program(given))
            total = torch.stack([leaf.float().sum() for leaf in leaves]).sum()
            if total.requires_grad:
                total.backward()
            outcomes.append(([leaf.detach() for leaf in leaves], given.grad))
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=0, atol=0)


def test_it_works_between_the_graphs_of_a_compiled_function():
    fxjit.install()
    disabled = torch.compiler.disable(cond_of)

    def program(x):
        return disabled(x * 2) + 1

    torch.testing.assert_close(torch.compile(program, backend="eager")(X), program(X))
    assert fxjit.counters["stats"]["unique_graphs"] == 2


def test_a_function_of_torch_that_the_program_compiles_is_compiled_by_fxjit():
    fxjit.install()
    compiled = torch.compile(torch.nn.functional.gelu, backend="eager")
    torch.testing.assert_close(compiled(X), torch.nn.functional.gelu(X))
    assert fxjit.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("reset", ["torch.compiler.reset", "torch._dynamo.reset", "torch._dynamo.reset_code_caches"])
def test_a_reset_forgets_what_either_compiled(reset):
    import torch._dynamo

    fxjit.install()
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    for expected in (1, 2):
        compiled(X)
        cond_of(X)  # torch's own
        assert fxjit.counters["stats"]["unique_graphs"] == 1
        assert torch._dynamo.convert_frame.FRAME_COUNTER > 0 or expected == 2
        eval(reset)()
        assert not fxjit.counters["stats"]
    assert torch._dynamo.convert_frame.FRAME_COUNTER == 0 or reset.endswith("caches")
