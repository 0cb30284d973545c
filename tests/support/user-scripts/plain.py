"""A script as a newcomer writes it: one process, one loop, and no word of the harness."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--out", default=None)
arguments = parser.parse_args()

inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
targets = inputs[:, :1] * inputs[:, 1:2]
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
for _ in range(arguments.steps):
    rows = torch.randint(512, (32,))
    loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if arguments.out:
    torch.save(model.state_dict(), f"{arguments.out}/weights.pt")
