"""Defines what a sweep file may set for the built-in workloads.

This module imports no torch, so that planning a sweep takes no noticeable time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from msgspec import Meta

from workloads.files import (
    check_architecture,
    checkpoint_files,
    checkpoint_positions,
    errors_naming,
)


def Between(low: float | None = None, high: float | None = None) -> Meta:  # noqa: N802
    """Return the bounds of a number, both included, as in `Annotated[int, Between(1)]`.

    None leaves an end open.
    """
    return Meta(ge=low, le=high)


Count = Annotated[int, Between(1)]
Fraction = Annotated[float, Between(0, 0.99)]
Rate = Annotated[float, Between(1e-8, 10)]  # a learning rate


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of a workload's `Options` and `Data`: the fields are the keys that a sweep file may set.

    A field of type `Path`, or a list, tuple or dict of paths, says where files are. A cell's
    identity depends on the content of those files and on the field, and not on the path.
    """

    def with_paths_relative_to(self, base: Path) -> Self:
        """Return the same settings with relative paths taken as relative to `base`."""
        return self.with_paths(lambda path: base / path)

    def with_paths(self, change: Callable[[Path], Path]) -> Self:
        """Return the same settings with `change` applied to every path."""
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if any(_paths_in(value, field.name)):
                changes[field.name] = map_paths(value, change)
        return replace(self, **changes)

    def paths(self) -> dict[str, Path]:
        """Return every path by the setting that has it, as in `start` and `shards[0]`."""
        paths: dict[str, Path] = {}
        for field in fields(self):
            paths.update(_paths_in(getattr(self, field.name), field.name))
        return paths

    def files(self) -> list[Path]:
        """Return every file whose content decides what the workload computes, in a fixed order.

        One that does not exist is among them too.
        """
        files: dict[Path, None] = {}  # an ordered set
        for path in self.paths().values():
            files.update(dict.fromkeys(_files_below(path) if path.is_dir() else [path]))
        return list(files)

    def identity(self) -> dict[str, Any]:
        """Return the settings without their paths.

        Together with the digests of `files()` they decide what a workload computes.
        """
        values: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, Path):
                values[field.name] = map_paths(value, lambda path: None)
        return values

    def check(self) -> None:
        """Check the files before anything starts.

        Raises ValueError that names the file, what was found and what is allowed. Where the message
        begins with the name of a field and a colon, the harness shows that key of the sweep file.
        """

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Return why these settings make no sense with a cell's axes, None if they do."""
        return None


def map_paths(value: Any, change: Callable[[Path], Any]) -> Any:
    """Return the value of a setting with `change` applied to each path in it."""
    if isinstance(value, Path):
        return change(value)
    if isinstance(value, list):
        return [map_paths(item, change) for item in value]
    if isinstance(value, tuple):
        return tuple(map_paths(item, change) for item in value)
    if isinstance(value, dict):
        return {key: map_paths(item, change) for key, item in value.items()}
    return value


def _paths_in(value: Any, name: str) -> Iterator[tuple[str, Path]]:
    """Yield each path in the value of the setting `name`, by its place there."""
    if isinstance(value, Path):
        yield name, value
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _paths_in(item, f"{name}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _paths_in(item, f"{name}[{key}]")


def _files_below(folder: Path, above: frozenset[Path] = frozenset()) -> list[Path]:
    """Return all files below a folder, those in linked folders too.

    `above` are the folders around it, to which a link may lead back.
    """
    real = folder.resolve()
    if real in above:
        return []
    files: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            files += _files_below(path, above | {real})
        elif path.is_file():
            files.append(path)
    return files


@dataclass(frozen=True, kw_only=True)
class MLPOptions(Settings):
    """The options of the multilayer perceptron."""

    hidden: tuple[Count, ...] = (256, 128)  # features of each hidden layer
    batch_norm: bool = False
    dropout: Fraction = 0.2
    lr: Rate = 1e-3


@dataclass(frozen=True, kw_only=True)
class CNNOptions(Settings):
    """The options of the convolutional network."""

    width: Count = 16  # channels of the first convolution; the second has twice as many
    batch_norm: bool = False
    dropout: Fraction = 0.3
    lr: Rate = 2e-3  # the peak of the one-cycle schedule
    warmup: Fraction = 0.2  # the fraction of the steps in which the learning rate rises


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The shape of a transformer encoder that is trained from scratch."""

    layers: int
    width: int  # features of a token
    heads: int  # of the attention, which share the width
    feedforward: int  # features between the two feed-forward layers
    vocabulary: int  # tokens at most

    @property
    def shape(self) -> dict[str, int]:
        """Return what decides the shapes of all layers, by the names of DistilBERT's config.json."""
        return {
            "n_layers": self.layers,
            "dim": self.width,
            "n_heads": self.heads,
            "hidden_dim": self.feedforward,
        }


ARCHITECTURES = {
    "tiny": Architecture(layers=2, width=128, heads=4, feedforward=512, vocabulary=4096),
    "small": Architecture(layers=4, width=256, heads=4, feedforward=1024, vocabulary=8192),
    # DistilBERT as published: Sanh et al. 2019, arXiv:1910.01108
    "base": Architecture(layers=6, width=768, heads=12, feedforward=3072, vocabulary=30522),
}
# The peak learning rates that suit a model: from scratch by its size, wider ones lower; and of one that
# is fine-tuned, which would forget what it knows at those.
SCRATCH_RATES = {"tiny": 2e-3, "small": 2e-3, "base": 3e-4}
FINE_TUNING_RATE = 2e-5
POSITIONS = 512  # tokens of the longest text that DistilBERT takes, as published


@dataclass(frozen=True, kw_only=True)
class DistilBertOptions(Settings):
    """The options of DistilBERT.

    `size`, `pretrained` or `hub` says where the architecture comes from: a preset that is trained from
    scratch, a folder with weights and tokenizer, or a model on the hub. With `size` too, a folder must
    have that architecture.
    """

    # A folder that `save_pretrained` has written, tokenizer included. A name that is no folder but
    # has the form of a model on the hub means that model.
    pretrained: Path | None = None
    # A model on the Hugging Face hub; `name@revision` pins its revision.
    hub: str | None = None
    # None means tiny, or whatever the pretrained model has.
    size: Literal["tiny", "small", "base"] | None = None
    # Tokens of the vocabulary at most; None means as many as the size has.
    vocabulary: Annotated[int, Between(256)] | None = None
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
    weight_decay: Annotated[float, Between(0, 10)] = 0.01
    warmup: Fraction = 0.1  # the fraction of the steps in which the learning rate rises

    def __post_init__(self) -> None:
        """Raise ValueError for keys that contradict each other."""
        origins = ("pretrained", "hub", "size")
        chosen = [name for name in origins if getattr(self, name) is not None]
        if len(chosen) > 1 and chosen != ["pretrained", "size"]:
            raise ValueError(
                f"found {' and '.join(chosen)}; allowed: one of them, since each decides the"
                " architecture"
            )
        is_pretrained = self.pretrained is not None or self.hub is not None
        if self.vocabulary is not None and is_pretrained:
            raise ValueError(
                f"found vocabulary and {chosen[0]}; allowed: one of them, since {chosen[0]} comes"
                " with a tokenizer"
            )

    def with_paths_relative_to(self, base: Path) -> Self:
        """Return the same settings with `pretrained` resolved: to a folder, or to a model on the
        hub.

        A value that is no folder below `base` but has the form of a hub's name, `model` or
        `owner/model`, is taken as such.
        """
        name = self.pretrained
        if name is None or not _looks_like_hub_name(name) or (base / name).exists():
            return super().with_paths_relative_to(base)
        return replace(self, pretrained=None, hub=name.as_posix())

    @property
    def peak_lr(self) -> float:
        """Return the peak of the schedule: `lr`, or what suits the model."""
        if self.lr is not None:
            return self.lr
        if self.pretrained is not None or self.hub is not None:
            return FINE_TUNING_RATE
        return SCRATCH_RATES[self.size or "tiny"]

    @property
    def architecture(self) -> Architecture:
        """The preset with the vocabulary of the options; meaningless for pretrained models."""
        preset = ARCHITECTURES[self.size or "tiny"]
        return replace(preset, vocabulary=self.vocabulary or preset.vocabulary)

    def files(self) -> list[Path]:
        """Return the files of the pretrained model that decide what it computes."""
        if self.pretrained is None:
            return []
        return checkpoint_files(self.pretrained)

    def check(self) -> None:
        """Raise ValueError unless the pretrained model is complete and takes long enough texts.

        It must have the architecture that `size` names, if that is set.
        """
        if self.pretrained is None:
            return
        with errors_naming("pretrained"):
            positions = checkpoint_positions(self.pretrained)
            if self.size is not None:
                check_architecture(self.pretrained, self.size, ARCHITECTURES[self.size].shape)
        if self.sequence > positions:
            raise ValueError(
                f"sequence: found {self.sequence}; allowed: at most the {positions} of"
                f" {self.pretrained}"
            )

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Return why padding to the longest text does not go with torch.compile."""
        if self.padding == "longest" and axes["execution"] != "eager":
            return (
                f"execution {axes['execution']} would compile again for every length of a batch:"
                " set padding to fixed"
            )
        return None


# Decoders by size, whose tokens are bytes; the feed-forward width is 8/3 of the width, rounded up to a multiple of 32.
DECODERS = {
    "tiny": Architecture(layers=2, width=64, heads=4, feedforward=192, vocabulary=256),
    "small": Architecture(layers=4, width=256, heads=8, feedforward=704, vocabulary=256),
    "base": Architecture(layers=12, width=768, heads=12, feedforward=2048, vocabulary=256),
}


@dataclass(frozen=True, kw_only=True)
class GPTOptions(Settings):
    """The options of the decoder."""

    size: Literal["tiny", "small", "base"] = "tiny"
    lr: Rate = 3e-3  # the peak of the one-cycle schedule
    weight_decay: Annotated[float, Between(0, 10)] = 0.1  # of matrices
    warmup: Fraction = 0.1  # the fraction of the steps in which the learning rate rises

    @property
    def architecture(self) -> Architecture:
        """The shape of the decoder."""
        return DECODERS[self.size]


def _looks_like_hub_name(path: Path) -> bool:
    """Return whether a path has the form `model` or `owner/model`."""
    leaves_base = path.is_absolute() or path.parts[:1] == ("..",)
    return not leaves_base and len(path.parts) <= 2
