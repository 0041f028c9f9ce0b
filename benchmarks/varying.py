"""Models whose sizes vary from call to call: images with other sides, sequences of other lengths, other batches.

    python -m benchmarks.varying --only resnet50,bert --modes inference,training --threads 1,2

Each row is a process of its own. All ways are called with the sizes of a first batch and then with those of a second one,
which is measured: eagerly, compiled for its sizes alone (`fixed`), by the graph with symbols that the second batch made
(`varying`), and by torch.compile's such graph. Times are the processor's, the shortest of calls that took turns; the seconds of
the first two calls are the clock's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .timing import markdown, measured_beside

Inputs = tuple[Any, ...]
Case = tuple[Callable[[], nn.Module], Callable[[], Inputs], Callable[[], Inputs]]
WAYS = ("eager", "fixed", "varying", "torch")


def _image(*sizes: int) -> Callable[[], Inputs]:
    return lambda: (torch.randn(sizes[0], 3, *sizes[1:]),)


def _images_of(build: Callable[[], nn.Module], first: tuple[int, ...] = (2, 128, 128),
               second: tuple[int, ...] = (3, 160, 192)) -> Case:  # fmt: skip
    return build, _image(*first), _image(*second)


def _timm(name: str) -> Case:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False)

    return _images_of(build)


def _efficientnetbn() -> nn.Module:
    from monai.networks.nets import EfficientNetBN

    return EfficientNetBN("efficientnet-b0", pretrained=False, in_channels=3)


def _manet() -> nn.Module:
    import segmentation_models_pytorch as smp

    return smp.MAnet("resnet18", encoder_weights=None)


def _unet() -> nn.Module:
    from monai.networks.nets import UNet

    return UNet(2, 3, 2, (16, 32, 64, 128), (2, 2, 2), num_res_units=2)


def _segresnet() -> nn.Module:
    from monai.networks.nets import SegResNet

    return SegResNet(2, 16, 3, 2)


class Logits(nn.Module):
    """A model of transformers, and of what it gives the first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids, return_dict=False)[0]  # type: ignore[no-any-return]  # a tensor


def _transformer(name: str) -> Case:
    def build() -> nn.Module:
        import transformers

        sizes: dict[str, Any] = {"vocab_size": 1000}
        if name == "GPT2":
            sizes |= {"n_embd": 256, "n_layer": 4, "n_head": 4}
        else:
            sizes |= {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
        config = getattr(transformers, f"{name}Config")(**sizes, use_cache=False)
        return Logits(getattr(transformers, f"{name}Model")(config))

    return build, lambda: (torch.randint(1000, (2, 48)),), lambda: (torch.randint(1000, (3, 112)),)


class Recurrent(nn.Module):
    """Layers over sequences, and what they give at each step."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers = kind(64, 128, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]  # type: ignore[no-any-return]  # a tensor


def _recurrent(kind: type[nn.RNNBase]) -> Case:
    return lambda: Recurrent(kind), lambda: (torch.randn(4, 20, 64),), lambda: (torch.randn(5, 50, 64),)


CASES: dict[str, Case] = {
    "resnet50": _timm("resnet50"), "convnext_atto": _timm("convnext_atto"), "efficientnet_b0": _timm("efficientnet_b0"),
    "mobilenetv3_small_100": _timm("mobilenetv3_small_100"), "tinynet_a": _timm("tinynet_a"),
    "nextvit_small": _timm("nextvit_small"), "rdnet_tiny": _timm("rdnet_tiny"), "efficientvit_m0": _timm("efficientvit_m0"),
    "monai_efficientnetbn": _images_of(_efficientnetbn), "monai_unet": _images_of(_unet),
    "monai_segresnet": _images_of(_segresnet), "smp_manet": _images_of(_manet),
    "bert": _transformer("Bert"), "gpt2": _transformer("GPT2"), "llama": _transformer("Llama"),
    "lstm": _recurrent(nn.LSTM), "gru": _recurrent(nn.GRU),
}  # fmt: skip


def call_of(fn: Callable[..., torch.Tensor], model: nn.Module, inputs: Inputs, training: bool) -> Callable[[], object]:
    """What is measured: a call, or one and its derivatives."""

    def trained() -> None:
        model.zero_grad()
        made = fn(*inputs)
        (made if isinstance(made, torch.Tensor) else made[0]).square().mean().backward()  # type: ignore[no-untyped-call]

    def inferred() -> object:
        with torch.no_grad():
            return fn(*inputs)

    return trained if training else inferred


def measure(name: str, mode: str, ways: list[str], turns: int) -> dict[str, Any]:
    """The milliseconds of each way's call, and the seconds of its first two."""
    build, first, second = CASES[name]
    training = mode == "training"
    torch.manual_seed(0)
    model = build().train(training)
    one, two = first(), second()
    calls, row = {}, {}
    for way in ways:
        if way == "torch":
            fn: Any = torch.compile(model)
        elif way == "eager":
            fn = model
        else:
            import fxjit

            fn = fxjit.compile(model, dynamic=False if way == "fixed" else None)
        for number, inputs in enumerate((two,) if way == "fixed" else (one, two)):
            start = time.perf_counter()
            call_of(fn, model, inputs, training)()
            row[f"{way}_call_{number + 1}"] = time.perf_counter() - start
        calls[way] = call_of(fn, model, two, training)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns + 2):
        for way, call in calls.items():
            start = time.process_time()
            call()
            if turn >= 2:
                times[way].append(time.process_time() - start)
    return row | {way: min(each) * 1e3 for way, each in times.items()}


def table(rows: dict[str, dict[str, float]], ways: list[str]) -> str:
    """Times eager's speed, and the seconds of the first two calls."""
    lines = []
    for name, row in rows.items():
        speeds = [f"{row['eager'] / row[way]:.2f}" for way in ways if way != "eager"]
        firsts = [f"{row[f'{way}_call_1']:.1f} / {row[f'{way}_call_2']:.1f}" for way in ways if way in ("varying", "torch")]
        lines.append((name, f"{row['eager']:.1f}", *speeds, *firsts))
    head = ("model", "eager, ms", *(way for way in ways if way != "eager"))
    return markdown((*head, *(f"calls 1 / 2, {way}, s" for way in ways if way in ("varying", "torch"))), lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only models whose name contains one of these, with commas")
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--turns", type=int, default=9, help="calls of each way")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    ways = options.ways.split(",")
    if options.worker:
        name, mode, threads = options.worker.split(":")
        torch.set_num_threads(int(threads))
        print(json.dumps(measure(name, mode, ways, options.turns)))
        return
    rows = {}
    for name in (each for each in CASES if any(part in each for part in options.only.split(","))):
        for mode in options.modes.split(","):
            for threads in options.threads.split(","):
                command = [sys.executable, "-m", "benchmarks.varying", "--worker", f"{name}:{mode}:{threads}",
                           "--ways", options.ways, "--turns", str(options.turns)]  # fmt: skip
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(name, mode, threads, done.stderr[-1500:], file=sys.stderr)
                    continue
                rows[f"{name}, {mode}, {threads}"] = json.loads(done.stdout.splitlines()[-1])
                print(table(rows, ways).splitlines()[-1], flush=True)
    print("\n" + table(rows, ways) + "\n\n" + measured_beside())


if __name__ == "__main__":
    main()
