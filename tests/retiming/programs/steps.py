"""Four steps that a program names, launch-bound: the first has a start-up that the others lack."""

import torch

layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))).cuda()
optimizer = torch.optim.SGD(layers.parameters())
x = torch.zeros(8, 64, device="cuda")
for step in range(4):
    with torch.profiler.record_function(f"step {step}"):
        layers(x).sum().backward()
        with torch.profiler.record_function("update"):
            optimizer.step()
        optimizer.zero_grad()
