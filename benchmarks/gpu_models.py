"""Models of the sizes that people run on a GPU, with random weights in bfloat16: what `python -m benchmarks.gpu` times last.

Each is run by eager, fxjit and torch.compile, and by both compilers under CUDA graphs (`reduce-overhead`), in turns. Beside the
time of a call there are the seconds of the first one, the peak of memory above what was held before the call, how far results
are from eager's, and the kernels that took most of the GPU's time, by torch's profiler.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from benchmarks import real_models
from benchmarks.gpu_calls import Call, compiler, synchronize, warm_calls
from benchmarks.real_models import Part, UNet, VisionTransformer

#: (module, arguments of a call) for a batch of that size.
Builder = Callable[[int], tuple[nn.Module, tuple[Any, ...]]]
#: way -> (compiler, mode)
WAYS = {
    "eager": ("eager", None), "fxjit": ("fxjit", "default"), "torch.compile": ("torch.compile", "default"),
    "fxjit, graphs": ("fxjit", "reduce-overhead"), "torch.compile, graphs": ("torch.compile", "reduce-overhead"),
}  # fmt: skip
#: Kernels of each way that are kept of a profile.
LARGEST = 15


def bert_base(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import BertConfig, BertModel

    return Part(BertModel(BertConfig()), "last_hidden_state"), (torch.randint(3, 30522, (batch, 128)),)


def gpt2(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return Part(GPT2LMHeadModel(GPT2Config()), use_cache=False), (torch.randint(3, 50257, (batch, 256)),)


def llama_config() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                       num_key_value_heads=8, max_position_embeddings=2048)


def llama_1b(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import LlamaForCausalLM

    return Part(LlamaForCausalLM(llama_config()), use_cache=False), (torch.randint(3, 32000, (batch, 256)),)


def resnet50(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    return real_models.resnet50()[0], (torch.randn(batch, 3, 224, 224),)


def vit_base(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    return VisionTransformer(768, 12, 12), (torch.randn(batch, 3, 224, 224),)


def unet(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    return UNet(64), (torch.randn(batch, 3, 128, 128),)


MODELS: dict[str, Builder] = {each.__name__: each for each in (bert_base, gpt2, llama_1b, resnet50, vit_base, unet)}
#: Of those that a GPU machine need have transformers for.
OF_TRANSFORMERS = ("bert_base", "gpt2", "llama_1b")


FEW = ["eager", "fxjit", "torch.compile"]
#: (model, mode, batch, ways): the longest to compile first. CUDA graphs where a call's part on the processor counts most.
ITEMS: list[tuple[str, str, int, list[str]]] = [
    ("llama_1b", "decoding", 1, list(WAYS)), ("llama_1b", "training", 4, FEW), ("resnet50", "training", 32, FEW),
    ("gpt2", "training", 8, FEW), ("vit_base", "training", 32, FEW), ("bert_base", "training", 32, FEW),
    ("bert_base", "inference", 1, list(WAYS)), ("resnet50", "inference", 1, list(WAYS)), ("llama_1b", "inference", 1, FEW),
    ("resnet50", "inference", 32, FEW), ("bert_base", "inference", 32, FEW), ("gpt2", "inference", 8, FEW),
    ("vit_base", "inference", 32, FEW), ("unet", "training", 8, FEW), ("unet", "inference", 8, FEW),
]  # fmt: skip


def items(device: str) -> list[dict[str, Any]]:
    """What `work_real` is asked for: all of it on a GPU, as far as the packages are there; a small one on a processor."""
    if device == "cpu":
        return [{"name": "unet", "mode": mode, "batch": 1, "ways": FEW[:2]} for mode in ("inference", "training")]
    there = find_spec("transformers") is not None
    return [{"name": name, "mode": mode, "batch": batch, "ways": ways} for name, mode, batch, ways in ITEMS
            if there or name not in OF_TRANSFORMERS]  # fmt: skip


def made(name: str, batch: int, device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model in bfloat16, and its arguments, on the device."""
    torch.manual_seed(0)
    module, arguments = MODELS[name](batch)
    for each in module.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0
    kind = torch.bfloat16
    module = module.to(device, kind)
    return module, tuple(x.to(device, kind) if x.is_floating_point() else x.to(device) for x in arguments)


def inference(fn: Any, module: nn.Module, arguments: tuple[Any, ...]) -> Call:
    def call() -> Any:
        with torch.no_grad():
            return fn(*arguments)

    return call


def training(fn: Any, module: nn.Module, arguments: tuple[Any, ...]) -> Call:
    """A step: forward, backward and AdamW, which is eager's for each way."""
    optimizer = torch.optim.AdamW(module.parameters(), 1e-4)

    def call() -> Any:
        optimizer.zero_grad()
        loss = fn(*arguments).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return call


def decoding(fn: Any, module: nn.Module, device: str) -> Call:
    """A token a call, over a static cache of 512 places of which half are filled."""
    from transformers import StaticCache

    cache = StaticCache(config=llama_config(), max_cache_len=512)
    with torch.no_grad():
        module(torch.randint(3, 32000, (1, 256), device=device), past_key_values=cache,
               cache_position=torch.arange(256, device=device), use_cache=True)
    token = torch.full((1, 1), 7, device=device)
    place, position = torch.full((1,), 256, device=device), torch.full((1, 1), 256, device=device)

    def call() -> Any:
        with torch.no_grad():
            return fn(token, past_key_values=cache, cache_position=place, position_ids=position, use_cache=True).logits

    return call


def calls_of(name: str, mode: str, batch: int, ways: list[str], device: str) -> dict[str, Callable[[], Call]]:
    """For each way what makes its call: each has a copy of the model."""
    def make(way: str) -> Call:
        who, how = WAYS[way]
        compile_ = compiler(who, **({"mode": how} if how else {}))
        if mode == "decoding":
            from transformers import LlamaForCausalLM

            torch.manual_seed(0)
            module = LlamaForCausalLM(llama_config()).to(device, torch.bfloat16).eval()
            return decoding(compile_(module), module, device)
        module, arguments = made(name, batch, device)
        module.train(mode == "training")
        return (training if mode == "training" else inference)(compile_(module), module, arguments)

    return {way: lambda way=way: make(way) for way in ways}


def first_calls(makers: dict[str, Callable[[], Call]], row: dict[str, Any], warm_up: int) -> dict[str, Call]:
    """The calls that run, each warm; the row gets their first seconds, and how far they are from eager."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact: list[torch.Tensor] = []

    def begun(way: str, make: Callable[[], Call]) -> Call:
        call = make()
        start = time.perf_counter()
        out = call()
        synchronize(device)
        row.setdefault("first", {})[way] = time.perf_counter() - start
        exact.append(out.detach().double())
        row.setdefault("from eager", {})[way] = float((exact.pop() - exact[0]).norm() / exact[0].norm()) if exact[1:] else 0.0
        return call

    return warm_calls(row, {way: functools.partial(begun, way, make) for way, make in makers.items()}, device, warm_up)


def peak_of(call: Call) -> int:
    """Bytes that a call needs above what is held before it."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def profile_of(call: Call) -> dict[str, Any]:
    """Microseconds of the GPU in a call, and of its largest kernels with how often each ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    rows = [(each.key[:90], each.count, each.self_device_time_total) for each in seen.key_averages()]
    rows = [row for row in rows if row[2]]
    rows.sort(key=lambda row: -row[2])
    return {"total": sum(row[2] for row in rows), "count": sum(row[1] for row in rows), "kernels": rows[:LARGEST]}
