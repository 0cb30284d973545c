"""DistilBERT for tests: its libraries take seconds to load, so only a test that needs them does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.distilbert_settings import DistilBertOptions, TextData
from workloads.tokenizer import trained

if TYPE_CHECKING:
    from workloads.distilbert import DistilBert

VOCABULARY = 512


def distilbert(options: DistilBertOptions, data: TextData) -> DistilBert:
    """Return the workload with its settings."""
    from workloads.distilbert import DistilBert

    return DistilBert(options, data)


def save_small_model(folder: Path, texts: Iterable[str]) -> None:
    """Leave a random model as save_pretrained does, and a tokenizer that is trained on the texts."""
    from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
    from transformers.models.distilbert.modeling_distilbert import (
        DistilBertForSequenceClassification,
    )

    config = DistilBertConfig(vocab_size=VOCABULARY, n_layers=1, n_heads=2, dim=16, hidden_dim=32)
    DistilBertForSequenceClassification(config).save_pretrained(folder)
    trained(list(texts), VOCABULARY).save(str(folder / "tokenizer.json"))
