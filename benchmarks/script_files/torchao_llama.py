"""A small Llama whose weights torchao quantised to int8, compiled; each step reads 64 tokens."""

import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128)).eval()
quantize_(model, Int8WeightOnlyConfig())
model = torch.compile(model, fullgraph=True)
tokens = torch.randint(0, 1000, (4, 64))
with torch.no_grad():
    for step in range(30):
        logits = model(input_ids=tokens, use_cache=False).logits
        print(f"step {step} logits {logits.square().mean().item():.6f}", flush=True)
        tokens = torch.cat([tokens[:, 1:], logits[:, -1:].argmax(-1)], 1)
