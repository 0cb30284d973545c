"""DistilBERT as a text classifier, from scratch or pretrained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification

from workloads.base import Batch, Classifier, Splits
from workloads.data import Texts, load_texts
from workloads.files import CHECKPOINT, TOKENIZER, WEIGHTS
from workloads.options import POSITIONS, DistilBertOptions
from workloads.schedules import one_cycle
from workloads.sources import TextData
from workloads.tokenizer import encode, trained

PAD = 0  # number of the padding token, here as in the published vocabulary


@dataclass(frozen=True)
class TokenSamples:
    """Token numbers int64 [samples, tokens], padded at the end, with the length and the label of each text."""

    tokens: Tensor
    lengths: Tensor
    labels: Tensor
    fixed: bool

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Tokens [samples, longest length or all], labels [samples]."""
        rows = torch.as_tensor(indices)
        width = self.tokens.shape[1] if self.fixed else int(self.lengths[rows].max())
        rows = rows.to(self.tokens.device)
        return self.tokens[rows, :width], self.labels[rows]

    def to(self, device: torch.device) -> TokenSamples:
        """Lengths stay on the CPU, where the width of a batch is decided."""
        return replace(self, tokens=self.tokens.to(device), labels=self.labels.to(device))


class SequenceClassifier(nn.Module):
    """Transformers' model behind a plain call: tokens in, logits out."""

    def __init__(self, bert: DistilBertForSequenceClassification) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [samples, classes] of token numbers [samples, tokens]."""
        # A mask in four dimensions is taken as it is; in two, transformers looks at its values, which breaks graphs.
        mask = (tokens != PAD)[:, None, None, :]
        logits: Tensor = self.bert(tokens, attention_mask=mask).logits
        return logits


class DistilBert(Classifier):
    """DistilBERT (Sanh et al. 2019, arXiv:1910.01108) with AdamW and a one-cycle schedule.

    From scratch, the WordPiece vocabulary is learned from the training texts.
    """

    Options = DistilBertOptions
    Data: ClassVar = TextData
    batch_size = 64
    options: DistilBertOptions
    data: TextData

    @cached_property
    def texts(self) -> Texts:
        return load_texts(self.data)

    @cached_property
    def samples(self) -> tuple[TokenSamples, TokenSamples]:
        """Training and test set."""
        if self.folder:
            tokenizer = Tokenizer.from_file(str(self.folder / TOKENIZER))
        else:
            tokenizer = trained(self.texts.train, self.options.architecture.vocabulary)
        return (
            self._encoded(tokenizer, self.texts.train, self.texts.train_labels),
            self._encoded(tokenizer, self.texts.test, self.texts.test_labels),
        )

    @cached_property
    def folder(self) -> Path | None:
        """Where the pretrained model lies, fetched from the hub if it comes from there; None if there is none."""
        if self.options.hub is None:
            return self.options.pretrained
        from huggingface_hub import snapshot_download

        name, _, revision = self.options.hub.partition("@")
        try:
            return Path(
                snapshot_download(name, revision=revision or None, allow_patterns=list(CHECKPOINT))
            )
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"hub: found no {self.options.hub} ({reason}); allowed: a folder, or what the hub or its cache has"
            ) from error

    @cached_property
    def config(self) -> DistilBertConfig:
        """The architecture, with the options and the number of classes."""
        dropout = self.options.dropout
        own: dict[str, Any] = {
            "num_labels": len(self.texts.classes),
            "dropout": dropout,
            "attention_dropout": dropout,
            "seq_classif_dropout": dropout,
            "attn_implementation": "sdpa",
        }
        if self.folder:
            return DistilBertConfig.from_pretrained(self.folder, **own)
        shape = self.options.architecture
        return DistilBertConfig(
            vocab_size=shape.vocabulary,
            max_position_embeddings=POSITIONS,
            n_layers=shape.layers,
            n_heads=shape.heads,
            dim=shape.width,
            hidden_dim=shape.feedforward,
            pad_token_id=PAD,
            **own,
        )

    def splits(self) -> Splits:
        return Splits(*self.samples)

    def build_model(self) -> nn.Module:
        """Raises ValueError if a pretrained model lacks weights other than those of the head, which starts anew."""
        if self.folder is None:
            return SequenceClassifier(DistilBertForSequenceClassification(self.config))
        loaded: Any = DistilBertForSequenceClassification.from_pretrained(
            self.folder,
            config=self.config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        bert, report = loaded
        unset = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
        if lacking := sorted(
            name for name in unset if not name.startswith(("pre_classifier.", "classifier."))
        ):
            raise ValueError(
                f"{self.folder / WEIGHTS}: found no fitting {lacking[0]}; allowed: all weights of the encoder"
            )
        return SequenceClassifier(bert)

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, SequenceClassifier)
        return list(model.bert.distilbert.transformer.layer)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        smoothing = self.options.label_smoothing
        return nn.functional.cross_entropy(
            self.logits(model, batch), batch[-1], label_smoothing=smoothing
        )

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Weight decay pulls at matrices only, not at biases and norms."""
        options = self.options
        groups: list[dict[str, Any]] = [
            {
                "params": [p for p in model.parameters() if p.ndim > 1],
                "weight_decay": options.weight_decay,
            },
            {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=options.lr, fused=True)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        return one_cycle(optimizer, steps, self.options.warmup)

    def flops_per_sample(self) -> float:
        """Matrix products only; embedding lookups, biases, norms, softmax, GELU, loss and optimizer are not counted.

        With t tokens of width d, feed-forward width f, L layers and c classes, forward costs in each layer 2td^2 for
        each of the queries, keys, values and the output, 2t^2d for the scores, 2t^2d for their use, and 2tdf for each
        of the two feed-forward products; then, on the first token alone, 2d^2 and 2dc:

            forward = L * (8td^2 + 4t^2d + 4tdf) + 2d^2 + 2dc

        Backward costs twice that, as the gradients of both factors of every product are needed, also in the first
        layer, below which the embeddings are trained. The attention is counted as plain products: that fused kernels
        compute the scores again in backward is no work of the model.

        With padding: fixed, t is `sequence` for every sample. With padding: longest, t and t^2 are their means over the
        training texts: padding, which then depends on who shares a batch, is not counted.
        """
        lengths = self.samples[0].lengths.double()
        if self.options.padding == "fixed":
            lengths = torch.full_like(lengths, self.options.sequence)
        t, t2 = float(lengths.mean()), float(lengths.square().mean())
        d, f = self.config.dim, self.config.hidden_dim
        layer = 8 * t * d**2 + 4 * t2 * d + 4 * t * d * f
        return 3 * (self.config.n_layers * layer + 2 * d**2 + 2 * d * len(self.texts.classes))

    def _encoded(self, tokenizer: Tokenizer, texts: Sequence[str], labels: Tensor) -> TokenSamples:
        encoded = [
            torch.tensor(tokens) for tokens in encode(tokenizer, texts, self.options.sequence)
        ]
        tokens = pad_sequence(encoded, batch_first=True, padding_value=PAD)
        lengths = torch.tensor([len(tokens) for tokens in encoded])
        fixed = self.options.padding == "fixed"
        if fixed:
            tokens = nn.functional.pad(
                tokens, (0, self.options.sequence - tokens.shape[1]), value=PAD
            )
        return TokenSamples(tokens, lengths, labels, fixed)
