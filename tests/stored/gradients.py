"""Differences (differences.py) in what a program has run under autograd: its Functions, operators, hooks."""

from __future__ import annotations

from tests.stored.rows import Difference, X, of

_FUNCTION = """class F(torch.autograd.Function):
    k = 3
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * x.cos() * F.k
"""
_APART = """class F(torch.autograd.Function):
    @staticmethod
    def forward(x, k):
        return x * k
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]
    @staticmethod
    def backward(ctx, g):
        return g * ctx.k * 2, None
"""
#: The graph has it as it was traced.
_WITH_A_TENSOR = "W = torch.ones(4)\n" + _FUNCTION.replace("* F.k", "* F.k * W")
_GRADIENT = "y = F.apply(x.detach().requires_grad_())\nreturn y"
#: An operator of the program's own with all of its parts.
OPERATOR = """@torch.library.custom_op("fxjit_test::op", mutates_args=())
def op(x: torch.Tensor, k: int) -> torch.Tensor:
    return x * k
@op.register_fake
def _(x, k):
    return torch.empty_like(x)
def setup(ctx, inputs, output):
    ctx.k = inputs[1]
def backward(ctx, g):
    return g * ctx.k, None
op.register_autograd(backward, setup_context=setup)
"""
_LIBRARYS = """lib = torch.library.Library("fxjit_test_lib", "DEF")
lib.define("op(Tensor x) -> Tensor")
lib.impl("op", lambda x: x * 2, "CompositeExplicitAutograd")
@torch.library.register_fake("fxjit_test_lib::op")
def _(x):
    return torch.empty_like(x)
"""
GRADIENTS = {
    "the forward of a Function": of(_FUNCTION + "|return F.apply(x).sum()", edit=("x.sin()", "x.tan()")),
    "the backward of a Function": of(_FUNCTION + "|return F.apply(x).sum()", edit=("g * x.cos()", "g + x.cos()")),
    "what the backward of a Function reads": of(_FUNCTION + "|return F.apply(x).sum()", edit=("k = 3", "k = 4")),
    "the backward of a Function, set later": of(
        _FUNCTION + "|return F.apply(x).sum()", after="from program import F; F.backward = staticmethod(lambda ctx, g: g * 7)"
    ),
    "a Function with a context of its own": of(_APART + "|return F.apply(x, 3).sum()", edit=("ctx.k * 2", "ctx.k * 5")),
    "the context of a Function": of(_APART + "|return F.apply(x, 3).sum()", edit=("inputs[1]", "inputs[1] + 1")),
    "the forward of a Function with a tensor": of(_WITH_A_TENSOR + "|return F.apply(x).sum()", edit=("x.sin()", "x.tan()")),
    "the backward of a Function with a tensor": of(
        _WITH_A_TENSOR + "|return F.apply(x).sum()", edit=("g * x.cos()", "g + x.cos()")),
    "the tensor of a Function": of(_WITH_A_TENSOR + "|return F.apply(x).sum()", edit=("ones(4)", "ones(4) * 2")),
    "what the backward of a Function with a tensor reads": of(
        _WITH_A_TENSOR + "|return F.apply(x).sum()", edit=("k = 3", "k = 4")),
    "the backward of a Function with a tensor, set later": of(
        _WITH_A_TENSOR + "|return F.apply(x).sum()",
        after="from program import F; F.backward = staticmethod(lambda ctx, g: g * 7)"
    ),
    "what an operator does": of(OPERATOR + "|return op(x, 2).sum() + 1", edit=("x * k", "x * k + 1")),
    "an operator's fake": of(
        OPERATOR + "|y = op(x, 2)\nreturn (y + 1).sum() * y.dim()", edit=("torch.empty_like(x)", "torch.empty_like(x) + 0")
    ),
    "an operator's backward": of(OPERATOR + "|return op(x, 2).sum() + 1", edit=("g * ctx.k", "g * ctx.k * 2")),
    "an operator's context": of(OPERATOR + "|return op(x, 2).sum() + 1", edit=("ctx.k = inputs[1]", "ctx.k = inputs[1] + 1")),
    "an operator without a backward": of(
        OPERATOR + "|return op(x.detach(), 2).sum() + 1", edit=("op.register_autograd(", "dict(b=")
    ),
    "a library's operator": of(_LIBRARYS + "|return torch.ops.fxjit_test_lib.op(x) + 1", edit=("x * 2", "x * 3")),
    "a library's fake": of(
        _LIBRARYS + "|return torch.ops.fxjit_test_lib.op(x) + 1", edit=("empty_like(x)", "empty_like(x) * 1")
    ),
    "a hook on a tensor": of("|y = x * 2\ny.register_hook(lambda g: g * 3)\nreturn y.sum()", edit=("g * 3", "g * 4")),
    "the function that vmap maps": of("def f(x):\n    return x * 2\n|return torch.vmap(f)(x).sum()", edit=("x * 2", "x * 3")),
    "the function that is checkpointed": of(
        "import torch.utils.checkpoint as c\ndef f(x):\n    return x.sin() * 2\n"
        "|return c.checkpoint(f, x, use_reentrant=False).sum()",
        edit=("x.sin() * 2", "x.cos() * 3"),
    ),
}
#: Code that forward, backward, fake and context of one Function, or operator, are made of: each edit is another program.
_PARTS = """import functools
G = 3
TABLE = {'a': 2}
def made(k):
    def scale(x, by=2, *, plus=1):
        return x * by * k + plus
    return scale
scale = made(4)
"""
_OF_PARTS = (
    _PARTS
    + """def decorated(f):
    @functools.wraps(f)
    def wrapper(ctx, g):
        return f(ctx, g) * 5
    return wrapper
class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g):
        return g * 9
    @staticmethod
    def backward(ctx, g):
        return g * 10
class Base(torch.autograd.Function):
    k = 7
    @staticmethod
    def helper(g):
        return g * 6
class F(Base):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.n = G
        return scale(x.sin())
    @staticmethod
    @torch.autograd.function.once_differentiable
    @decorated
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return F.helper(g) * Inner.apply(x.cos()) * F.k * ctx.n * TABLE['a']
"""
)
_OPERATOR_OF_PARTS = (
    _PARTS
    + """def like(x):
    return torch.empty_like(x)
@torch.library.custom_op("fxjit_test::parts", mutates_args=())
def op(x: torch.Tensor, k: int) -> torch.Tensor:
    return x * k
@op.register_fake
def _(x, k):
    return like(x)
def setup(ctx, inputs, output):
    ctx.k = inputs[1] + G
def backward(ctx, g):
    return scale(g) * ctx.k * TABLE['a'], None
op.register_autograd(backward, setup_context=setup)
"""
)
_OF_BOTH = (("G = 3", "G = 5"), ("'a': 2", "'a': 3"), ("by * k", "by + k"), ("by=2", "by=3"), ("plus=1", "plus=2"),
            ("made(4)", "made(5)"))  # fmt: skip
_OF_FUNCTION = (("g) * 5", "g) * 4"), ("return g * 9", "return g * 8"), ("k = 7", "k = 8"), ("g * 6", "g * 7"),
                ("x.cos()", "x.sin()"), ("ctx.n = G", "ctx.n = G + 1"))  # fmt: skip
_OF_OPERATOR = (("empty_like(x)", "empty_like(x) + 0"), ("+ G", "- G"), ("* ctx.k", "+ ctx.k"))
GRADIENTS |= {
    f"a part of {what}: {edit[1]}": of(program, edit=edit)
    for what, program, edits in (
        ("a Function", _OF_PARTS + "|return F.apply(x).sum()", _OF_BOTH + _OF_FUNCTION),
        ("an operator", _OPERATOR_OF_PARTS + "|return op(x, 2).sum() + 1", _OF_BOTH + _OF_OPERATOR),
    )
    for edit in edits
}
GRADIENTS |= {f"{name}, native": Difference(**{**vars(each), "backend": "native"}) for name, each in GRADIENTS.items()}
for each in GRADIENTS.values():
    each.program = each.program.replace(X, X.replace("view(3, 4)", "view(3, 4).requires_grad_()"))
