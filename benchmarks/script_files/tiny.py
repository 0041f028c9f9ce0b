"""A linear model, compiled, four steps: the shortest script that the command can be tried on."""

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
forward = torch.compile(model, dynamic=False)
for step in range(4):
    loss = forward(torch.randn(16, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")
