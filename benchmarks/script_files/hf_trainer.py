"""A small Llama under Hugging Face's Trainer with `torch_compile=True`."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(0)
config = LlamaConfig(
    vocab_size=1000, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128)
rows = torch.randint(0, 1000, (240, 64))
data = [{"input_ids": row, "labels": row} for row in rows]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, torch_compile=True, use_cpu=True, max_steps=30, per_device_train_batch_size=8, logging_steps=1,
        report_to="none", save_strategy="no", disable_tqdm=True)
    Trainer(LlamaForCausalLM(config), arguments, train_dataset=data).train()
