"""A small decoder in today's form, trained to predict the next byte of a text.

Tokens are bytes: there is no tokenizer to train, and the loss is bits per byte whatever the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention, silu
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from workloads.base import Batch, Splits, TensorSamples, Workload
from workloads.gpt_settings import DECODERS, CorpusData, DecoderShape, GPTOptions
from workloads.schedules import decayed_matrices, one_cycle
from workloads.settings import Target

ROTARY_BASE = 10_000.0  # of the wavelengths of positions (Su et al. 2021)
INITIAL_STD = 0.02  # of weights, as in GPT-2
BETAS = (0.9, 0.95)  # of AdamW, usual for decoders (Touvron et al. 2023, arXiv:2302.13971)


Projection = partial(nn.Linear, bias=False)


class Attention(nn.Module):
    """Causal self-attention over heads, with rotary positions."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.query = Projection(width, width)
        self.key = Projection(width, width)
        self.value = Projection(width, width)
        self.output = Projection(width, width)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Return the attended states, shape (samples, tokens, width), as that of `hidden`."""
        queries = self._heads(self.query(hidden))
        keys = self._heads(self.key(hidden))
        values = self._heads(self.value(hidden))
        queries = rotated(queries, cosines, sines)
        keys = rotated(keys, cosines, sines)
        attended = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        merged = attended.transpose(1, 2).flatten(2)
        result: Tensor = self.output(merged)
        return result

    def _heads(self, states: Tensor) -> Tensor:
        """Return states as (samples, heads, tokens, head width)."""
        samples, tokens, _ = states.shape
        of_heads = states.view(samples, tokens, -1, self.head_width)
        return of_heads.transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202): a product of two projections, one of them gated."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.gate = Projection(width, hidden_width)
        self.up = Projection(width, hidden_width)
        self.down = Projection(hidden_width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return states of the same shape."""
        gate = silu(self.gate(hidden))
        result: Tensor = self.down(gate * self.up(hidden))
        return result


class Layer(nn.Module):
    """Attention and feed-forward, each added to what is normalized before it."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = Attention(shape.width, shape.width // shape.heads)
        self.feed_forward_norm = nn.RMSNorm(shape.width)
        self.feed_forward = FeedForward(shape.width, shape.feedforward)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Return states of the same shape."""
        normalized = self.attention_norm(hidden)
        hidden = hidden + self.attention(normalized, cosines, sines)
        normalized = self.feed_forward_norm(hidden)
        result: Tensor = hidden + self.feed_forward(normalized)
        return result


class Decoder(nn.Module):
    """Layers between an embedding and its transpose."""

    def __init__(self, shape: DecoderShape, sequence: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        cosines, sines = rotations(sequence, shape.width // shape.heads)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self._initialize(shape.layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token after each, shape (samples, tokens, 256)."""
        hidden = self.embedding(tokens.long())
        for layer in self.layers:
            hidden = layer(hidden, self.cosines, self.sines)
        return linear(self.norm(hidden), self.embedding.weight)

    def _initialize(self, layers: int) -> None:
        """Draw the weights as GPT-2 does: those that are added to the residual smaller in deep models."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                is_added = name.endswith(("output.weight", "down.weight"))
                depth = 2 * layers if is_added else 1
                nn.init.normal_(parameter, std=INITIAL_STD / math.sqrt(depth))


def rotations(sequence: int, head_width: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and the sines of each position, each of shape (sequence, head width).

    Rotary position embedding (Su et al. 2021, arXiv:2104.09864): pair i of a head's h numbers is
    rotated by position * 10000^(-2i/h). Both halves of a head have the same angles.
    """
    exponents = -torch.arange(0, head_width, 2).double() / head_width
    frequencies = ROTARY_BASE**exponents
    positions = torch.arange(sequence).double()
    half = positions[:, None] * frequencies
    angles = torch.cat([half, half], dim=1)
    return angles.cos().float(), angles.sin().float()


def rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return queries or keys rotated by their positions; number i is paired with i + h/2."""
    tokens = heads.shape[-2]
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    result = heads * cosines[:tokens] + turned * sines[:tokens]
    return result.to(heads.dtype)


class GPT(Workload):
    """A decoder with RMSNorm, rotary positions, SwiGLU and tied embeddings, trained by AdamW.

    Its target is bits per byte over the end of the text.
    """

    Options = GPTOptions
    Data: ClassVar = CorpusData
    batch_size = 32
    target = Target("bits_per_byte", higher_is_better=False)
    options: GPTOptions
    data: CorpusData

    def splits(self) -> Splits:
        """Return the text in sequences of bytes, uint8 (samples, sequence + 1).

        The last byte of a sequence is the first one of the next: each byte but the first is
        predicted once. Bytes that fill no sequence are left out.
        """
        train, validation, test = [self._packed(part) for part in self.data.parts()]
        return Splits(train, test, validation if len(validation) else None)

    def _packed(self, text: bytes) -> TensorSamples:
        """Return a text in sequences, each with the byte that follows it."""
        sequence = self.data.sequence
        count = max(0, len(text) - 1) // sequence
        starts = np.arange(count)[:, None] * sequence
        positions = starts + np.arange(sequence + 1)
        content = np.frombuffer(text, dtype=np.uint8)
        return TensorSamples((torch.from_numpy(content[positions]),))

    def build_model(self) -> nn.Module:
        """Return the decoder, freshly initialized."""
        return Decoder(DECODERS[self.options.size], self.data.sequence)

    def _token_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the cross-entropy of each next byte in nats, shape (samples, sequence)."""
        (tokens,) = batch
        logits = model(tokens[:, :-1])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        next_bytes = tokens[:, 1:].long()
        by_class = logits.transpose(1, 2)
        return cross_entropy(by_class, next_bytes, reduction="none")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the next byte in nats, a scalar."""
        return self._token_losses(model, batch).mean()

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of each sequence in nats, shape (samples, 1)."""
        losses = self._token_losses(model, batch).double()
        return losses.mean(1, keepdim=True)

    def metrics(self, rows: Tensor) -> dict[str, float]:
        """Return bits per byte, and the mean cross-entropy in nats."""
        loss = float(rows.mean())
        return {"bits_per_byte": loss / math.log(2), "loss": loss}

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return AdamW in its fused implementation; matrices are decayed, norms are not."""
        groups = decayed_matrices(model, self.options.weight_decay)
        return AdamW(groups, lr=self.options.lr, betas=BETAS, fused=True)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Return the one-cycle schedule."""
        return one_cycle(optimizer, steps, self.options.warmup)

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the layers of the decoder."""
        assert isinstance(model, Decoder)
        return list(model.layers)

    def tokens_per_sample(self) -> float:
        """Return the tokens that a sequence trains on."""
        return float(self.data.sequence)

    def flops_per_sample(self) -> float:
        """Return the FLOPs of the matrix products of one sequence.

        The embedding's lookup, norms, rotations, softmax, SiLU, loss and optimizer are not counted.

        With t tokens of width d, a feed-forward width f, L layers and v = 256 bytes, forward costs
        in each layer

            8td^2       for queries, keys, values and the output projection, 2td^2 each,
            2dt(t + 1)  for attention: a token has scores with itself and those before it,
                        t(t + 1)/2 of 2d each, and as much to weight the values with them,
            6tdf        for the three feed-forward products,

        and then 2tdv for the logits:

            forward = L * (8td^2 + 2dt(t + 1) + 6tdf) + 2tdv

        Backward costs twice that, in the first layer too, since the embedding is trained. That
        kernels may compute the masked half of the scores, or scores again in backward, is no work
        of the model.
        """
        shape, t = DECODERS[self.options.size], self.data.sequence
        d, f, v = shape.width, shape.feedforward, shape.vocabulary
        layer = 8 * t * d**2 + 2 * d * t * (t + 1) + 6 * t * d * f
        return 3.0 * (shape.layers * layer + 2 * t * d * v)
