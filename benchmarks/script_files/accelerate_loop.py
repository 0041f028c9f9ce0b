"""A vision transformer in accelerate's training loop, compiled by `dynamo_backend`, with accumulated gradients."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTConfig, ViTForImageClassification, get_linear_schedule_with_warmup

set_seed(0)
accelerator = Accelerator(cpu=True, dynamo_backend="inductor", gradient_accumulation_steps=2)
config = ViTConfig(
    hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, image_size=64, patch_size=8,
    num_labels=10)
model = ViTForImageClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = DataLoader(TensorDataset(torch.randn(16 * 30, 3, 64, 64), torch.randint(0, 10, (16 * 30,))), batch_size=16)
schedule = get_linear_schedule_with_warmup(optimizer, 5, 30)
model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
for step, (images, labels) in enumerate(data):
    with accelerator.accumulate(model):
        loss = model(pixel_values=images, labels=labels).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(f"step {step} loss {accelerator.gather(loss).item():.6f}", flush=True)
