"""Random graphs of operators: `tape(seed)` draws one, which test_graphs.py replays in eager and compiled.

A tape is a list of steps over numbered tensors, drawn while it runs on real values: so that discontinuous operators
(comparisons, rounding, sorting, conversion to integers) are only given values that float arithmetic has computed exactly,
and magnitudes stay within bounds. Inputs have all types and layouts: permuted, strided, expanded, overlapping, with an
offset, empty, of size one, zero-dimensional.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TYPES = (torch.float32,) * 8 + (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int64, *INTS, torch.bool)
SHAPES = [(6, 8), (4, 4), (3, 5, 7), (2, 3, 4, 5), (17, 33), (1, 9), (5,), (70,), (2, 0, 3), (), (3, 1, 4), (130, 9)]
LARGEST = 4096
MOST_ELEMENTS = 20_000

Step = Callable[..., Any]


@dataclass
class Tape:
    """`steps` are (function, numbers of its operands, does it write to the first of them)."""

    seed: int
    inputs: list[torch.Tensor] = field(default_factory=list)
    steps: list[tuple[Step, tuple[int, ...], bool]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    mutates: bool = False
    draws: bool = False
    #: The floating types of all values, also of those in between.
    floats: set[torch.dtype] = field(default_factory=set)

    def replay(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        values = self.values(*inputs)
        return [values[k] for k in self.wanted]

    def values(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        values = list(inputs)
        for function, operands, writes in self.steps:
            out = function(*[values[k] for k in operands])
            if not writes:
                values.append(out)
        return values

    def describe(self) -> str:
        given = [f"v{k} = {str(x.dtype)[6:]}{tuple(x.shape)} stride {x.stride()}" for k, x in enumerate(self.inputs)]
        number = len(self.inputs)
        for name, (_, operands, writes) in zip(self.names, self.steps):
            head = "     " if writes else f"v{number} = "
            number += not writes
            given.append(f"{head}{name}({', '.join(f'v{k}' for k in operands)})")
        return "\n".join([*given, f"return {', '.join(f'v{k}' for k in self.wanted)}"])


# Inputs


def numbers(r: random.Random, dtype: torch.dtype, count: int, special: bool) -> torch.Tensor:
    """Values that sums and products of a few keep exact: multiples of 1/4 (of 1 for integers) of small size."""
    generator = torch.Generator().manual_seed(r.randrange(1 << 30))
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -6
        return torch.randint(low, 7, (count,), generator=generator).to(dtype)
    values = torch.randint(-12, 13, (count,), generator=generator).double() / 4
    if special and count:
        odd = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, -1e-40, 65504.0])
        where = torch.randint(0, count, (min(3, count),), generator=generator)
        values[where] = odd[torch.randint(0, len(odd), where.shape, generator=generator)].double()
    return values.to(dtype)


def make_input(r: random.Random, shape: tuple[int, ...], dtype: torch.dtype, special: bool) -> torch.Tensor:
    layout = r.choice(["plain"] * 5 + ["permuted", "strided", "offset", "expanded", "overlapping", "channels"])
    count = 1
    for size in shape:
        count *= size
    if layout == "permuted" and len(shape) > 1:
        order = list(range(len(shape)))
        r.shuffle(order)
        base = numbers(r, dtype, count, special).reshape([shape[k] for k in order])
        return base.permute([order.index(k) for k in range(len(shape))])
    if layout == "strided" and shape:
        dim = r.randrange(len(shape))
        wide = [size * 2 if k == dim else size for k, size in enumerate(shape)]
        base = numbers(r, dtype, count * 2, special).reshape(wide)
        return base[tuple(slice(r.choice([0, 1]), None, 2) if k == dim else slice(None) for k in range(len(shape)))]
    if layout == "offset":
        return numbers(r, dtype, count + 3, special)[3:].reshape(shape)
    if layout == "expanded" and shape and count:
        dim = r.randrange(len(shape))
        thin = [1 if k == dim else size for k, size in enumerate(shape)]
        return numbers(r, dtype, count // shape[dim], special).reshape(thin).expand(shape)
    if layout == "overlapping" and len(shape) == 2 and count:
        return numbers(r, dtype, shape[0] + shape[1], special).unfold(0, shape[1], 1)[: shape[0]]
    if layout == "channels" and len(shape) == 4:
        return numbers(r, dtype, count, special).reshape(shape).contiguous(memory_format=torch.channels_last)
    return numbers(r, dtype, count, special).reshape(shape)


# Drawing


class Drawer:
    """Draws one tape. `exact[k]`: value k was computed without rounding."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.tape = Tape(seed)
        self.values: list[torch.Tensor] = []
        self.exact: list[bool] = []

    def draw(self) -> Tape:
        r, tape = self.r, self.tape
        base = r.choice(SHAPES)
        special = r.random() < 0.2
        for k in range(r.randint(1, 4)):
            shape = base if k == 0 else self.kin(base)
            tape.inputs.append(make_input(r, shape, r.choice(TYPES), special))
        self.values = [copied(each) for each in tape.inputs]
        self.exact = [True] * len(self.values)
        for _ in range(r.randint(3, 14)):
            for _ in range(8):
                if self.step():
                    break
        first = len(tape.inputs)
        if len(self.values) > first:
            tape.wanted = sorted(r.sample(range(first, len(self.values)), min(len(self.values) - first, r.randint(1, 5))))
        return tape

    def kin(self, base: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts with `base`."""
        r = self.r
        kept = base[r.randint(0, len(base)) :] if r.random() < 0.3 else base
        return tuple(1 if r.random() < 0.25 else size for size in kept)

    def step(self) -> bool:
        r = self.r
        kind = r.choice(list(KINDS))
        number = r.randrange(len(self.values)) if r.random() < 0.5 else len(self.values) - 1
        drawn = KINDS[kind](self, number)
        if drawn is None:
            return False
        name, function, others, keeps, writes = drawn
        return self.apply(name, function, (number, *others), keeps, writes)

    def apply(self, name: str, function: Step, operands: tuple[int, ...], keeps: bool, writes: bool) -> bool:
        """Runs the step on the real values; it is kept if it works and stays within bounds."""
        given = [self.values[k] for k in operands]
        before = given[0].clone() if writes else None
        try:
            out = function(*given)
        except (RuntimeError, IndexError, TypeError, ValueError):
            out = None
        if not isinstance(out, torch.Tensor) or not self.fits(out):
            if before is not None and not overlapping(given[0]):
                given[0].copy_(before)
            return False
        self.tape.floats |= {each.dtype for each in (*given, out) if each.dtype.is_floating_point}
        self.tape.steps.append((function, operands, writes))
        self.tape.names.append(name)
        self.tape.draws = self.tape.draws or name in RANDOM
        exact = keeps and all(self.exact[k] for k in operands)
        if writes:
            self.tape.mutates = True
            for k, value in enumerate(self.values):
                if shares_storage(value, given[0]):
                    self.exact[k] = self.exact[k] and exact
            return True
        self.values.append(out)
        self.exact.append(exact and exactly_held(out))
        return True

    def fits(self, out: torch.Tensor) -> bool:
        if out.numel() > MOST_ELEMENTS or out.dim() > 5 or out.is_complex():
            return False
        finite = out[out.isfinite()] if out.dtype.is_floating_point else out
        return finite.numel() == 0 or out.dtype is torch.bool or float(finite.double().abs().max()) <= LARGEST

    # Help for the kinds

    def x(self, number: int) -> torch.Tensor:
        return self.values[number]

    def partner(self, number: int, test: Callable[[torch.Tensor, torch.Tensor], bool]) -> int | None:
        fitting = [k for k, other in enumerate(self.values) if test(self.values[number], other)]
        return self.r.choice(fitting) if fitting else None


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in the same layout, in memory of its own."""
    if tensor.numel() == 0:
        return tensor.clone()
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1
    storage = torch.zeros(tensor.storage_offset() + extent, dtype=tensor.dtype)
    storage[tensor.storage_offset() :] = tensor.as_strided((extent,), (1,))
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def overlapping(x: torch.Tensor) -> bool:
    """Whether two elements are one: writing to them is not defined."""
    return places(x).unique().numel() < x.numel()


def places(x: torch.Tensor) -> torch.Tensor:
    """Where the elements lie, counted in elements from the beginning of the storage."""
    found = torch.full((), x.storage_offset())
    for size, stride in zip(x.shape, x.stride()):
        found = found.unsqueeze(-1) + torch.arange(size) * stride
    return found


def apart_or_one(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether no element of one is another element of the other: else writing to `a` what `b` holds is not defined."""
    if not shares_storage(a, b):
        return True
    same = a.shape == b.shape and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
    return same or not bool(torch.isin(places(a), places(b)).any())


def exactly_held(x: torch.Tensor) -> bool:
    """Small multiples of 1/256, NaN and infinities aside: what float arithmetic goes on computing exactly."""
    if not x.dtype.is_floating_point:
        return True
    finite = x[x.isfinite()].double()
    limit, grain = {torch.float16: (32, 16), torch.bfloat16: (8, 4)}.get(x.dtype, (LARGEST, 256))
    return bool((finite.abs() <= limit).all() and (finite * grain == (finite * grain).round()).all())


def broadcast(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        return torch.broadcast_shapes(a.shape, b.shape).numel() <= MOST_ELEMENTS
    except RuntimeError:
        return False


def broadcast_shape(a: torch.Tensor, b: torch.Tensor) -> torch.Size:
    return torch.broadcast_shapes(a.shape, b.shape)


def holds_next(x: torch.Tensor) -> bool:
    """Whether one more than each number is not rounded: a remainder by 65536 + 1 in bfloat16 is one by 65536 in eager alone."""
    return not x.dtype.is_floating_point or torch.allclose((x.abs() + 1).double(), x.double().abs() + 1, 0, 0, equal_nan=True)


# Kinds of steps: each draws (name, function, further operands, is it exact on exact values, does it write), or None.

Drawn = tuple[str, Step, tuple[int, ...], bool, bool]
ROUNDING = {
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "sin": torch.sin, "exp": lambda x: x.clamp(max=3).exp(), "gelu": F.gelu,
    "silu": F.silu, "sqrt": lambda x: x.abs().sqrt(), "log1p": lambda x: x.abs().log1p(),
    "reciprocal": lambda x: 1 / (x.abs() + 1),
    "softplus": F.softplus, "erf": torch.erf, "atan": torch.atan, "rsqrt": lambda x: (x.abs() + 1).rsqrt(), "elu": F.elu,
    "div3": lambda x: x / 3, "scale": lambda x: x * 0.3, "pow": lambda x: (x.abs() + 0.5) ** 1.5, "mish": F.mish,
    "logit": lambda x: torch.logit(x, 0.1), "log": lambda x: (x * x + 1).log(), "hardswish": F.hardswish, "cos": torch.cos,
}  # fmt: skip
EXACT = {
    "neg": torch.neg, "abs": torch.abs, "relu": torch.relu, "square": torch.square, "half": lambda x: x * 0.5 + 1,
    "clamp": lambda x: x.clamp(-1, 1), "minus": lambda x: 2 - x, "hardtanh": F.hardtanh, "sign": torch.sign,
    "double": lambda x: x * 2,
    "leaky": lambda x: F.leaky_relu(x, 0.5), "threshold": lambda x: F.threshold(x, 0.25, 2.0),
    "clamp_min": lambda x: x.clamp(min=0),
    "pow2": lambda x: x**2, "pow3": lambda x: x**3, "nan_to_num": lambda x: torch.nan_to_num(x, 1.0, 2.0, -2.0),
    "positive": torch.positive,
    "relu6": F.relu6, "hardshrink": lambda x: F.hardshrink(x, 0.5),
}  # fmt: skip
JUMPS = {
    "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc, "remainder": lambda x: x % 3,
    "fmod": lambda x: torch.fmod(x, 2), "floordiv": lambda x: torch.floor_divide(x, 2),
    "truncdiv": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "heaviside": lambda x: torch.heaviside(x, x.new_ones(())), "frac": lambda x: x - x.floor(), "isnan": torch.isnan,
    "gt0": lambda x: x > 0, "ne": lambda x: x != 0, "logical_not": torch.logical_not, "eq": lambda x: x == 0.5,
    "isfinite": torch.isfinite,
    "signbit": torch.signbit,
}  # fmt: skip
INTEGER = {
    "not": torch.bitwise_not, "and": lambda x: x & 3, "xor": lambda x: x ^ 5, "or": lambda x: x | 1, "neg": torch.neg,
    "abs": torch.abs, "mul": lambda x: x * 3, "rem": lambda x: x % 3, "div": lambda x: x // 2, "sub": lambda x: 5 - x,
    "shl": lambda x: x << 1, "shr": lambda x: x >> 1, "sign": torch.sign, "clamp": lambda x: x.clamp(-2, 3),
    "pow": lambda x: x**2,
    "true division": lambda x: x / 4, "eq": lambda x: x == 1, "square": torch.square, "add": lambda x: x + 1,
    "fmod": lambda x: torch.fmod(x, 3), "wrap": lambda x: (x * 1000003 * 1000003 * 1000003) % 101,
    "wrap32": lambda x: (x.int() + 2147483640) // 65536, "gcd": lambda x: torch.gcd(x, x + 2), "shift": lambda x: (x << 9) >> 9,
}  # fmt: skip
# A number of Python's or a tensor without dimensions beside a tensor: what type they meet in.
NUMBERS = {
    "+ 1.5": lambda x: x + 1.5, "* True": lambda x: x * True, "> 0.5": lambda x: x > 0.5, "2 - x": lambda x: 2 - x,
    "+ double": lambda x: x + torch.tensor(2.5, dtype=torch.float64), "* int": lambda x: x * torch.tensor(3),
    "half +": lambda x: torch.tensor(0.5, dtype=torch.float16) + x,
    "max": lambda x: torch.maximum(x, torch.tensor(1).to(x.dtype)),
    "add alpha": lambda x: torch.add(x, 1, alpha=2), "where": lambda x: torch.where(x > 0, x, 2.5),
    "fill": lambda x: x.masked_fill(x > 1, 2), "full": lambda x: x + torch.full((), 3),
    "bits": lambda x: (x.float() + 0.0).view(torch.int32) >> 20,
    "out": lambda x: torch.add(x, 1, out=torch.empty(0, dtype=x.dtype)),
    "out turned": lambda x: torch.mul(x, 2, out=x.new_empty(x.shape[::-1]).permute(*reversed(range(x.dim())))),
    "complex": lambda x: torch.complex(x.float(), x.float() + 1).conj().imag, "minus zero": lambda x: x * -0.0,
}  # fmt: skip


def beside_numbers(d: Drawer, number: int) -> Drawn | None:
    x = d.x(number)
    name = d.r.choice(list(NUMBERS))
    if x.dtype.is_floating_point and not d.exact[number] and name in ("> 0.5", "where", "fill", "bits"):
        return None
    if name == "bits" and not bool(x.isfinite().all()):
        return None
    return name, NUMBERS[name], (), name != "half +", False


def pointwise(d: Drawer, number: int) -> Drawn | None:
    x = d.x(number)
    if x.dtype is torch.bool:
        name = d.r.choice(["logical_not", "bitwise_not", "float", "plus", "times"])
        made = {
            "logical_not": torch.logical_not, "bitwise_not": torch.bitwise_not, "float": lambda x: x.float(),
            "plus": lambda x: x + 1,
            "times": lambda x: x * 0.5,
        }  # fmt: skip
        return name, made[name], (), True, False
    if not x.dtype.is_floating_point:
        name = d.r.choice(list(INTEGER))
        return name, INTEGER[name], (), True, False
    if d.exact[number] and d.r.random() < 0.3:
        name = d.r.choice(list(JUMPS))
        return name, JUMPS[name], (), True, False
    if d.r.random() < 0.6:
        name = d.r.choice(list(EXACT))
        return name, EXACT[name], (), True, False
    name = d.r.choice(list(ROUNDING))
    return name, ROUNDING[name], (), False, False


BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum,
    "alpha": lambda a, b: torch.add(a, b, alpha=2), "addcmul": lambda a, b: torch.addcmul(a, a, b, value=2),
    "rsub": lambda a, b: torch.rsub(a, b),
    "masked": lambda a, b: a.masked_fill(b.bool(), 1) if not b.dtype.is_floating_point else a + b,
}  # fmt: skip
BINARY_JUMPS = {
    "where": lambda a, b: torch.where(a > b, a, b), "gt": torch.gt, "le": torch.le, "eq": torch.eq, "ne": torch.ne,
    "floordiv": lambda a, b: torch.floor_divide(a, b.abs() + 1), "remainder": lambda a, b: torch.remainder(a, b.abs() + 1),
    "logical_and": torch.logical_and, "logical_xor": torch.logical_xor, "copysign": torch.copysign,
    "clamp": lambda a, b: torch.clamp(a, b, b + 1), "fmax": torch.fmax, "fmod": lambda a, b: torch.fmod(a, b.abs() + 1),
}  # fmt: skip
BINARY_ROUNDING = {
    "div": lambda a, b: a / (b.abs() + 1), "atan2": torch.atan2, "hypot": torch.hypot,
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "logaddexp": torch.logaddexp, "addcdiv": lambda a, b: torch.addcdiv(a, a, b.abs() + 1), "xlogy": torch.xlogy,
}  # fmt: skip


def binary(d: Drawer, number: int) -> Drawn | None:
    other = d.partner(number, broadcast)
    assert other is not None, "a value broadcasts with itself"
    if d.r.random() < 0.5:
        name, source, keeps = d.r.choice(list(BINARY)), BINARY, True
    elif d.exact[number] and d.exact[other] and holds_next(d.x(other)):
        name, source, keeps = d.r.choice(list(BINARY_JUMPS)), BINARY_JUMPS, True
    else:
        name, source, keeps = d.r.choice(list(BINARY_ROUNDING)), BINARY_ROUNDING, False
    return name, source[name], (other,), keeps, False


def reduction(d: Drawer, number: int) -> Drawn | None:
    x, r = d.x(number), d.r
    certain = d.exact[number] or not x.dtype.is_floating_point  # others may be zero but for rounding
    if x.dim() == 0:
        chosen = r.choice([("sum0", torch.sum, (), True, False), ("any0", lambda x: x.any(), (), True, False)])
        return chosen if certain or chosen[0] == "sum0" else None
    dims = tuple(sorted(r.sample(range(x.dim()), r.randint(1, x.dim()))))
    if r.random() < 0.3:
        dims = tuple(dim - x.dim() for dim in dims)
    keep = r.random() < 0.5
    plain: dict[str, Step] = {
        "sum": lambda x: x.sum(dims, keepdim=keep), "amax": lambda x: x.amax(dims, keepdim=keep),
        "amin": lambda x: x.amin(dims, keepdim=keep), "any": lambda x: x.any(dims[0], keepdim=keep),
        "all": lambda x: x.all(dims[0], keepdim=keep), "sum all": lambda x: x.sum(), "max all": lambda x: x.max(),
        "count": lambda x: x.count_nonzero(dims), "anys": lambda x: x.any(dims, keepdim=keep),
    }  # fmt: skip
    jumps: dict[str, Step] = {
        "argmax": lambda x: x.argmax(dims[0], keepdim=keep), "argmin": lambda x: x.argmin(dims[0], keepdim=keep),
        "max": lambda x: x.max(dims[0], keepdim=keep)[0], "max place": lambda x: x.max(dims[0], keepdim=keep)[1],
        "min": lambda x: x.min(dims[0], keepdim=keep)[0], "argmax all": lambda x: x.argmax(),
        "aminmax": lambda x: x.aminmax()[1],
    }  # fmt: skip
    rounding: dict[str, Step] = {
        "mean": lambda x: x.mean(dims, keepdim=keep), "var": lambda x: x.var(dims, keepdim=keep),
        "std": lambda x: x.std(dims, correction=0, keepdim=keep), "logsumexp": lambda x: x.logsumexp(dims, keepdim=keep),
        "norm": lambda x: torch.linalg.vector_norm(x, 2, dims, keepdim=keep),
        "prod": lambda x: x.clamp(-1, 1).prod(dims[0], keepdim=keep),
        "var_mean": lambda x: torch.var_mean(x.nan_to_num(0, 8, -8), dims, correction=0)[1],
        "nansum": lambda x: torch.nansum(x, dims),
    }  # fmt: skip
    if not x.dtype.is_floating_point or r.random() < 0.5:
        name, source, keeps = r.choice(list(plain)), plain, True
    elif d.exact[number] and r.random() < 0.5:
        name, source, keeps = r.choice(list(jumps)), jumps, True
    else:
        name, source, keeps = r.choice(list(rounding)), rounding, False
    if name in ("any", "all", "anys", "count") and not certain:
        return None
    # A half type's sum may round where a value of its size cannot be held.
    return f"{name}{dims}", source[name], (), keeps, False


def normal(d: Drawer, number: int) -> Drawn | None:
    x, r = d.x(number), d.r
    if x.dim() == 0 or not x.dtype.is_floating_point:
        return None
    dim = r.randrange(x.dim())
    made: dict[str, Step] = {
        "softmax": lambda x: torch.softmax(x, dim), "log_softmax": lambda x: torch.log_softmax(x, dim),
        "centred": lambda x: x - x.mean(dim, keepdim=True), "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "normalize": lambda x: F.normalize(x, dim=dim), "rms": lambda x: x * (x * x + 1).mean(dim, keepdim=True).rsqrt(),
        "cumprod": lambda x: (x.clamp(-1, 1) * 0.9).cumprod(dim), "logcumsumexp": lambda x: x.clamp(-5, 5).logcumsumexp(dim),
        "group_norm": lambda x: F.group_norm(x, 1) if x.dim() > 1 else x * 0.7,
    }  # fmt: skip
    name = r.choice(list(made))
    return f"{name} {dim}", made[name], (), False, False


def scan(d: Drawer, number: int) -> Drawn | None:
    x, r = d.x(number), d.r
    if x.dim() == 0:
        return None
    dim = r.randrange(x.dim())
    made: dict[str, Step] = {
        "cumsum": lambda x: x.cumsum(dim), "cummax": lambda x: x.cummax(dim)[0], "sort": lambda x: x.sort(dim)[0],
        "topk": lambda x: x.topk(1, dim)[0], "flip": lambda x: x.flip(dim), "roll": lambda x: x.roll(1, dim),
        "diff": lambda x: x.diff(dim=dim),
        "sort places": lambda x: x.sort(dim, stable=True)[1], "argsort": lambda x: x.argsort(dim, stable=True),
        "kthvalue": lambda x: x.kthvalue(1, dim)[0],
    }  # fmt: skip
    name = r.choice(list(made))
    if not d.exact[number] and name not in ("flip", "roll"):
        return None
    return f"{name} {dim}", made[name], (), True, False


def view(d: Drawer, number: int) -> Drawn | None:
    x, r = d.x(number), d.r
    if x.dim() == 0:
        return "unsqueeze", lambda x: x.unsqueeze(0), (), True, False
    a, b = r.randrange(x.dim()), r.randrange(x.dim())
    at, step, count = r.randint(0, 2), r.choice([1, 1, 2, 3]), r.choice([2, 3])
    order = list(range(x.dim()))
    r.shuffle(order)
    made: dict[str, Step] = {
        f"transpose {a} {b}": lambda x: x.transpose(a, b), "flatten": lambda x: x.reshape(-1),
        f"from {at}:{step}": lambda x: x[at::step],
        f"last from {at}:{step}": lambda x: x[..., at::step], f"unsqueeze {a}": lambda x: x.unsqueeze(a),
        f"select {a}": lambda x: x.select(a, -1),
        f"permute {order}": lambda x: x.permute(order), "rows": lambda x: x.reshape(x.shape[0], -1),
        "squeeze": lambda x: x.squeeze(),
        f"squeeze {a}": lambda x: x.squeeze(a), "diagonal": lambda x: x.diagonal(0, 0, -1) if x.dim() > 1 else x[:1],
        f"unfold {a}": lambda x: x.unfold(a, 2, 1), f"expand {count}": lambda x: x.unsqueeze(0).expand(count, *x.shape),
        f"chunk {a}": lambda x: x.chunk(2, a)[-1], f"split {a}": lambda x: x.split(2, a)[0],
        f"unbind {a}": lambda x: x.unbind(a)[0],
        f"narrow {a}": lambda x: x.narrow(a, 0, 1), f"movedim {a} {b}": lambda x: x.movedim(a, b),
        "tail": lambda x: x[:, -2:] if x.dim() > 1 else x[-2:],
        "merge": lambda x: x.flatten(0, 1) if x.dim() > 1 else x.view(-1, 1), "swap": lambda x: x.transpose(0, -1),
        "none": lambda x: x[None, ..., None], "unflatten": lambda x: x.unflatten(a, (x.shape[a], 1)),
        "minus one": lambda x: x[:-1],
        "broadcast": lambda x: x[:1].expand(x.shape), "strided": lambda x: x.as_strided((2,), (1,)),
    }  # fmt: skip
    name = r.choice(list(made))
    return name, made[name], (), True, False


def layout(d: Drawer, number: int) -> Drawn | None:
    made: dict[str, Step] = {
        "contiguous": lambda x: x.transpose(0, -1).contiguous() if x.dim() else x + 0, "clone": lambda x: x.clone(),
        "repeat": lambda x: x.repeat(2, *[1] * max(x.dim() - 1, 0)), "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
        "pad": lambda x: F.pad(x, (1, 2)), "pad negative": lambda x: F.pad(x, (-1, 1), value=2), "tril": lambda x: x.tril(),
        "triu": lambda x: x.triu(1),
        "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x + 0,
        "reflect": lambda x: F.pad(x, (1, 1), mode="reflect"), "replicate": lambda x: F.pad(x, (2, 1), mode="replicate"),
        "zeros": lambda x: x.new_zeros(x.shape), "full": lambda x: torch.full_like(x, 3), "tile": lambda x: x.tile(2),
        "circular": lambda x: F.pad(x, (1, 0), mode="circular"),
    }  # fmt: skip
    name = d.r.choice(list(made))
    return name, made[name], (), True, False


def together(d: Drawer, number: int) -> Drawn | None:
    x = d.x(number)
    other = d.partner(number, lambda a, b: a.shape == b.shape)
    assert other is not None, "a value has its own shape"
    if x.dim() == 0:
        return "stack", lambda a, b: torch.stack([a, b]), (other,), True, False
    dim = d.r.randrange(x.dim())
    made: dict[str, Step] = {
        "cat": lambda a, b: torch.cat([a, b], dim), "stack": lambda a, b: torch.stack([a, b], dim),
        "cat three": lambda a, b: torch.cat([a, b, a], dim),
        "slice_scatter": lambda a, b: torch.slice_scatter(a, b[:1].to(a.dtype), 0, 0, 1),
        "cat row": lambda a, b: torch.cat([a[:1], b]),
        "select_scatter": lambda a, b: torch.select_scatter(a, b[0].to(a.dtype), 0, -1),
        "where": lambda a, b: torch.where(a.bool(), a, b),
    }  # fmt: skip
    name = d.r.choice(list(made))
    if name == "where" and not d.exact[number]:
        return None
    return f"{name} {dim}", made[name], (other,), True, False


def index(d: Drawer, number: int) -> Drawn | None:
    x, r = d.x(number), d.r
    if x.dim() == 0 or x.shape[0] == 0:
        return None
    dim = r.randrange(x.dim())
    if x.shape[dim] == 0:
        return None
    size = x.shape[dim]
    places = torch.tensor([r.randrange(size) for _ in range(r.randint(1, 5))])
    signed = torch.tensor([r.randrange(-x.shape[0], x.shape[0]) for _ in range(3)])
    first, last = int(places[0]), r.randrange(max(x.shape[-1], 1))
    rows = torch.tensor([[r.randrange(x.shape[0]) for _ in range(2)] for _ in range(2)])

    def along(x: torch.Tensor) -> torch.Tensor:
        shape = [1] * x.dim()
        shape[dim] = len(places)
        return places.reshape(shape).expand([len(places) if k == dim else n for k, n in enumerate(x.shape)])

    made: dict[str, Step] = {
        "rows": lambda x: x[signed], "index_select": lambda x: x.index_select(dim, places), "table": lambda x: x[rows],
        "gather": lambda x: x.gather(dim, along(x)), "take_along": lambda x: torch.take_along_dim(x, along(x), dim),
        "index_add": lambda x: x.index_add(dim, places, torch.ones_like(x.index_select(dim, places)), alpha=2),
        "index_copy": lambda x: x.index_copy(dim, places[:1], x.index_select(dim, places[:1]) * 0),
        "index_fill": lambda x: x.index_fill(dim, places, 2),
        "scatter_add": lambda x: x.scatter_add(dim, along(x), x.gather(dim, along(x))),
        "scatter": lambda x: x.scatter(dim, torch.full_like(along(x), first), 3),
        "index_put": lambda x: x.index_put((signed[:1],), x[signed[:1]] + 1),
        "accumulate": lambda x: x.index_put((signed,), torch.ones_like(x[signed]), accumulate=True),
        "embedding": lambda x: F.embedding(rows, x),
        "scatter_reduce": lambda x: x.scatter_reduce(dim, along(x), x.gather(dim, along(x)), "amax"),
        "pairs": lambda x: x[signed[:2], ..., last],
    }  # fmt: skip
    name = r.choice(list(made))
    return f"{name} {dim} {places.tolist()} {signed.tolist()}", made[name], (), True, False


def in_place(d: Drawer, number: int) -> Drawn | None:
    x, r = d.x(number), d.r
    if overlapping(x):
        return None
    other = d.partner(number, lambda a, b: apart_or_one(a, b) and broadcast(a, b) and broadcast_shape(a, b) == a.shape)
    plain: dict[str, Step] = {
        "zero_": lambda x: x.zero_(), "fill_": lambda x: x.fill_(1), "mul_": lambda x: x.mul_(2), "add_": lambda x: x.add_(1),
        "relu_": lambda x: x.relu_(), "neg_": lambda x: x.neg_(), "clamp_": lambda x: x.clamp_(-1, 2),
        "first row": lambda x: x[:1].mul_(2),
        "last column": lambda x: x[..., -1].add_(1), "every other": lambda x: x[::2].fill_(2),
        "turned": lambda x: x.transpose(0, -1).sub_(1),
        "abs_": lambda x: x.abs_(), "set row": lambda x: x.__setitem__(0, 1) or x,
        "set tail": lambda x: x.__setitem__((..., slice(1, None)), 2) or x,
        "diagonal": lambda x: x.diagonal(0, 0, -1).add_(1), "masked_fill_": lambda x: x.masked_fill_(x == 1, 3),
        "flat": lambda x: x.view(-1)[1:].mul_(2), "turned over": lambda x: x.sub_(x.flip(0)),
        "rolled": lambda x: x.copy_(x.roll(1, 0) + 1), "transposed": lambda x: x.add_(x.t().clone()),
        "row from row": lambda x: x.__setitem__(0, x[-1] + 1) or x, "one for all": lambda x: x.mul_(x.select(0, 0).clone()),
        "mask": lambda x: x.__setitem__(x == 0, 2) or x, "shifted": lambda x: x[1:].copy_(x[:-1].clone()),
        "swapped": lambda x: x.copy_(torch.cat([x[1:], x[:1]])), "cumulated": lambda x: x.copy_(x.cumsum(0)),
        "out": lambda x: torch.neg(x, out=x),
    }  # fmt: skip
    if other is None or r.random() < 0.5:
        name = r.choice(list(plain))
        if name in ("masked_fill_", "mask") and not d.exact[number]:
            return None
        return name, plain[name], (), True, True
    two: dict[str, Step] = {
        "add_": lambda a, b: a.add_(b), "mul_": lambda a, b: a.mul_(b), "copy_": lambda a, b: a.copy_(b),
        "sub_": lambda a, b: a.sub_(b),
        "row copy_": lambda a, b: a[:1].copy_(b[:1]), "set": lambda a, b: a.__setitem__((..., slice(0, 1)), b[..., :1]) or a,
    }  # fmt: skip
    name = r.choice(list(two))
    return name, two[name], (other,), True, True


def convert(d: Drawer, number: int) -> Drawn | None:
    x, r = d.x(number), d.r
    target = r.choice((*FLOATS, torch.int64, torch.int32, torch.bool, torch.float32, torch.int8))
    if not target.is_floating_point and x.dtype.is_floating_point and not (d.exact[number] and bool(x.isfinite().all())):
        return None
    if target is torch.int8 and x.numel() and x.dtype is not torch.bool and float(x.double().abs().max()) > 100:
        return None
    narrow = target in (torch.float16, torch.bfloat16)
    return f"to {str(target)[6:]}", lambda x: x.to(target), (), not narrow or exactly_held(x.to(target)), False


def sizes(d: Drawer, number: int) -> Drawn | None:
    made: dict[str, Step] = {
        "times size": lambda x: x * x.shape[0], "arange": lambda x: torch.arange(x.shape[-1]) + x.new_zeros(x.shape[-1]),
        "numel": lambda x: x.sum() / x.numel(),
        "half": lambda x: x[: x.shape[0] // 2], "eye": lambda x: torch.eye(x.shape[0]) * 2,
        "linspace": lambda x: x + torch.ones(x.shape),
        "pairs": lambda x: x.reshape(-1, 2),
        "positions": lambda x: x + torch.arange(x.shape[0]).reshape(-1, *[1] * (x.dim() - 1)),
    }  # fmt: skip
    if d.x(number).dim() == 0:
        return None
    name = d.r.choice(list(made))
    return name, made[name], (), name != "numel", False


def product(d: Drawer, number: int) -> Drawn | None:
    x = d.x(number)
    if x.dim() < 2 or not x.dtype.is_floating_point:
        return None
    if x.dim() > 2:
        name = d.r.choice(["batches", "einsum", "linear"])
        made: dict[str, Step] = {
            "batches": lambda x: (x @ x.mT).tanh(), "einsum": lambda x: torch.einsum("...ij,...kj->...ik", x, x).tanh(),
            "linear": lambda x: F.linear(x, torch.full((3, x.shape[-1]), 0.25, dtype=x.dtype), x.new_ones(3)).relu(),
        }  # fmt: skip
        return name, made[name], (), False, False
    other = d.partner(number, lambda a, b: b.dim() == 2 and b.shape[0] == a.shape[1] and b.dtype is a.dtype)
    if other is None:
        return "gram", lambda x: x @ x.t(), (), x.dtype is torch.float32, False
    return "matmul", lambda a, b: (a @ b).tanh(), (other,), False, False


def spatial(d: Drawer, number: int) -> Drawn | None:
    """Layers over images: three or four dimensions."""
    x, r = d.x(number), d.r
    if x.dim() not in (3, 4) or not x.dtype.is_floating_point or x.numel() == 0:
        return None
    kernel, stride, padding = r.choice([1, 2, 3]), r.choice([1, 2]), r.choice([0, 1])
    made: dict[str, Step] = {
        "max_pool": lambda x: F.max_pool2d(x, kernel, stride, min(padding, kernel // 2)),
        "avg_pool": lambda x: F.avg_pool2d(x, kernel, stride, min(padding, kernel // 2), count_include_pad=r_flag),
        "adaptive": lambda x: F.adaptive_avg_pool2d(x, (2, 2)), "adaptive max": lambda x: F.adaptive_max_pool2d(x, 2),
        "conv": lambda x: F.conv2d(x, x.new_full((2, x.shape[-3], kernel, kernel), 0.25), None, stride, padding),
        "depthwise": lambda x: F.conv2d(
            x, x.new_full((x.shape[-3], 1, kernel, kernel), 0.5), None, stride, padding, 1, x.shape[-3]
        ),
        "nearest": lambda x: F.interpolate(x if x.dim() == 4 else x[None], scale_factor=2),
        "bilinear": lambda x: F.interpolate(x if x.dim() == 4 else x[None], size=(3, 5), mode="bilinear"),
        "batch_norm": lambda x: F.batch_norm(x, None, None, training=True), "shuffle": lambda x: F.pixel_unshuffle(x, 2),
        "instance_norm": lambda x: F.instance_norm(x), "lp_pool": lambda x: F.lp_pool2d(x, 2, kernel),
    }  # fmt: skip
    r_flag = r.random() < 0.5
    name = r.choice(list(made))
    keeps = name in ("max_pool", "adaptive max", "nearest", "shuffle")
    return f"{name} {kernel} {stride} {padding}", made[name], (), keeps, False


RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.5), "rand_like": lambda x: x + torch.rand_like(x),
    "randn": lambda x: x * torch.randn(x.shape[-1:], dtype=x.dtype), "bernoulli": lambda x: x * torch.bernoulli(x * 0 + 0.5),
    "randint": lambda x: x + torch.randint(0, 3, x.shape), "uniform": lambda x: torch.empty_like(x).uniform_(-1, 1) + x,
}  # fmt: skip


def drawn_numbers(d: Drawer, number: int) -> Drawn | None:
    """Random numbers, in eager's order: `results` seeds the generator."""
    name = d.r.choice(list(RANDOM))
    return (name, RANDOM[name], (), False, False) if d.x(number).dtype.is_floating_point else None


KINDS: dict[str, Callable[[Drawer, int], Drawn | None]] = {
    "pointwise": pointwise, "pointwise more": pointwise, "binary": binary, "binary more": binary, "reduction": reduction,
    "reduction more": reduction, "normal": normal, "scan": scan, "view": view, "view more": view, "layout": layout,
    "together": together, "index": index, "in place": in_place, "convert": convert, "sizes": sizes, "product": product,
    "beside numbers": beside_numbers, "spatial": spatial, "random": drawn_numbers,
}  # fmt: skip


def tape(seed: int) -> Tape:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Drawer(seed).draw()
