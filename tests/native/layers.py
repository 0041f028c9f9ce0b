"""More kinds of steps for the random graphs of graphs.py: layers with weights, images, losses, attention, choice of elements,
special functions, regions of autocast and without gradients, writes through views and by places, many tensors at once.

What rounds is only given finite numbers here; what jumps, numbers computed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Step = Callable[..., Any]
Drawn = tuple[str, Step, tuple[int, ...], bool, bool]
#: graphs.Drawer, of a module that is loaded by its path.
Drawer = Any


def weight(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """Multiples of 1/8 around zero, in the type of x."""
    return ((torch.arange(math.prod(shape)) * 5 % 7 - 3) / 8).to(x.dtype).reshape(shape)


def rounds(x: torch.Tensor) -> bool:
    return x.dtype.is_floating_point and bool(x.isfinite().all())


def layer(d: Drawer, number: int) -> Drawn | None:
    """Products with weights, attention, normalisations with weights."""
    x, r = d.x(number), d.r
    if x.dim() < 2 or not rounds(x) or x.numel() == 0:
        return None
    if x.shape[-1] > 300 or x.shape[-2] > 300:
        return None
    n, wide, causal = x.shape[-1], r.choice([1, 3, 8, 16]), r.random() < 0.5

    def heads(x: torch.Tensor) -> torch.Tensor:
        q = x.unflatten(-1, (-1, 2)).transpose(-2, -3)
        out = F.scaled_dot_product_attention(q, q, q, is_causal=causal)
        return out.transpose(-2, -3).flatten(-2)

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        scores = x @ x.mT / math.sqrt(n)
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(~mask, -math.inf).softmax(-1) @ x

    def gated(x: torch.Tensor) -> torch.Tensor:
        a, b = F.linear(x, weight(x, 2 * wide, n)).chunk(2, -1)
        return F.silu(a) * b

    def recurrent(x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[:-1])
        for k in range(min(n, 4)):
            h = (x[..., k] * 0.5 + h * 0.25).tanh()
        return h

    made: dict[str, Step] = {
        "linear": lambda x: F.linear(x, weight(x, wide, n), weight(x, wide)),
        "linear gelu": lambda x: F.gelu(F.linear(x, weight(x, wide, n), weight(x, wide)), approximate="tanh"),
        "residual": lambda x: F.linear(F.relu(x), weight(x, n, n)) * 0.5 + x,
        "addmm": lambda x: torch.addmm(weight(x, wide), x.flatten(0, -2), weight(x, n, wide), beta=0.5, alpha=2),
        "mv": lambda x: x @ weight(x, n), "from the left": lambda x: weight(x, wide, x.shape[-2]) @ x,
        "tensordot": lambda x: torch.tensordot(x, weight(x, n, wide, 2), 1),
        "outer": lambda x: torch.outer(x.flatten(), weight(x, 3)),
        "baddbmm": lambda x: torch.baddbmm(weight(x, x.shape[-2], 1), x.flatten(0, -3), weight(x, 1, n, wide).expand(
            x.flatten(0, -3).shape[0], n, wide)) if x.dim() > 2 else x.addmv(weight(x, x.shape[0]), weight(x, n))[:, None],
        "einsum": lambda x: torch.einsum("...ij,jk->...ki", x, weight(x, n, wide)), "heads": heads, "by hand": by_hand,
        "gated": gated,
        "attention": lambda x: F.scaled_dot_product_attention(x, x * 0.5, x + 1, is_causal=causal),
        "masked attention": lambda x: F.scaled_dot_product_attention(x, x, x, weight(x, x.shape[-2], x.shape[-2]) > -0.3),
        "biased attention": lambda x: F.scaled_dot_product_attention(x, x, x, weight(x, x.shape[-2], x.shape[-2])),
        "layer_norm": lambda x: F.layer_norm(x, (n,), weight(x, n), weight(x, n) + 1), "recurrent": recurrent,
        "rms_norm": lambda x: F.rms_norm(x, (n,), weight(x, n)), "two norms": lambda x: F.layer_norm(x, x.shape[-2:]),
        "group_norm": lambda x: F.group_norm(x, x.shape[1], weight(x, x.shape[1])), "glu": lambda x: F.glu(x, -1),
        "batch_norm": lambda x: F.batch_norm(x, weight(x, x.shape[1]), weight(x, x.shape[1]).abs() + 1, weight(x, x.shape[1])),
        "softmax of sum": lambda x: (x + weight(x, n)).softmax(-1, dtype=torch.float32),
        "prelu": lambda x: F.prelu(x, weight(x, x.shape[1])),
        "bilinear": lambda x: F.bilinear(x[..., :9], x[..., :9], weight(x, 2, min(n, 9), min(n, 9))),
    }  # fmt: skip
    name = r.choice(list(made))
    return f"{name} {wide} {causal}", made[name], (), False, False


def image(d: Drawer, number: int) -> Drawn | None:
    x, r = d.x(number), d.r
    if x.dim() < 2 or not rounds(x) or x.numel() == 0:
        return None
    kernel, stride, padding, dilation = r.choice([1, 2, 3]), r.choice([1, 2]), r.choice([0, 1]), r.choice([1, 1, 2])
    out, mode, corners = r.choice([1, 2, 6]), r.choice(["bilinear", "bicubic"]), r.random() < 0.5
    channels, channels1 = x.shape[-3] if x.dim() > 2 else 1, x.shape[-2]
    groups = r.choice([k for k in (1, 1, 2, 3) if channels % k == 0])
    last = r.random() < 0.3

    def plane(x: torch.Tensor) -> torch.Tensor:
        """Four dimensions."""
        x = x.reshape(-1, *x.shape[-3:]) if x.dim() > 2 else x[None, None]
        return x.contiguous(memory_format=torch.channels_last) if last else x

    def row(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, *x.shape[-2:])

    def conv(x: torch.Tensor) -> torch.Tensor:
        w = weight(x, out * groups, channels // groups, kernel, kernel)
        return F.conv2d(plane(x), w, weight(x, out * groups), stride, padding, dilation, groups)

    def normed(x: torch.Tensor) -> torch.Tensor:
        y = conv(x)
        return F.relu(F.batch_norm(y, weight(x, y.shape[1]), weight(x, y.shape[1]).abs() + 0.5))

    scale = {"align_corners": corners, "mode": mode}
    made: dict[str, Step] = {
        "conv": conv, "conv relu": lambda x: F.relu(conv(x)), "conv norm": normed, "conv silu": lambda x: F.silu(conv(x)) * 2,
        "conv1d": lambda x: F.conv1d(row(x), weight(x, out, channels1, kernel), None, stride, padding, dilation),
        "conv3d": lambda x: F.conv3d(plane(x)[:, None], weight(x, out, 1, 1, kernel, kernel), None, stride, padding),
        "transposed": lambda x: F.conv_transpose2d(plane(x), weight(x, channels, out, kernel, kernel), weight(x, out), stride),
        "transposed1d": lambda x: F.conv_transpose1d(row(x), weight(x, channels1, out, kernel), None, stride),
        "unfold": lambda x: F.unfold(plane(x), kernel, dilation, padding, stride),
        "fold": lambda x: F.fold(F.unfold(plane(x), kernel, 1, padding, stride), x.shape[-2:], kernel, 1, padding, stride),
        "interpolate": lambda x: F.interpolate(plane(x), scale_factor=2, **scale),
        "smaller": lambda x: F.interpolate(plane(x), (3, 2), **scale),
        "linear": lambda x: F.interpolate(row(x), size=7, mode="linear", align_corners=corners),
        "nearest-exact": lambda x: F.interpolate(plane(x), size=(5, 3), mode="nearest-exact"),
        "area": lambda x: F.interpolate(plane(x), size=(2, 3), mode="area"),
        "pixel_shuffle": lambda x: F.pixel_shuffle(plane(x), 2),
        "max_pool1d": lambda x: F.max_pool1d(row(x), kernel, stride),
        "avg_pool1d": lambda x: F.avg_pool1d(row(x), kernel, stride),
        "adaptive1d": lambda x: F.adaptive_avg_pool1d(row(x), 3),
        "avg_pool3d": lambda x: F.avg_pool3d(plane(x), kernel, stride),
        "ceil": lambda x: F.avg_pool2d(plane(x), kernel, stride, ceil_mode=True),
        "max ceil": lambda x: F.max_pool2d(plane(x), kernel, stride, dilation=dilation, ceil_mode=True),
        "local": lambda x: F.local_response_norm(plane(x), 2), "pad": lambda x: F.pad(plane(x), (1, 0, 2, 1)) * 2,
        "reflect": lambda x: F.pad(plane(x), (1, 0, 0, 1), mode="reflect"),
        "padded conv": lambda x: conv(F.pad(plane(x), (0, 1, 0, 1))),
        "squeezed": lambda x: plane(x) * plane(x).mean((2, 3), keepdim=True).sigmoid(),
        "channel mean": lambda x: plane(x) - plane(x).mean(1, keepdim=True),
        "dropped": lambda x: F.avg_pool2d(plane(x), 2)[..., ::2],
    }  # fmt: skip
    name = r.choice(list(made))
    return f"{name} {kernel} {stride} {padding} {dilation} {out} {groups} {mode} {corners} {last}", made[name], (), False, False


def loss(d: Drawer, number: int) -> Drawn | None:
    x, r = d.x(number), d.r
    if x.dim() == 0 or not rounds(x) or x.numel() == 0:
        return None
    how = r.choice(["mean", "sum", "none"])
    labels = torch.tensor([r.randrange(x.shape[1]) for _ in range(x.shape[0])]) if x.dim() == 2 else None

    def target(x: torch.Tensor) -> torch.Tensor:
        return weight(x, *x.shape)

    made: dict[str, Step] = {
        "mse": lambda x: F.mse_loss(x, target(x), reduction=how), "l1": lambda x: F.l1_loss(x, target(x), reduction=how),
        "smooth_l1": lambda x: F.smooth_l1_loss(x, target(x), reduction=how),
        "huber": lambda x: F.huber_loss(x, target(x), reduction=how),
        "bce": lambda x: F.binary_cross_entropy_with_logits(x, target(x).abs(), reduction=how),
        "kl": lambda x: F.kl_div(x.log_softmax(-1), target(x).softmax(-1), reduction=how),
        "soft_margin": lambda x: F.soft_margin_loss(x, target(x).sign(), reduction=how),
        "poisson": lambda x: F.poisson_nll_loss(x.clamp(max=3), target(x).abs(), reduction=how),
        "gaussian": lambda x: F.gaussian_nll_loss(x, target(x), target(x).abs() + 1, reduction=how),
        "hinge": lambda x: F.hinge_embedding_loss(x, target(x).sign(), reduction=how),
        "cosine": lambda x: F.cosine_similarity(x, target(x) + 1, -1),
        "binary": lambda x: F.binary_cross_entropy(x.sigmoid(), target(x).abs()),
        "distance": lambda x: F.pairwise_distance(x, target(x) + 5),
        "soft cross": lambda x: F.cross_entropy(x, target(x).softmax(-1)),
    }  # fmt: skip
    if labels is not None:
        made |= {
            "cross": lambda x: F.cross_entropy(x, labels, reduction=how),
            "smoothed": lambda x: F.cross_entropy(x, labels, weight(x, x.shape[1]).abs() + 0.1, label_smoothing=0.1),
            "ignoring": lambda x: F.cross_entropy(x, labels, ignore_index=int(labels[0]), reduction="sum"),
            "nll": lambda x: F.nll_loss(x.log_softmax(1), labels, reduction=how),
            "multi_margin": lambda x: F.multi_margin_loss(x, labels, reduction=how),
        }
    name = r.choice(list(made))
    return f"{name} {how}", made[name], (), False, False


def choice(d: Drawer, number: int) -> Drawn | None:
    """Places and elements by value and by place: exact."""
    x, r = d.x(number), d.r
    if x.dim() == 0 or x.numel() == 0 or (x.dtype.is_floating_point and not d.exact[number]) or x.dtype is torch.bool:
        return None
    if x.dtype.is_floating_point and bool(x.isnan().any()):
        return None
    dim, top = r.randrange(x.dim()), r.choice([1, 2, 3])
    size, last = x.shape[dim], x.shape[-1]
    i = torch.tensor([r.randrange(x.shape[0]) for _ in range(3)])
    j = torch.tensor([r.randrange(-last, last) for _ in range(3)])
    row = torch.tensor([r.randrange(size) for _ in range(3)])

    def along(x: torch.Tensor) -> torch.Tensor:
        places = row.reshape([3 if k == dim else 1 for k in range(x.dim())])
        return places.expand([3 if k == dim else n for k, n in enumerate(x.shape)])

    made: dict[str, Step] = {
        "topk": lambda x: x.topk(min(top, size), dim)[0], "smallest": lambda x: x.topk(min(top, size), dim, largest=False)[0],
        "topk at": lambda x: (lambda v, k: x.gather(dim, k) - v)(*x.topk(min(top, size), dim)),
        "cummin": lambda x: x.cummin(dim)[0],
        "descending": lambda x: x.sort(dim, descending=True)[0],
        "stable": lambda x: x.sort(dim, descending=True, stable=True)[1],
        # Of elements that lie on each other eager's median is memory as it is found.
        "median": lambda x: x.contiguous().median(dim)[0], "msort": lambda x: x.msort(),
        "kthvalue": lambda x: x.kthvalue(min(2, size), dim)[0],
        "cummax at": lambda x: x.cummax(dim)[1], "max and at": lambda x: (
            lambda v, k: v + (x.gather(dim, k) - v))(*x.max(dim, keepdim=True)),
        "bucketize": lambda x: torch.bucketize(x, torch.tensor([-2.0, 0.0, 0.5, 2.0])),
        "bucketize right": lambda x: torch.bucketize(x, torch.tensor([-2.0, 0.0, 0.5, 2.0]), right=True),
        "searchsorted": lambda x: torch.searchsorted(x.flatten().sort()[0], x),
        "isin": lambda x: torch.isin(x, torch.tensor([0, 1, 2])),
        "one_hot": lambda x: F.one_hot(x.long().clamp(0, 4), 5),
        "table": lambda x: torch.arange(12).reshape(6, 2)[x.long().clamp(0, 5)],
        "embedding": lambda x: F.embedding(x.long().clamp(0, 5), weight(torch.zeros(()), 6, 3)),
        "bag": lambda x: F.embedding_bag(x.reshape(1, -1).long().clamp(0, 5), weight(torch.zeros(()), 6, 4), mode="sum"),
        "two places": lambda x: x[i, ..., j] if x.dim() > 1 else x[j], "row and places": lambda x: x[1:, ..., j],
        "index_put": lambda x: x.index_put((i,), x[i] * 0),
        "at both": lambda x: x.index_put((i, j), x.new_ones(()), True) if x.dim() == 2 else -x,
        "mask": lambda x: x.index_put((x > 1,), x.new_zeros(())), "masked": lambda x: x[x > 0],
        "nonzero": lambda x: x.nonzero(),
        "masked_select": lambda x: x.masked_select(x < 1), "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flatten()),
        "take": lambda x: x.take(row), "put": lambda x: x.put(row[:1], x.new_full((1,), 3)),
        "trace": lambda x: x.trace() if x.dim() == 2 else -x,
        "diag_embed": lambda x: x[..., :30].diag_embed(), "rot90": lambda x: x.rot90(1, (0, -1)),
        "diff": lambda x: x.diff(n=2, dim=dim),
        "mean of": lambda x: x.scatter_reduce(dim, along(x), x.gather(dim, along(x)) * 2, "sum", include_self=False),
        "amin of": lambda x: x.scatter_reduce(dim, along(x), x.gather(dim, along(x)) - 1, "amin"),
        "index_reduce": lambda x: x.index_reduce(dim, row, x.index_select(dim, row) + 1, "amax"),
        "where places": lambda x: torch.where(torch.arange(last) % 2 == 0, x, -x),
        "tensor_split": lambda x: torch.cat(x.tensor_split(3, dim)[::-1], dim),
        "meshgrid": lambda x: torch.meshgrid(x.flatten()[:5], x.flatten()[:4], indexing="ij")[0],
        "stairs": lambda x: x[..., :50] @ torch.ones(min(last, 50), 50).tril().to(x.dtype),
        "windows": lambda x: x.unfold(dim, min(2, size), 1).amax(-1), "prefix": lambda x: x.cumsum(dim) - x,
        "backwards": lambda x: x.flip(dim).cumsum(dim).flip(dim),
        "vander": lambda x: torch.vander(x.flatten()[:4].clamp(-1, 2), 3),
        "trapezoid": lambda x: torch.trapezoid(x, dim=dim) * 2,
        "histogram": lambda x: torch.zeros(7).index_add(0, x.flatten().long().clamp(0, 6), torch.ones(x.numel())),
        "grouped": lambda x: torch.zeros(4, dtype=x.dtype).scatter_add(0, x.flatten().long().clamp(0, 3), x.flatten()),
        "unique": lambda x: x.unique(), "counted": lambda x: torch.bincount(x.flatten().long().clamp(0, 9)),
        "equal all": lambda x: (x == x.flip(dim)).all(dim),
    }  # fmt: skip
    name = r.choice(list(made))
    return f"{name} {dim} {top} {i.tolist()} {j.tolist()} {row.tolist()}", made[name], (), True, False


SPECIAL: dict[str, Step] = {
    "expm1": lambda x: torch.expm1(x.clamp(max=3)), "exp2": lambda x: torch.exp2(x.clamp(max=5)),
    "log2": lambda x: (x.abs() + 1).log2(),
    "log10": lambda x: (x.abs() + 1).log10(), "lgamma": lambda x: (x.abs() + 1).lgamma(),
    "digamma": lambda x: (x.abs() + 1).digamma(),
    "erfinv": lambda x: (x.clamp(-2, 2) / 3).erfinv(), "erfc": torch.erfc, "sinc": torch.sinc,
    "i0": lambda x: torch.i0(x.clamp(-3, 3)),
    "asinh": torch.asinh, "acosh": lambda x: (x.abs() + 1.5).acosh(), "atanh": lambda x: (x.clamp(-2, 2) / 3).atanh(),
    "asin": lambda x: (x.clamp(-2, 2) / 3).asin(), "sinh": lambda x: x.clamp(-3, 3).sinh(),
    "cosh": lambda x: x.clamp(-3, 3).cosh(),
    "entr": lambda x: torch.special.entr(x.abs() + 0.25), "ndtr": torch.special.ndtr,
    "xlog1py": lambda x: torch.special.xlog1py(x, x.abs()),
    "deg2rad": torch.deg2rad, "selu": F.selu, "celu": F.celu, "hardsigmoid": F.hardsigmoid, "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign, "softshrink": F.softshrink, "float_power": lambda x: (x.abs() + 0.5).float_power(0.5),
    "logaddexp2": lambda x: torch.logaddexp2(x, -x),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "pow tensor": lambda x: 2 ** x.clamp(-3, 3),
    "rsqrt eps": lambda x: torch.rsqrt(x * x + 1e-5),
    "std_mean": lambda x: (x - x.mean()) / (x.std() + 1), "quantile": lambda x: x.float().flatten()[:99].quantile(0.3),
    "softmin": lambda x: F.softmin(x, -1),
    "rfft": lambda x: torch.fft.rfft(x.float()).abs(), "fft": lambda x: torch.fft.ifft(torch.fft.fft(x.float()) * 0.5).real,
    "polar": lambda x: torch.view_as_real(torch.polar(x.float().abs() + 1, x.float())),
    "complex times": lambda x: (torch.complex(x.float(), x.float() + 1) * 2j).real,
    "rotary": lambda x: x * x.cos() + torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1) * x.sin(),
    "autocast": lambda x: autocast(x, torch.bfloat16), "autocast half": lambda x: autocast(x, torch.float16),
    "without gradient": lambda x: without(x),
    "detached": lambda x: x * 0.3 + x.detach().sin(), "inner gradient": lambda x: x.sin() * (x > x.mean().detach() - 100),
    "checked": lambda x: chain(x),
    "cdist": lambda x: torch.cdist(x[..., :50, :].float(), x[..., :50, :].float() + 7) if x.dim() > 1 else x * 0.1,
    "dist": lambda x: torch.dist(x, x * 0.5 + 1),
    "norm": lambda x: torch.linalg.norm(x.float()), "norm 1": lambda x: torch.linalg.vector_norm(x, 1, -1),
    "renorm": lambda x: x / (x.norm(dim=-1, keepdim=True) + 1),
    "count": lambda x: x.sum(-1, dtype=torch.float64), "mean of float": lambda x: x.mean(dtype=torch.float32),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "corrcoef": lambda x: torch.cov(x.flatten(1)[:50]) if x.dim() > 1 else x.var(), "grid": lambda x: sampled(x),
}  # fmt: skip


def autocast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    with torch.autocast("cpu", dtype=dtype):
        y = x @ weight(x, x.shape[-1], 3)
        y = F.linear(y * 0.5, weight(y, 4, 3))
    return y.float() + 1


def without(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.sigmoid() * 2
    return y * 0.3


def chain(x: torch.Tensor) -> torch.Tensor:
    """A long chain that reads its beginning again."""
    y = x
    for k in range(12):
        y = (y * 0.9 + x / (k + 2)).clamp(-50, 50)
    return y


def sampled(x: torch.Tensor) -> torch.Tensor:
    plane = x.reshape(1, 1, -1, x.shape[-1])
    grid = torch.stack(torch.meshgrid(torch.linspace(-0.9, 0.8, 3), torch.linspace(-0.7, 0.9, 4), indexing="ij"), -1)
    return F.grid_sample(plane, grid[None].to(x.dtype), align_corners=False)


def special(d: Drawer, number: int) -> Drawn | None:
    if not rounds(d.x(number)):
        return None
    name = d.r.choice(list(SPECIAL))
    return name, SPECIAL[name], (), False, False


INTEGERS_TOGETHER: dict[str, Step] = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "shift": lambda a, b: a << (b & 3),
    "gcd": torch.gcd,
    "floordiv": lambda a, b: a // (b.abs() + 1), "remainder": lambda a, b: a % (b.abs() + 1), "mean": lambda a, b: (a + b) / 2,
    "bit": lambda a, b: (a >> (b & 1)) & 1, "compare": lambda a, b: (a > b) ^ (a == b),
    "lcm": lambda a, b: torch.lcm(a & 7, b & 7),
    "divmod": lambda a, b: a // (b | 1) * (b | 1) + a % (b | 1), "product": lambda a, b: a * b - a,
}  # fmt: skip


def many(d: Drawer, number: int) -> Drawn | None:
    """Several tensors at once, of several types."""
    x, r = d.x(number), d.r
    other = d.partner(number, lambda a, b: a.shape == b.shape)
    third = d.partner(number, lambda a, b: a.shape == b.shape)
    assert other is not None and third is not None, "a value has its own shape"
    if r.random() < 0.3 and not any(d.x(k).dtype.is_floating_point for k in (number, other)):
        name = r.choice(list(INTEGERS_TOGETHER) if torch.bool not in (x.dtype, d.x(other).dtype) else ["and", "or", "xor"])
        return name, INTEGERS_TOGETHER[name], (other,), True, False
    if x.dim() == 0:
        return "stack three", lambda a, b, c: torch.stack([a, b, c, a]), (other, third), True, False
    dim = r.randrange(x.dim())
    made: dict[str, Step] = {
        "cat five": lambda a, b, c: torch.cat([a, b, c, b, a], dim), "hstack": lambda a, b, c: torch.hstack([a, b, c]),
        "dstack": lambda a, b, c: torch.dstack([a, b, c]), "stack": lambda a, b, c: torch.stack([a, b, c], -1).flatten(-2),
        "cat parts": lambda a, b, c: torch.cat([a[1:], b[:1], c[:2]]),
        "cat of none": lambda a, b, c: torch.cat([a.new_zeros(0), b, c], dim),
        "cat added": lambda a, b, c: torch.cat([a + 1, b * 2, c], dim),
        "block": lambda a, b, c: torch.block_diag(a, b, c) if a.dim() == 2 and a.numel() < 2000 else a + b + c,
        "sum": lambda a, b, c: sum([a, b, c]) + 1,
        "wide": lambda a, b, c: torch.cat([a.repeat(1, 1), b, c], dim) if a.dim() < 3 else a * 2 + b + c,
        "swapped": lambda a, b, c: torch.cat([*torch.cat([a, b], dim).chunk(2, dim)][::-1], dim) + torch.cat([c, c], dim),
        "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=2) if a.dtype is b.dtype is c.dtype else a + b,
        "outer sum": lambda a, b, c: a[:20].unsqueeze(0) + b[:20].unsqueeze(1),
        "where": lambda a, b, c: torch.where(torch.arange(a.shape[-1]) < 2, a, b) + c,
        "interleaved": lambda a, b, c: torch.stack([a, b], dim + 1).flatten(dim, dim + 1),
        "one of": lambda a, b, c: torch.stack([a, b, c])[1],
        "foreach": lambda a, b, c: sum(torch._foreach_mul([a, b, c], 2)),
        "einsum": lambda a, b, c: torch.einsum("...,...->...", a, b) - c,
        "differences": lambda a, b, c: (a[..., :40].unsqueeze(-2) - b[..., :30].unsqueeze(-1)).abs().sum(-1),
        "padded": lambda a, b, c: F.pad(torch.cat([a, b], dim), (0, 1)).narrow(-1, 0, 1),
    }  # fmt: skip
    name = r.choice(list(made))
    return f"{name} {dim}", made[name], (other, third), True, False


def written(d: Drawer, number: int, overlapping: Callable[[torch.Tensor], bool]) -> Drawn | None:
    """Writes through views of views, by places, by masks, in scans."""
    x, r = d.x(number), d.r
    if x.dim() == 0 or x.numel() == 0 or overlapping(x):
        return None
    dim = r.randrange(x.dim())
    size = x.shape[dim]
    places = torch.tensor(sorted(r.sample(range(size), min(2, size))))
    made: dict[str, Step] = {
        "cumsum_": lambda x: x.cumsum_(dim), "tril_": lambda x: x.tril_(), "fill_diagonal_": lambda x: x.fill_diagonal_(2),
        "index_add_": lambda x: x.index_add_(dim, places, torch.ones_like(x.index_select(dim, places))),
        "index_fill_": lambda x: x.index_fill_(dim, places, 1),
        "index_copy_": lambda x: x.index_copy_(dim, places, x.index_select(dim, places) * 2),
        "index_put_": lambda x: x.index_put_((torch.tensor([0, -1]),), x[:1] * 0, accumulate=True),
        "chunk": lambda x: x.chunk(2, dim)[-1].zero_(),
        "view of view": lambda x: x.movedim(dim, 0)[1:].select(-1, 0).mul_(2), "detach": lambda x: x.detach().add_(1),
        "halves": lambda x: halves(x, dim),
        "first is last": lambda x: x.select(dim, 0).copy_(x.select(dim, -1)),
        "fill part": lambda x: x.narrow(dim, 0, (size + 1) // 2).fill_(3),
        "twice": lambda x: x.add_(1).mul_(2), "rows swapped": lambda x: x.__setitem__([0, -1], x[[-1, 0]]) or x,
        "unsqueezed": lambda x: x.unsqueeze(dim).squeeze().sub_(1),
        "lerp_": lambda x: x.lerp_(x + 1, 0.5) if x.dtype.is_floating_point else x.add_(2),
        "addcmul_": lambda x: x.addcmul_(x, x.clamp(-1, 1)), "foreach": lambda x: foreach(x),
        "scatter_": lambda x: x.scatter_(dim, torch.zeros_like(x.narrow(dim, 0, 1), dtype=torch.int64), 2),
        "augmented": lambda x: augmented(x), "unbound": lambda x: x.unbind(dim)[0].add_(3),
        "every third": lambda x: x.flatten().view(-1)[::3].add_(1) if not x.is_contiguous() else x.view(-1)[::3].add_(1),
        "where": lambda x: x.copy_(torch.where(torch.arange(x.shape[-1]) > 1, x, 2)),
        "copied from wide": lambda x: x.copy_(torch.ones(x.shape[-1], dtype=torch.float64)),
        "expanded": lambda x: x.copy_(x[:1].clone().expand(x.shape)),
        "windows": lambda x: x.copy_(F.pad(x, (1, 0))[..., :-1]), "set": lambda x: x.__setitem__((0, ..., -1), 2) or x,
    }  # fmt: skip
    name = r.choice(list(made))
    return f"{name} {dim} {places.tolist()}", made[name], (), True, True


def halves(x: torch.Tensor, dim: int) -> torch.Tensor:
    a, b = x.tensor_split(2, dim)
    a.add_(1)
    b.mul_(2)
    return x


def foreach(x: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([x[:1], x[1:]], 1)
    return x


def augmented(x: torch.Tensor) -> torch.Tensor:
    x[0] += 1
    x[..., :2] *= 2
    return x


def kinds(overlapping: Callable[[torch.Tensor], bool]) -> dict[str, Callable[[Drawer, int], Drawn | None]]:
    return {
        "layer": layer, "layer more": layer, "image": image, "image more": image, "loss": loss, "choice": choice,
        "choice more": choice,
        "special": special, "special more": special, "many": many, "written": lambda d, number: written(d, number, overlapping),
    }  # fmt: skip
