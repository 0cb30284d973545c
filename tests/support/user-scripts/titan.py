"""A small transformer trained in the manner of torchtitan: a Trainer that takes a file of settings, and FSDP2."""

import argparse
import os
import tomllib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import harness


def read_settings() -> dict[str, dict[str, Any]]:
    """Return the settings of a file, then those of the command line as `--section.name value`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job.config_file", dest="file")
    known, rest = parser.parse_known_args()
    sections = tomllib.loads(Path(known.file).read_text())
    for name, value in zip(rest[::2], rest[1::2], strict=True):
        section, _, key = name.removeprefix("--").partition(".")
        sections[section][key] = type(sections[section][key])(value)
    return sections


class Trainer:
    """Builds everything from the settings, and trains."""

    def __init__(self, config: dict[str, dict[str, Any]]) -> None:
        self.config = config
        dist.init_process_group("gloo")
        self.mesh = init_device_mesh(
            "cpu", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("dp",)
        )
        torch.manual_seed(self.config["training"]["seed"])
        width = self.config["model"]["width"]
        layers = [
            nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True) for _ in "ab"
        ]
        self.model = nn.Sequential(nn.Embedding(32, width), *layers, nn.Linear(width, 32))
        for layer in layers:
            fully_shard(layer, mesh=self.mesh)
        fully_shard(self.model, mesh=self.mesh)
        self.optimizers = [
            torch.optim.AdamW(self.model.parameters(), lr=self.config["optimizer"]["lr"])
        ]
        self.schedulers = [
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
            for optimizer in self.optimizers
        ]
        self.step = 0

    def batches(self) -> Any:
        generator = torch.Generator().manual_seed(self.mesh.get_rank())
        size = self.config["training"]["local_batch_size"]
        while True:
            start = torch.randint(32, (size, 1), generator=generator)
            tokens = (start + torch.arange(9)) % 32
            yield tokens[:, :-1], tokens[:, 1:]

    def train_step(self, batches: Any) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        tokens, labels = next(batches)
        loss = nn.functional.cross_entropy(self.model(tokens).flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, scheduler in zip(self.optimizers, self.schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        harness.report(loss=loss, samples=len(tokens))

    def train(self) -> None:
        batches = self.batches()
        while self.step < self.config["training"]["steps"]:
            self.step += 1
            self.train_step(batches)


if __name__ == "__main__":
    trainer = Trainer(read_settings())
    try:
        trainer.train()
    finally:
        dist.destroy_process_group()
