"""A workload for tests whose loss communicates: it compares each pair with those of all ranks, as CLIP does."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workloads import Batch, Splits, TensorSamples, Workload


class Towers(nn.Module):
    """A layer for each of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.texts = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        return self.images(images), self.texts(texts)


class Contrastive(Workload):
    """Finds the text of each image among the texts of all ranks (Radford et al. 2021, arXiv:2103.00020)."""

    batch_size = 32

    def splits(self) -> Splits:
        source = torch.Generator().manual_seed(0)
        images = torch.randn(256, 8, generator=source)
        train, test = images[:192], images[192:]
        return Splits(TensorSamples((train, 2 * train)), TensorSamples((test, 2 * test)))

    def build_model(self) -> nn.Module:
        return Towers()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, texts = model(*batch)
        rank, all_texts = 0, [texts]
        if model.training and dist.is_initialized():
            rank = dist.get_rank()
            all_texts = [torch.empty_like(texts) for _ in range(dist.get_world_size())]
            dist.all_gather(all_texts, texts.detach())
            all_texts[rank] = texts
        similarity = images @ torch.cat(all_texts).T
        pairs = torch.arange(len(images)) + rank * len(images)
        return nn.functional.cross_entropy(similarity, pairs)
