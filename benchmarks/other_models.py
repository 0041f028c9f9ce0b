"""The programs of `--more`: other people's models beside those of the dev list, small and with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.programs import MORE, Arguments, Program

_TEXT: Arguments = {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                    "intermediate_size": 96, "max_position_embeddings": 64}
_KEYS: Arguments = {"num_key_value_heads": 2}
_EXPERTS: Arguments = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}

#: Language models of transformers: the config's class less "Config", and what its small configuration has beyond _TEXT.
_LANGUAGE_MODELS: dict[str, Arguments] = {
    "Olmo2": _KEYS, "Qwen3": _KEYS | {"head_dim": 16}, "Phi": {}, "Gemma2": _KEYS | {"head_dim": 16}, "Granite": _KEYS,
    "StableLm": _KEYS, "GPTNeoX": {}, "Qwen2Moe": _KEYS | _EXPERTS | {"shared_expert_intermediate_size": 48},
}
_ENCODERS = ("Roberta", "Electra", "MPNet", "RoFormer")


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, 200, (batch, length))


def _masked(batch: int) -> Arguments:
    mask = torch.ones(batch, 24, dtype=torch.long)
    mask[0, -5:] = 0
    return {"input_ids": _ids(batch, 24), "attention_mask": mask}


def _program(module: nn.Module, inputs: Any) -> Program:
    return Program(module.eval(), inputs, (2, 3, 4), module)


def _transformer(kind: str, head: str, options: Arguments) -> Program:
    import transformers as hf

    config = getattr(hf, f"{kind}Config")(**_TEXT, pad_token_id=0, bos_token_id=1, eos_token_id=2, **options)
    return _program(getattr(hf, f"{kind}{head}")(config), _masked)


def _vision(module: str, name: str, options: Arguments) -> Program:
    import importlib

    model = getattr(importlib.import_module(f"vit_pytorch.{module}"), name)(num_classes=5, **options)
    return _program(model, lambda batch: {"img": torch.randn(batch, 3, 64, 64)})


def _decoder(options: Arguments) -> Program:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, **options)
    model = TransformerWrapper(num_tokens=200, max_seq_len=32, attn_layers=layers)
    return _program(model, lambda batch: {"x": _ids(batch, 24)})


def _graph_network(name: str) -> Program:
    import torch_geometric.nn as networks

    def inputs(nodes: int) -> Arguments:
        return {"x": torch.randn(nodes, 8), "edge_index": torch.randint(0, nodes, (2, 4 * nodes))}

    model = getattr(networks, name)(8, 16, 2, 5).eval()
    return Program(model, inputs, (32, 48, 64), model)


_PATCHES: Arguments = {"image_size": 64, "patch_size": 16, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64}

for _kind, _options in _LANGUAGE_MODELS.items():
    MORE[f"hf_{_kind.lower()}_lm"] = lambda kind=_kind, options=_options: _transformer(kind, "ForCausalLM", options)
for _kind in _ENCODERS:
    MORE[f"hf_{_kind.lower()}"] = lambda kind=_kind: _transformer(kind, "Model", {})
for _module, _name, _options in (
    ("vit", "ViT", _PATCHES), ("simple_vit", "SimpleViT", _PATCHES), ("deepvit", "DeepViT", _PATCHES),
    ("parallel_vit", "ViT", _PATCHES), ("vit_for_small_dataset", "ViT", _PATCHES),
):
    MORE[f"vit_{_module}"] = lambda m=_module, n=_name, options=_options: _vision(m, n, options)
for _name, _options in (
    ("alibi", {"alibi_pos_bias": True}), ("xpos", {"rotary_xpos": True}), ("rel_pos", {"rel_pos_bias": True}),
    ("macaron", {"macaron": True}),
    ("softclamp", {"attn_softclamp_logits": True}),
):
    MORE[f"xt_{_name}"] = lambda options=_options: _decoder(options)
for _name in ("GraphSAGE", "GIN", "EdgeCNN"):
    MORE[f"pyg_{_name.lower()}"] = lambda name=_name: _graph_network(name)
