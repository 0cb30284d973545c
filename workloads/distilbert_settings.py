"""What a sweep file may set for DistilBERT: its options, and where its labeled texts come from.

`data: {source: ...}` chooses a class.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from workloads.labeled import Labeled, Row
from workloads.settings import Between, Decay, Fraction, Rate, Settings, read_bytes
from workloads.tickets import tickets

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
# The files of a pretrained model that decide what it computes.
CHECKPOINT = (CONFIG, WEIGHTS, TOKENIZER)
POSITIONS = 512  # tokens of the longest text that DistilBERT takes, as published
FINE_TUNING_RATE = 2e-5  # of a pretrained model, which would forget what it knows at higher ones


# Transformer encoders that are trained from scratch, by the names of DistilBERT's config.json.
ARCHITECTURES: dict[str, dict[str, int]] = {
    "tiny": {"n_layers": 2, "dim": 128, "n_heads": 4, "hidden_dim": 512, "vocab_size": 4096},
    "small": {"n_layers": 4, "dim": 256, "n_heads": 4, "hidden_dim": 1024, "vocab_size": 8192},
    # DistilBERT as published: Sanh et al. 2019, arXiv:1910.01108
    "base": {"n_layers": 6, "dim": 768, "n_heads": 12, "hidden_dim": 3072, "vocab_size": 30522},
}
# The peak learning rates that suit a model from scratch: wider ones take lower rates.
SCRATCH_RATES = {"tiny": 2e-3, "small": 2e-3, "base": 3e-4}


@dataclass(frozen=True, kw_only=True)
class DistilBertOptions(Settings):
    """The options of DistilBERT.

    `size` or `pretrained` says where the architecture comes from: a preset that is trained from
    scratch, or a folder with weights and tokenizer. With both, the folder must have that architecture.
    """

    # A folder that `save_pretrained` has written, tokenizer included.
    pretrained: Path | None = None
    # None means tiny, or whatever the pretrained model has.
    size: Literal["tiny", "small", "base"] | None = None
    # Tokens of a text at most; longer texts are cut.
    sequence: Annotated[int, Between(3, POSITIONS)] = 48
    # Whether texts are padded to the longest in their batch, or always to `sequence`.
    padding: Literal["longest", "fixed"] = "longest"
    dropout: Fraction = 0.1
    label_smoothing: Fraction = 0.1
    # The peak of the one-cycle schedule; None means one that suits the size, or fine-tuning.
    lr: Rate | None = None
    # The metric that is trained towards.
    target: Literal["accuracy", "macro_f1"] = "accuracy"
    weight_decay: Decay = 0.01
    warmup: Fraction = 0.1  # the fraction of the steps in which the learning rate rises

    @property
    def peak_lr(self) -> float:
        """Return the peak of the schedule: `lr`, or what suits the model."""
        if self.lr is not None:
            return self.lr
        return FINE_TUNING_RATE if self.pretrained else SCRATCH_RATES[self.size or "tiny"]

    @property
    def architecture(self) -> dict[str, int]:
        """The preset of a model from scratch; meaningless for pretrained models."""
        return ARCHITECTURES[self.size or "tiny"]

    def files(self) -> list[Path]:
        """Return the files of the pretrained model that decide what it computes."""
        if self.pretrained is None:
            return []
        return [self.pretrained / name for name in CHECKPOINT]

    def check(self) -> None:
        """Raise ValueError unless the pretrained model is complete and takes long enough texts.

        It must have the architecture that `size` names, if that is set.
        """
        if self.pretrained is None:
            return
        config = read_config(self.pretrained)
        needed: dict[str, Any] = {"model_type": "distilbert"}
        if self.size is not None:
            needed |= ARCHITECTURES[self.size]
            del needed["vocab_size"]  # comes with the tokenizer
        for key, value in needed.items():
            if config.get(key) != value:
                found = f"{key} {config.get(key)!r}"
                raise ValueError(f"{self.pretrained / CONFIG}: found {found}; allowed: {value!r}")
        positions = config.get("max_position_embeddings", POSITIONS)
        if self.sequence > positions:
            raise ValueError(f"sequence: found {self.sequence}; allowed: at most {positions}")

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Return why padding to the longest text does not go with torch.compile."""
        if self.padding == "longest" and axes["execution"] != "eager":
            return f"execution {axes['execution']} compiles for each length: set padding to fixed"
        return None


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a pretrained model; raises ValueError unless its files are whole."""
    from safetensors import SafetensorError, safe_open

    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_bytes())
        json.loads((folder / TOKENIZER).read_bytes())
        with safe_open(folder / WEIGHTS, "numpy"):
            return config
    except (OSError, ValueError, SafetensorError) as error:  # JSONDecodeError is a ValueError
        found = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{folder}: found {found}; allowed: a folder with complete {', '.join(CHECKPOINT)}"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Csv(Labeled):
    """Labeled texts: a folder with train.csv and test.csv, or a single file."""

    source: Literal["csv"] = "csv"
    path: Path
    text: str = "text"  # the column with the text
    label: str = "label"  # the column with the label

    def files(self) -> list[Path]:
        """Return the training file, and the test file if there is one."""
        if self.path.is_dir():
            return [self.path / "train.csv", self.path / "test.csv"]
        return [self.path]

    def samples(self) -> tuple[list[Row], list[Row]]:
        """Return the rows of each file."""
        rows = [read_rows(path, self.text, self.label) for path in self.files()]
        rows.append([])  # a single file has no test set
        return rows[0], rows[1]


@dataclass(frozen=True, kw_only=True)
class Tickets(Labeled):
    """Generated support tickets about billing, technical trouble or an account."""

    source: Literal["tickets"] = "tickets"
    rows: Annotated[int, Between(60)] = 4000

    def samples(self) -> tuple[list[Row], list[Row]]:
        """Return the tickets, none of them of a test set."""
        return tickets(self.rows, seed=0), []


TextData = Csv | Tickets


def read_rows(path: Path, text_column: str, label_column: str) -> list[Row]:
    """Return the (text, label) rows of a UTF-8 CSV file with a header, gzipped or not.

    Spaces around labels are removed, empty lines are skipped. Raises ValueError and OSError.
    """
    rows = []
    csv.field_size_limit(2**31 - 1)  # by default 131,072 characters
    with io.TextIOWrapper(io.BytesIO(read_bytes(path)), "utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                text = row[text_column] or ""
                label = (row[label_column] or "").strip()
                if None in row or not text.strip() or not label:
                    raise ValueError("more fields than the header, or no text or label")
                rows.append((text, label))
        except KeyError as error:
            allowed = f"text and label among {', '.join(reader.fieldnames or ())}"
            raise ValueError(f"{path}: found no column {error}; allowed: {allowed}") from None
        except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
            found = f"{error} in line {reader.line_num}"
            raise ValueError(f"{path}: found {found}; allowed: CSV in UTF-8") from None
    if not rows:
        raise ValueError(f"{path}: found no row; allowed: one or more below the header")
    return rows
