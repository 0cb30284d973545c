"""Workloads with a training step of their own: a critic and a generator, and a masked language model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from workloads import (
    Batch,
    Settings,
    Splits,
    StreamSamples,
    Target,
    TensorSamples,
    Turn,
    Workload,
    one_cycle,
)


@dataclass(frozen=True, kw_only=True)
class GanOptions(Settings):
    penalty: float = 1.0  # the weight of the gradient penalty; 0 for none
    dropout: float = 0.1
    shared: bool = False  # both turns train the critic


class Pair(nn.Module):
    """A generator of points and a critic of them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(4, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 2)
        )
        self.critic = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, real: Tensor, noise: Tensor, turn: str) -> tuple[Tensor, ...]:
        """Return the generated points, or the critic's opinions that a turn needs."""
        if turn == "generate":
            return (self.generator(noise),)
        if turn == "generator":
            return (self.critic(self.generator(noise)),)
        with torch.no_grad():
            generated = self.generator(noise)
        mixed = ((real + generated) / 2).requires_grad_()
        return self.critic(real), self.critic(generated), self.critic(mixed), mixed


class Gan(Workload):
    """A Wasserstein GAN with a gradient penalty (Gulrajani et al. 2017, arXiv:1704.00028)."""

    Options = GanOptions
    batch_size = 32
    target = Target("distance", higher_is_better=False)

    def splits(self) -> Splits:
        source = torch.Generator().manual_seed(3)
        points = torch.randn(288, 2, generator=source) * 0.1 + torch.tensor([1.0, -1.0])
        noise = torch.randn(288, 4, generator=source)
        train, test = (points[:256], noise[:256]), (points[256:], noise[256:])
        return Splits(TensorSamples(train), TensorSamples(test))

    def build_model(self) -> nn.Module:
        return Pair(self.options.dropout)

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, Pair)
        return [model.generator, model.critic]

    def turns(self, model: nn.Module) -> Sequence[Turn]:
        assert isinstance(model, Pair)
        critic = Adam(model.critic.parameters(), lr=1e-2, betas=(0.5, 0.9))
        if self.options.shared:
            return [Turn("critic", critic, self.critic_loss), Turn("again", critic, self.loss)]
        return [
            Turn("critic", critic, self.critic_loss),
            Turn("generator", self.optimizer(model), self.loss),
        ]

    def critic_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        real, generated, mixed_score, mixed = model(*batch, "critic")
        loss: Tensor = generated.mean() - real.mean()
        if not self.options.penalty:
            return loss
        (slope,) = torch.autograd.grad(mixed_score.sum(), mixed, create_graph=True)
        penalty: Tensor = (slope.norm(dim=1) - 1).square().mean()
        weighted: Tensor = loss + self.options.penalty * penalty
        return weighted

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        (score,) = model(*batch, "generator")
        result: Tensor = -score.mean()
        return result

    def optimizer(self, model: nn.Module) -> Optimizer:
        assert isinstance(model, Pair)
        return Adam(model.generator.parameters(), lr=5e-3, betas=(0.5, 0.9))

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        return one_cycle(optimizer, steps, 0.3)

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        (points,) = model(*batch, "generate")
        difference: Tensor = points - batch[0]
        return difference

    def metrics(self, rows: Tensor) -> dict[str, float]:
        return {"distance": float(rows.mean(0).norm())}

    def flops_per_sample(self) -> float:
        return 1.0


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


def read_sentences() -> Iterator[Tensor]:
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
