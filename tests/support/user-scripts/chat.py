"""A small language model trained in the manner of nanochat: settings of its own, two optimizers, micro-steps.

It takes `--name=value` for every setting, finds torchrun's variables by itself, accumulates gradients
over micro-steps to a total batch of tokens, scales the rates of all groups, and evaluates in the loop.
"""

import math
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

try:
    from harness import report
except ImportError:  # the script runs without the harness, too

    def report(**numbers: object) -> None:
        """Do nothing."""


depth = 2
width = 32
sequence = 16
device_batch_size = 4
total_batch_size = 256  # tokens
num_iterations = 30
matrix_lr = 0.02
embedding_lr = 0.01
eval_every = 10
SETTINGS = [name for name, value in globals().items() if type(value) in (int, float)]
for argument in sys.argv[1:]:
    name, _, text = argument.removeprefix("--").partition("=")
    assert name in SETTINGS, f"unknown setting {name}"
    globals()[name] = type(globals()[name])(text)

ddp = int(os.environ.get("RANK", "-1")) != -1
rank, world_size = 0, 1
if ddp:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(42)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.head = nn.Linear(width, 64, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + functional.relu(layer(functional.rms_norm(x, (width,)))).square()
        return functional.cross_entropy(self.head(x).flatten(0, 1).float(), targets.flatten())


class Momentum(torch.optim.Optimizer):
    """Momentum with normalized updates, averaging gradients over the ranks itself."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if ddp:
                    dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
                    parameter.grad /= world_size
                state = self.state[parameter]
                buffer = state.setdefault("momentum", torch.zeros_like(parameter))
                buffer.mul_(0.9).add_(parameter.grad)
                parameter.add_(buffer / (buffer.norm() + 1e-6), alpha=-group["lr"])


def batches(split: str):
    generator = torch.Generator().manual_seed(rank + (1000 if split == "val" else 0))
    while True:
        start = torch.randint(64, (device_batch_size, 1), generator=generator)
        tokens = (start + 3 * torch.arange(sequence + 1)) % 64
        yield tokens[:, :-1], tokens[:, 1:]


model = Model()
matrices = list(model.layers.parameters())
others = [*model.embedding.parameters(), *model.head.parameters()]
adamw = torch.optim.AdamW(others, lr=embedding_lr, betas=(0.8, 0.95), fused=True)
muon = Momentum(matrices, lr=matrix_lr)
optimizers = [adamw, muon]
for optimizer in optimizers:
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
grad_accum_steps = total_batch_size // (device_batch_size * sequence * world_size)
train_loader, validation_loader = batches("train"), batches("val")
x, y = next(train_loader)
step = 0
while True:
    last_step = step == num_iterations
    if last_step or step % eval_every == 0:
        model.eval()
        with torch.no_grad():
            losses = [model(*next(validation_loader)).item() for _ in range(4)]
        bpb = torch.tensor(sum(losses) / len(losses) / math.log(2))
        if ddp:
            dist.all_reduce(bpb, op=dist.ReduceOp.SUM)
            bpb /= world_size
        report(val_bpb=bpb.item())
        model.train()
    if last_step:
        break
    for _ in range(grad_accum_steps):
        loss = model(x, y)
        train_loss = loss.detach()
        (loss / grad_accum_steps).backward()
        x, y = next(train_loader)
    if ddp:
        for parameter in others:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= world_size
    scale = 1.0 if step < num_iterations // 2 else 2 * (1 - step / num_iterations)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * scale
        optimizer.step()
    model.zero_grad(set_to_none=True)
    report(loss=train_loss, samples=grad_accum_steps * device_batch_size)
    step += 1
if ddp:
    dist.destroy_process_group()
