"""`python -m fxjit demo`: the handwritten digits of scikit-learn, learned by two small networks three ways.

Eager, fxjit and torch.compile start from the same weights and see the same batches; their steps take turns, so that
the machine's moods hit all alike. The table says how long the first step took (both compilers with cold caches),
what a step costs, what was captured, and what was learned: the losses must agree.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fxjit
from fxjit import config, events
from fxjit.errors import FxjitError

#: Largest difference of two losses that still counts as float32 rounding, after some hundred steps of feedback.
LOSS_TOLERANCE = 2e-3


class ConvNet(nn.Module):
    """Images (N, 1, 8, 8) to ten scores."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 16, 128), nn.GELU(), nn.Linear(128, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))  # type: ignore[no-any-return]  # modules return Any


class Block(nn.Module):
    """Pre-norm attention and MLP over (N, tokens, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.softmax(q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]  # modules return Any


class AttentionNet(nn.Module):
    """Images (N, 1, 8, 8) as sixteen 2 x 2 patches, to ten scores."""

    def __init__(self, width: int = 64, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.position = nn.Parameter(torch.zeros(1, 16, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = images.unfold(2, 2, 2).unfold(3, 2, 2).reshape(images.shape[0], 16, 4)
        x = self.embed(patches) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))  # type: ignore[no-any-return]  # modules return Any


MODELS: dict[str, Callable[[], nn.Module]] = {"convolution": ConvNet, "attention": AttentionNet}


@dataclass
class Contender:
    """One way of running one model, and what was measured of it."""

    name: str
    model: nn.Module
    call: Callable[[torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    graphs: int = 0
    breaks: int = 0
    recompiles: int = 0
    accuracy: float = 0.0

    @property
    def first_step(self) -> float:
        """Seconds to the first step's end."""
        return self.step_seconds[0]

    @property
    def step_ms(self) -> float:
        """Median milliseconds of the later steps."""
        return statistics.median(self.step_seconds[2:] or self.step_seconds) * 1e3

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Forward, backward and update on one batch, timed."""
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.call(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        self.optimizer.step()
        self.losses.append(loss.item())
        self.step_seconds.append(time.perf_counter() - start)


def load_digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images and labels, test images and labels: float32 (N, 1, 8, 8) in [0, 1], int64 (N,)."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise FxjitError("the demo needs scikit-learn for its data: pip install 'fxjit[demo]'") from error
    data: Any = load()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return images[train], labels[train], images[test], labels[test]


def contenders(make: Callable[[], nn.Module], names: Sequence[str]) -> Iterator[Contender]:
    """The same weights once for each way."""
    torch.manual_seed(0)
    template = make()
    for name in names:
        model = copy.deepcopy(template)
        call: Any = model
        if name == "fxjit":
            call = fxjit.compile(model)
        elif name == "torch.compile":
            call = torch.compile(model)
        yield Contender(name, model, call, torch.optim.AdamW(model.parameters(), lr=1e-3))


def train(model_name: str, names: Sequence[str], steps: int, batch: int, show: Callable[[str], None]) -> list[Contender]:
    """Train every contender for `steps` steps, taking turns."""
    images, labels, test_images, test_labels = load_digits()
    field_ = list(contenders(MODELS[model_name], names))
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        chosen = torch.randint(len(images), (batch,), generator=generator)
        turn = field_ if step == 0 else [*field_[step % len(field_):], *field_[:step % len(field_)]]
        for contender in turn:
            if step == 0:
                show(f"{model_name}: first step, {contender.name} ...")
            _counted_step(contender, images[chosen], labels[chosen])
        losses = "  ".join(f"{contender.name} {contender.losses[-1]:.4f}" for contender in field_)
        show(f"{model_name}: step {step + 1}/{steps}  loss: {losses}")
    for contender in field_:
        contender.model.eval()
        with torch.no_grad():
            contender.accuracy = (contender.model(test_images).argmax(1) == test_labels).float().mean().item()
    return field_


def _counted_step(contender: Contender, images: torch.Tensor, labels: torch.Tensor) -> None:
    """One step; what our own events say about it is added to the contender's counts."""
    def count(event: events.Event) -> None:
        contender.graphs += isinstance(event, events.FrameCompiled) and event.graph is not None
        contender.breaks += isinstance(event, events.GraphBreak)
        contender.recompiles += isinstance(event, events.Recompiled)

    with events.listen(count):
        contender.step(images, labels)
    if contender.name == "torch.compile":
        theirs = _torch_counters()
        contender.graphs, contender.breaks, contender.recompiles = theirs


def _torch_counters() -> tuple[int, int, int]:
    """Graphs, breaks and recompiles as torch.compile counts them, since the process began."""
    their_utils: Any = sys.modules.get("torch._dynamo.utils")
    if their_utils is None:
        return 0, 0, 0
    counts = their_utils.counters
    return (counts["stats"]["unique_graphs"] - _torch_before[0], sum(counts["graph_break"].values()) - _torch_before[1],
            sum(counts["recompiles"].values()) - _torch_before[2] if "recompiles" in counts else 0)


_torch_before = [0, 0, 0]

COLUMNS = ("", "first step, s", "ms a step", "graphs", "breaks", "recompiles", "final loss", "test accuracy")


def table(results: dict[str, list[Contender]]) -> str:
    """The results as aligned text."""
    rows = [COLUMNS]
    for model_name, field_ in results.items():
        for one in field_:
            captured = ("-",) * 3 if one.name == "eager" else (str(one.graphs), str(one.breaks), str(one.recompiles))
            rows.append((f"{model_name}, {one.name}", f"{one.first_step:.2f}", f"{one.step_ms:.2f}", *captured,
                         f"{one.losses[-1]:.5f}", f"{one.accuracy:.1%}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                       for i, (cell, width) in enumerate(zip(row, widths, strict=True))) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def disagreements(results: dict[str, list[Contender]]) -> list[str]:
    """Sentences about losses that differ from eager's by more than rounding; empty when all agree."""
    found = []
    for model_name, field_ in results.items():
        eager = field_[0]
        for other in field_[1:]:
            worst = max(abs(a - b) for a, b in zip(eager.losses, other.losses, strict=True))
            if worst > LOSS_TOLERANCE:
                found.append(f"{model_name}: the losses of {other.name} and eager differ by up to {worst:.2e}")
    return found


def plot(results: dict[str, list[Contender]], path: str) -> None:
    """Loss curves and step times, as a picture."""
    try:
        import matplotlib
    except ImportError as error:
        raise FxjitError("--plot needs matplotlib: pip install 'fxjit[demo]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(results), figsize=(6 * len(results), 7), squeeze=False)
    for column, (model_name, field_) in enumerate(results.items()):
        styles = {"eager": ("-", "C0"), "fxjit": ("--", "C1"), "torch.compile": (":", "C2")}
        for one in field_:
            style, colour = styles[one.name]
            axes[0][column].plot(one.losses, style, color=colour, label=one.name, linewidth=2)
        axes[0][column].set(title=f"{model_name}: loss", xlabel="step", ylabel="cross entropy", yscale="log")
        axes[0][column].legend()
        bars = axes[1][column].bar([one.name for one in field_], [one.step_ms for one in field_],
                                   color=[styles[one.name][1] for one in field_])
        axes[1][column].bar_label(bars, [f"{one.step_ms:.1f} ms\nfirst {one.first_step:.1f} s" for one in field_])
        axes[1][column].set(title=f"{model_name}: a step", ylabel="ms (median)")
        axes[1][column].margins(y=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 when every loss agrees with eager's."""
    parser = argparse.ArgumentParser(prog="python -m fxjit demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="training steps of each model (default 200)")
    parser.add_argument("--batch", type=int, default=128, help="images a step (default 128)")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--without-torch-compile", action="store_true", help="only eager and fxjit")
    parser.add_argument("--plot", metavar="FILE", help="write a picture of losses and step times")
    options = parser.parse_args(arguments)
    if options.steps < 1 or options.batch < 1:
        parser.error("--steps and --batch must be at least 1")
    names = ["eager", "fxjit"] if options.without_torch_compile else ["eager", "fxjit", "torch.compile"]
    results: dict[str, list[Contender]] = {}
    with tempfile.TemporaryDirectory(prefix="fxjit-demo-") as folder, config.patch(cache_dir=f"{folder}/fxjit"):
        config.set_environment(TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor", TORCHINDUCTOR_FX_GRAPH_CACHE="0")
        for model_name in options.models:
            _torch_before[:] = [a + b for a, b in zip(_torch_before, _torch_counters(), strict=True)]
            results[model_name] = train(model_name, names, options.steps, options.batch, _progress)
    _progress("")
    print(table(results))
    if options.plot:
        plot(results, options.plot)
        print(f"picture: {options.plot}")
    wrong = disagreements(results)
    print("\n".join(wrong) if wrong else "All losses agree with eager's to rounding.")
    return 1 if wrong else 0


def _progress(text: str) -> None:
    """One line that is written over, on a terminal; every fiftieth step elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K" + text)
        sys.stderr.flush()
    elif "first step" in text or ("0/" in text and text.split("step ")[-1].split("/")[0].endswith("50")):
        print(text, file=sys.stderr)
