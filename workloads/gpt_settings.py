"""What a sweep file may set for the decoder: its options, and the text that it is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from workloads.settings import (
    Between,
    Decay,
    Fraction,
    Rate,
    Settings,
    read_bytes,
    unfilled_batch,
)

HELD_OUT = 0.15  # of a text, for testing


@dataclass(frozen=True)
class DecoderShape:
    """The shape of a decoder."""

    layers: int
    width: int  # features of a token
    heads: int  # of the attention, which share the width
    feedforward: int  # features between the feed-forward products: 8/3 of the width, of whole 32s
    vocabulary: int = 256  # tokens are bytes


DECODERS = {
    "tiny": DecoderShape(layers=2, width=64, heads=4, feedforward=192),
    "small": DecoderShape(layers=4, width=256, heads=8, feedforward=704),
    "base": DecoderShape(layers=12, width=768, heads=12, feedforward=2048),
}


@dataclass(frozen=True, kw_only=True)
class GPTOptions(Settings):
    """The options of the decoder."""

    size: Literal["tiny", "small", "base"] = "tiny"
    lr: Rate = 3e-3  # the peak of the one-cycle schedule
    weight_decay: Decay = 0.1  # of matrices
    warmup: Fraction = 0.1  # the fraction of the steps in which the learning rate rises


@dataclass(frozen=True, kw_only=True)
class Corpus(Settings):
    """Base of the settings of a running text: its beginning to train on, its end to test on."""

    sequence: Annotated[int, Between(1, 2**20)] = 128  # tokens of a sample
    validation: Fraction = 0.0  # of what is not for testing, its end; 0: no validation set

    def content(self) -> bytes:
        """Return the text."""
        raise NotImplementedError

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """Return the text to train on, to validate with and to test on, in its order."""
        content = self.content()
        end = len(content) - round(HELD_OUT * len(content))
        train = end - round(self.validation * end)
        return content[:train], content[train:end], content[end:]

    @cached_property  # cells of a sweep ask again and again
    def training_samples(self) -> int:
        """Return the number of sequences to train on."""
        train, _, _ = self.parts()
        return max(0, len(train) - 1) // self.sequence

    def check(self) -> None:
        """Raise ValueError unless each part has a sequence with a byte after it."""
        _, validation, test = self.parts()
        smallest = min(len(part) for part in (validation or test, test))
        if smallest <= self.sequence:
            allowed = f"less than the {smallest} bytes of the smallest part"
            raise ValueError(f"sequence: found {self.sequence}; allowed: {allowed}")

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Return a conflict if no batch of the size that the axes ask for can be filled."""
        return unfilled_batch(axes, self.training_samples)


@dataclass(frozen=True, kw_only=True)
class PythonTopics(Corpus):
    """The reference of the language that comes with Python: half a megabyte of English.

    Another version of Python has another text, and so other cells.
    """

    source: Literal["python"] = "python"

    def content(self) -> bytes:
        """Return the topics of Python's `help`, in alphabetical order."""
        from pydoc_data.topics import topics

        in_order = [topics[name] for name in sorted(topics)]
        return "\n\n".join(in_order).encode()

    def files(self) -> list[Path]:
        """Return the module that has the text."""
        from pydoc_data import topics

        return [Path(topics.__file__)]


@dataclass(frozen=True, kw_only=True)
class TextFile(Corpus):
    """A file of text, of any encoding, gzipped or not."""

    source: Literal["file"] = "file"
    path: Path

    def content(self) -> bytes:
        """Return the content of the file."""
        return read_bytes(self.path)


CorpusData = PythonTopics | TextFile
