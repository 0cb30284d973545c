"""DistilBERT as a text classifier, from scratch or pretrained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from tokenizers import BertWordPieceTokenizer, Tokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification

from workloads.base import Batch, Classifier, Splits
from workloads.distilbert_settings import (
    POSITIONS,
    TOKENIZER,
    WEIGHTS,
    DistilBertOptions,
    TextData,
)
from workloads.labeled import Row, labels_of
from workloads.schedules import decayed_matrices, one_cycle
from workloads.settings import Target
from workloads.tokenizer import encode, trained

PAD = 0  # the id of the padding token, also in the published vocabulary
HEAD = ("pre_classifier.", "classifier.")  # the parameters that a pretrained encoder need not have


@dataclass(frozen=True)
class TokenSamples:
    """Token ids of texts, padded at the end, with the length and the label of each text."""

    tokens: Tensor  # int64, shape (samples, tokens of the longest text)
    lengths: Tensor  # int64, shape (samples,): tokens that a batch needs for each text
    labels: Tensor  # int64, shape (samples,)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return token ids, shape (samples, width of this batch), and labels, shape (samples,)."""
        rows = torch.as_tensor(indices)
        width = int(self.lengths[rows].max())
        rows = rows.to(self.tokens.device)
        return self.tokens[rows, :width], self.labels[rows]

    def to(self, device: torch.device) -> TokenSamples:
        """Return the same samples on `device`.

        The lengths stay on the CPU: to read the width of a batch from a GPU would wait for it.
        """
        tokens = self.tokens.to(device)
        labels = self.labels.to(device)
        return replace(self, tokens=tokens, labels=labels)


class SequenceClassifier(nn.Module):
    """The model of transformers behind a plain call: token ids in, logits out."""

    def __init__(self, bert: DistilBertForSequenceClassification) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, shape (samples, classes), of token ids of shape (samples, tokens)."""
        # transformers uses a mask of four dimensions as it is. Of one with two dimensions it reads
        # the values, which makes torch.compile break the graph.
        mask = (tokens != PAD)[:, None, None, :]
        logits: Tensor = self.bert(tokens, attention_mask=mask).logits
        return logits


class DistilBert(Classifier):
    """DistilBERT (Sanh et al. 2019, arXiv:1910.01108) with AdamW and a one-cycle schedule.

    Trained from scratch, its WordPiece vocabulary is learned from the training texts. Label
    smoothing, and weight decay on matrices alone, are the usual recipe for transformers.
    """

    Options = DistilBertOptions
    Data: ClassVar = TextData
    batch_size = 64
    options: DistilBertOptions
    data: TextData

    def __init__(self, options: DistilBertOptions, data: TextData) -> None:
        super().__init__(options, data)
        self.target = Target(options.target)

    @cached_property
    def texts(self) -> Mapping[str, list[Row]]:
        """The texts of each split by its name, with their labels; raises ValueError for bad files."""
        return self.data.split()

    @cached_property
    def classes(self) -> list[str]:
        """The labels of training in alphabetical order, which numbers them."""
        return sorted(labels_of(self.texts["train"]))

    @cached_property
    def samples(self) -> Mapping[str, TokenSamples]:
        """The token ids of each split by its name."""
        return {name: self._tokenize(rows) for name, rows in self.texts.items()}

    @cached_property
    def tokenizer(self) -> Tokenizer | BertWordPieceTokenizer:
        """The pretrained model's tokenizer, or one that is trained on the training texts."""
        if self.options.pretrained:
            path = self.options.pretrained / TOKENIZER
            return Tokenizer.from_file(str(path))
        texts = [text for text, _ in self.texts["train"]]
        return trained(texts, self.options.architecture["vocab_size"])

    @cached_property
    def config(self) -> DistilBertConfig:
        """The architecture, with the dropout of the options and the number of classes."""
        dropout = self.options.dropout
        overrides: dict[str, Any] = {
            "num_labels": len(self.classes),
            "dropout": dropout,
            "attention_dropout": dropout,
            "seq_classif_dropout": dropout,
            "attn_implementation": "sdpa",
        }
        if self.options.pretrained:
            return DistilBertConfig.from_pretrained(self.options.pretrained, **overrides)
        return DistilBertConfig(
            **self.options.architecture,
            max_position_embeddings=POSITIONS,
            pad_token_id=PAD,
            **overrides,
        )

    def splits(self) -> Splits:
        """Return the texts as token ids, with their labels."""
        return Splits(**self.samples)

    def build_model(self) -> nn.Module:
        """Return the model: freshly initialized, or with pretrained weights and a new head.

        Raises ValueError if a pretrained model lacks weights of the encoder.
        """
        folder = self.options.pretrained
        if folder is None:
            bert = DistilBertForSequenceClassification(self.config)
            return SequenceClassifier(bert)
        loaded: Any = DistilBertForSequenceClassification.from_pretrained(
            folder,
            config=self.config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # of the head, whose number of classes may differ
            output_loading_info=True,
        )
        bert, report = loaded
        lacking = sorted(name for name in report["missing_keys"] if not name.startswith(HEAD))
        if lacking:
            raise ValueError(
                f"{folder / WEIGHTS}: found no {lacking[0]}; allowed: all of the encoder"
            )
        bert.train()  # from_pretrained returns a model in evaluation mode, without dropout
        return SequenceClassifier(bert)

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the layers of the transformer."""
        assert isinstance(model, SequenceClassifier)
        return list(model.bert.distilbert.transformer.layer)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy with label smoothing, a scalar."""
        logits = self.logits(model, batch)
        smoothing = self.options.label_smoothing
        return cross_entropy(logits, batch[-1], label_smoothing=smoothing)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return AdamW in its fused implementation, with the rate of the schedule's peak.

        Matrices are decayed, biases and the weights of layer norms are not.
        """
        groups = decayed_matrices(model, self.options.weight_decay)
        return AdamW(groups, lr=self.options.peak_lr, fused=True)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Return the one-cycle schedule."""
        return one_cycle(optimizer, steps, self.options.warmup)

    def flops_per_sample(self) -> float:
        """Return the FLOPs of the matrix products of one text, in the mean over the training set.

        Embedding lookups, biases, norms, softmax, GELU, loss and optimizer are not counted.

        With t tokens of width d, a feed-forward width f, L layers and c classes, forward costs in
        each layer

            2td^2 for each of the queries, the keys, the values and the output projection,
            2t^2d for the attention scores, and 2t^2d to weight the values with them,
            2tdf  for each of the two feed-forward products,

        then, for the first token alone, 2d^2 and 2dc in the head:

            forward = L * (8td^2 + 4t^2d + 4tdf) + 2d^2 + 2dc

        Backward costs twice that: every product needs the gradients of both its factors, in the
        first layer too, since the embeddings below it are trained. That fused attention kernels
        compute the scores again in backward is no work of the model and not counted.

        With padding: fixed, t is `sequence` for every text. With padding: longest, t and t^2 are
        their means over the training texts, without padding: how much padding a text gets depends
        on the others in its batch.
        """
        lengths = self.samples["train"].lengths.double()
        t, t2 = float(lengths.mean()), float(lengths.square().mean())
        d, f = self.config.dim, self.config.hidden_dim
        layer = 8 * t * d**2 + 4 * t2 * d + 4 * t * d * f
        head = 2 * d**2 + 2 * d * len(self.classes)
        return float(3 * (self.config.n_layers * layer + head))

    def _tokenize(self, rows: Sequence[Row]) -> TokenSamples:
        """Return texts as token ids, cut to `sequence` tokens and padded to a common width."""
        texts, labels = zip(*rows, strict=True)
        ids = encode(self.tokenizer, texts, self.options.sequence)
        tokens = pad_sequence([torch.tensor(of_text) for of_text in ids], True, PAD)
        lengths = torch.tensor(list(map(len, ids)))
        if self.options.padding == "fixed":
            missing_columns = self.options.sequence - tokens.shape[1]
            tokens = pad(tokens, (0, missing_columns), value=PAD)
            lengths = torch.full_like(lengths, self.options.sequence)
        numbers = {label: number for number, label in enumerate(self.classes)}
        label_numbers = torch.tensor([numbers[label] for label in labels])
        return TokenSamples(tokens, lengths, label_numbers)
