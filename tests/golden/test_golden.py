"""Six small graphs through every stage, as text, in one file each: what a change does to the stages shows up in its diff.

`pytest tests/golden --update-golden` writes the files anew; read the diff before it is committed. The text does not depend on
the machine: two threads are pinned, and what depends on the processor (flags, the prelude with its vector functions) is in no
stage's text. Nor does it depend on the Python. Another torch may capture or decompose a graph differently: a stage is held to
its file where the stage before it is as in the file, so a torch whose ATen graph is another is held to nothing after it. The
files are those of the newest torch that fxjit supports, where every stage is compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxjit
from fxjit.backends.native.replay.record import read_record
from fxjit.backends.native.replay.stages import STAGES, graph_text, replay

FOLDER = Path(__file__).parent
NEWEST = "2.13"


def pointwise(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Broadcasting, a constant, a choice: one kernel."""
    return torch.where(x > 0, x.sin() * row, row - 1.5)


def normalized(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Reductions over rows, and what is computed from them."""
    return F.layer_norm(x.relu(), (16,), weight, bias) + x.amax(-1, keepdim=True)


def loss(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A product, a pointwise function and a mean, with their derivatives."""
    return ((F.gelu(x @ weight) - target) ** 2).mean()


def indexed(table: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Loads and stores at computed places."""
    return table[index].cumsum(0) + torch.zeros_like(table).index_add(0, index, values)[index]


def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """An input that is written to, and views."""
    x.mul_(2).add_(y.t())
    return torch.cat([x, y.t()], 1)[:, 2:].reshape(-1)


def pooled(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """A convolution, which ATen runs, and what joins behind it."""
    return F.max_pool2d(F.conv2d(image, kernel).relu(), 2) * 0.5


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "pointwise": (pointwise, lambda: (torch.randn(8, 16), torch.randn(16))),
    "normalized": (normalized, lambda: (torch.randn(8, 16), torch.ones(16), torch.zeros(16))),
    "loss": (loss, lambda: (torch.randn(4, 8), nn.Parameter(torch.randn(8, 16)), torch.randn(4, 16))),
    "indexed": (indexed, lambda: (torch.randn(6, 16), torch.tensor([1, 0, 3, 1]), torch.randn(4, 16))),
    "written": (written, lambda: (torch.randn(4, 6), torch.randn(6, 4))),
    "pooled": (pooled, lambda: (torch.randn(1, 2, 8, 8), torch.randn(4, 2, 3, 3))),
}


def stages_of(fn: Callable[..., Any], args: tuple[torch.Tensor, ...], folder: Path) -> dict[str, str]:
    """The text of each stage, by its title, in order."""
    native, texts = fxjit.lookup_backend("native"), dict[str, str]()

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        texts["captured"] = graph_text(gm)
        return native(gm, inputs)

    fxjit.reset()
    with fxjit.config.patch(debug_dir=str(folder)):
        result = fxjit.compile(fn, backend=backend, fullgraph=True)(*args)
        if result.requires_grad:
            result.sum().backward()
    for name in ("inference", "forward", "backward"):
        for file in folder.glob(f"*/aten_{name}.json"):
            found = replay(read_record(file.read_text())).texts
            for stage in STAGES:
                same = stage == "passes" and found["passes"] == found["aten"]
                texts[f"{name}: {stage}"] = "as before\n" if same else found[stage]
    return texts


def written_out(texts: dict[str, str]) -> str:
    return "\n".join(f"==== {title} ====\n{text.rstrip()}\n" for title, text in texts.items())


def read_in(text: str) -> dict[str, str]:
    parts = re.split(r"(?m)^==== (.*) ====\n", text)
    return {title: body.rstrip() for title, body in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_the_stages_of(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    fn, make = CASES[name]
    torch.manual_seed(0)
    with fxjit.config.patch(num_threads=2):
        texts = stages_of(fn, make(), tmp_path)
    file = FOLDER / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        file.write_text(written_out(texts), encoding="utf-8")
    expected, actual = read_in(file.read_text(encoding="utf-8")), read_in(written_out(texts))
    before = ""
    for title, text in actual.items():
        if before.endswith(("captured", "aten", "passes")) and actual[before] != expected.get(before):
            pytest.skip(f"{title} is made from another {before} than in {file.name}")
        if title == "captured" or title.endswith("aten"):
            assert text == expected.get(title) or not torch.__version__.startswith(NEWEST), title
        else:
            assert text == expected.get(title), title
        before = title
    assert list(actual) == list(expected)


def test_each_file_has_a_case() -> None:
    assert {file.stem for file in FOLDER.glob("*.txt")} == set(CASES)
