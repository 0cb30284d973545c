"""A script for torchrun: DistributedDataParallel, a DistributedSampler and a DataLoader."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import harness


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(int(os.environ.get("SEED", "1")))
    inputs = torch.randn(640, 8, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] > 0).long()
    train = TensorDataset(inputs, labels)
    sampler: DistributedSampler[int] = DistributedSampler(train, seed=3)
    loader = DataLoader(train, batch_size=arguments.batch_size, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for points, classes in loader:
            loss = nn.functional.cross_entropy(model(points), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            harness.report(loss=loss, samples=len(points))
        with torch.no_grad():
            hits = (model.module(inputs).argmax(1) == labels).double().mean()
        harness.report(accuracy=hits)
    if rank == 0:
        print(f"accuracy {hits:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
