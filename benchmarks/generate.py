"""`python -m benchmarks.generate`: the loop of `generate` of transformers (which has to be installed), a token a call.

A GPT-2 of 124 million parameters and a Llama of 75 million, random weights, take a prompt of 32 tokens and write 64, greedily,
with their cache as it is, which grows, and with one of a fixed size (`cache_implementation="static"`). `model.forward` is
compiled, as transformers' pages say. The tokens have to be eager's. A first `generate` compiles the prompt's graph, the first
token's, and what varying lengths compile anew.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fxjit
from benchmarks.timing import first_call, markdown, measured_beside

PROMPT, WRITTEN = 32, 64


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config())


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12,
                                        num_key_value_heads=4, vocab_size=32000, max_position_embeddings=1024))


MODELS: dict[str, Callable[[], nn.Module]] = {"GPT-2 124M": gpt2, "Llama, 8 layers of 768": llama}
CACHES: dict[str, dict[str, str]] = {"as it is": {}, "static": {"cache_implementation": "static"}}


class DifferentTokensError(Exception):
    """A compiled model wrote other tokens than eager's."""


def writer(model: nn.Module, cache: str, tokens: int) -> Callable[[], torch.Tensor]:
    """`generate` for one prompt; it always writes so many tokens."""
    prompt = torch.randint(5, 30000, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0,
                               "disable_compile": True, **CACHES[cache]}
    return lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)  # type: ignore[operator]


def compiled(model: nn.Module, compiler: Callable[[Any], Any]) -> nn.Module:
    model = copy.deepcopy(model)
    model.forward = compiler(model.forward)  # type: ignore[method-assign]
    return model


def measured(name: str, cache: str, arguments: argparse.Namespace) -> tuple[str, ...]:
    """A row of the table; eager first, whose tokens are the right ones."""
    torch.manual_seed(0)
    dtype = getattr(torch, arguments.dtype)
    model = MODELS[name]().eval().to(dtype)
    models = {"eager": model, "fxjit": compiled(model, fxjit.compile)}
    if not arguments.without_torch_compile:
        models["torch"] = compiled(model, torch.compile)
    ways = {way: writer(each, cache, arguments.tokens) for way, each in models.items()}
    expected = ways["eager"]()
    firsts = {way: first_call(write) for way, write in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(arguments.turns):
        for way, write in ways.items():
            start = time.perf_counter()
            found = write()
            times[way].append(time.perf_counter() - start)
            if not torch.equal(found, expected):
                raise DifferentTokensError(f"{name}, cache {cache}: {way} wrote {found.tolist()}, eager {expected.tolist()}")
    each = {way: statistics.median(found) / arguments.tokens * 1e3 for way, found in times.items()}
    torch_compile = "torch" in ways
    return (name, cache, f"{each['eager']:.1f}", f"{each['eager'] / each['torch']:.2f}x" if torch_compile else "-",
            f"{each['eager'] / each['fxjit']:.2f}x", f"{each['torch'] / each['fxjit']:.2f}x" if torch_compile else "-",
            f"{firsts['torch']:.1f}" if torch_compile else "-", f"{firsts['fxjit']:.1f}")


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only the models whose name contains this")
    parser.add_argument("--tokens", type=int, default=WRITTEN, help="written by each call")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--without-torch-compile", action="store_true")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    if importlib.util.find_spec("transformers") is None:
        raise SystemExit("benchmarks.generate needs transformers (pip install transformers)")
    rows = [measured(name, cache, arguments) for name in MODELS if arguments.only in name for cache in CACHES]
    print(markdown(("model", "cache", "eager, ms a token", "torch.compile over eager", "fxjit over eager",
                    "fxjit over torch.compile", "first generate, s: torch.compile", "fxjit"), rows))
    print(measured_beside())


if __name__ == "__main__":
    main()
