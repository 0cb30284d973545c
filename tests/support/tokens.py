"""A language model of sentences of different lengths, whose loss is a mean over target tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from workloads import Batch, Settings, Splits, Target, TensorSamples, Workload

WORDS, LONGEST = 20, 12
PAD = -100  # the target of a position behind the end of a sentence: what cross-entropy ignores


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    weight: Literal["tokens", "fraction", "wrong"] = "tokens"
    empty: bool = False  # every fourth sentence has no target token
    batch_norm: bool = False


class NextWord(nn.Module):
    """Guesses each word from the one before."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.layer = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.norm = nn.BatchNorm1d(16) if batch_norm else nn.Identity()
        self.head = nn.Linear(16, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits, shape (tokens, WORDS); `words` has the shape (samples, LONGEST)."""
        logits: Tensor = self.head(self.norm(self.layer(self.embedding(words.flatten()))))
        return logits


class Unweighted(Workload):
    """Says nothing of its tokens, so that samples count the same."""

    Options = Options
    batch_size = 16
    target = Target("loss", higher_is_better=False)

    def splits(self) -> Splits:
        generator = torch.Generator().manual_seed(11)
        words = torch.randint(WORDS, (160, LONGEST), generator=generator)
        lengths = torch.randint(1, LONGEST, (160, 1), generator=generator)
        if self.options.empty:
            lengths[::4] = 0
        is_target = torch.arange(LONGEST) < lengths
        targets = ((words * 3 + 1) % WORDS).masked_fill(~is_target, PAD)
        return Splits(
            TensorSamples((words[:128], targets[:128])), TensorSamples((words[128:], targets[128:]))
        )

    def build_model(self) -> nn.Module:
        return NextWord(self.options.batch_norm)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1].flatten())

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=0.5)

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the summed loss and the number of target tokens of each sample."""
        losses = functional.cross_entropy(model(batch[0]), batch[1].flatten(), reduction="none")
        return torch.stack([losses.view_as(batch[1]).sum(1), (batch[1] != PAD).sum(1)], dim=1)

    def metrics(self, rows: Tensor) -> dict[str, float]:
        summed, tokens = rows.sum(0).tolist()
        return {"loss": summed / tokens}

    def flops_per_sample(self) -> float:
        return 6.0 * LONGEST * (8 * 16 + 16 * WORDS)


class Weighted(Unweighted):
    """Weighs batches by their target tokens, or as its options say."""

    def loss_weight(self, batch: Batch) -> Tensor | float:
        tokens = (batch[1] != PAD).sum()
        if self.options.weight == "wrong":
            return float(batch[1].numel())
        return tokens.double() / 7 if self.options.weight == "fraction" else tokens
