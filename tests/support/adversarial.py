"""Workloads with a training step of their own: a critic and a generator, and a masked language model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Adam, Optimizer

from workloads import (
    Batch,
    Splits,
    StreamSamples,
    Target,
    Workload,
)

MASK, PAD, WORDS = 1, 0, 12


class Encoder(nn.Module):
    """One layer of a transformer with a head that says which word is where."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16, padding_idx=PAD)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits, shape (samples, words, WORDS)."""
        hidden = self.layer(self.embedding(words), src_key_padding_mask=words == PAD)
        result: Tensor = self.head(hidden)
        return (
            result.clone()
        )  # FSDP2 warns of a view, which a linear layer of three dimensions returns


def read_sentences(seed: int) -> Iterator[Tensor]:
    """Yield sentences of four to nine words, in which each word follows from the one before."""
    source = torch.Generator().manual_seed(5)
    while True:
        length = int(torch.randint(4, 10, (), generator=source))
        start = int(torch.randint(10, (), generator=source))
        yield (start + torch.arange(length)) % 10 + 2


def pad(sentences: Sequence[Tensor]) -> Batch:
    """Return sentences padded to the longest of them, shape (samples, words)."""
    return (pad_sequence(list(sentences), batch_first=True, padding_value=PAD),)


class MaskedLanguageModel(Workload):
    """Guesses words that are masked, from a stream of sentences of different lengths."""

    batch_size = 16
    target = Target("accuracy")

    def splits(self) -> Splits:
        return Splits(
            StreamSamples(read_sentences, 128, pad), StreamSamples(read_sentences, 33, pad)
        )

    def build_model(self) -> nn.Module:
        return Encoder()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        words = batch[0]
        is_masked = (torch.rand(words.shape) < 0.3) & (words != PAD)
        is_masked[:, 1] = True  # at least one in each sentence
        logits = model(words.masked_fill(is_masked, MASK))
        return nn.functional.cross_entropy(logits[is_masked], words[is_masked])

    def optimizer(self, model: nn.Module) -> Optimizer:
        return Adam(model.parameters(), lr=1e-2)

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        words = batch[0].clone()
        words[:, 1] = MASK
        guesses: Tensor = model(words)[:, 1].argmax(1)
        return (guesses == batch[0][:, 1])[:, None]

    def metrics(self, rows: Tensor) -> dict[str, float]:
        return {"accuracy": float(rows.mean())}

    def flops_per_sample(self) -> float:
        return 1.0
