"""What a sweep may say about the built-in workloads. Knows no torch, so that planning stays instant."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from workloads.files import blame, checkpoint_files, checkpoint_positions


@dataclass(frozen=True)
class Between:
    """Bounds of a number in a sweep: `Annotated[int, Between(1)]`; either end may be left open (None)."""

    low: float | None = None
    high: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        bounds = {"ge": self.low, "le": self.high}
        return {
            **handler(source),
            **{key: value for key, value in bounds.items() if value is not None},
        }


Count = Annotated[int, Between(1)]
Fraction = Annotated[float, Between(0, 0.99)]
Rate = Annotated[float, Between(1e-8, 10)]  # a learning rate


class Strict:
    """Base of dataclasses that are read from a user's file: a key that is no field is an error."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Settings(Strict):
    """Base of a workload's `Options` and `Data`: a frozen dataclass whose fields are the keys a sweep may set.

    Fields of type `Path` say where something lies; what lies there, not the path, belongs to a cell's identity.
    """

    def with_paths_relative_to(self, base: Path) -> Self:
        """The same settings with relative paths taken as relative to `base`."""
        paths = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(
            self, **{name: base / path for name, path in paths.items() if isinstance(path, Path)}
        )

    def files(self) -> list[Path]:
        """Every file whose content these settings stand for, in a fixed order."""
        found: list[Path] = []
        for field in fields(self):
            path = getattr(self, field.name)
            if isinstance(path, Path):
                found += (
                    sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
                )
        return found

    def identity(self) -> dict[str, Any]:
        """The settings without their paths: with the digest of `files()` they decide what a workload computes."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if not isinstance(value, Path)}

    def check(self) -> None:
        """Look at the files before anything starts; raises ValueError naming the file, what was found and allowed."""

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Why these settings make no sense with a cell's axes, or None."""
        return None


@dataclass(frozen=True, kw_only=True)
class MLPOptions(Settings):
    hidden: tuple[Count, ...] = (256, 128)  # width of each hidden layer
    batch_norm: bool = False
    dropout: Fraction = 0.2
    lr: Rate = 1e-3


@dataclass(frozen=True, kw_only=True)
class CNNOptions(Settings):
    width: Count = 16  # channels of the first convolution; the second has twice as many
    batch_norm: bool = False
    dropout: Fraction = 0.3
    lr: Rate = 2e-3  # the peak of the one-cycle schedule
    warmup: Fraction = 0.2  # part of the steps in which the learning rate rises


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Shape of a transformer encoder trained from scratch."""

    layers: int
    width: int
    heads: int
    feedforward: int
    vocabulary: int


ARCHITECTURES = {
    "tiny": Architecture(layers=2, width=128, heads=4, feedforward=512, vocabulary=4096),
    "small": Architecture(layers=4, width=256, heads=4, feedforward=1024, vocabulary=8192),
    # DistilBERT as published: Sanh et al. 2019, arXiv:1910.01108
    "base": Architecture(layers=6, width=768, heads=12, feedforward=3072, vocabulary=30522),
}
POSITIONS = 512


@dataclass(frozen=True, kw_only=True)
class DistilBertOptions(Settings):
    """A preset trained from scratch; or weights and tokenizer of a folder (`pretrained`) or of a model on the hub."""

    pretrained: Path | None = (
        None  # a folder written by save_pretrained, its tokenizer included; or as `hub`
    )
    hub: str | None = None  # a name on the Hugging Face hub; name@revision pins it
    size: Literal["tiny", "small", "base"] | None = (
        None  # None: tiny, unless the model is pretrained
    )
    vocabulary: Annotated[int, Between(256)] | None = (
        None  # most tokens in the vocabulary; None: that of the size
    )
    sequence: Annotated[int, Between(3, POSITIONS)] = (
        48  # most tokens of a text; what is longer is cut
    )
    padding: Literal["longest", "fixed"] = (
        "longest"  # to the longest text of a batch, or always to `sequence`
    )
    dropout: Fraction = 0.1
    label_smoothing: Fraction = 0.1
    lr: Rate = 2e-3  # the peak of the one-cycle schedule
    weight_decay: Annotated[float, Between(0, 10)] = 0.01
    warmup: Fraction = 0.1  # part of the steps in which the learning rate rises

    def __post_init__(self) -> None:
        given = [name for name in ("pretrained", "hub", "size") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(
                f"found {' and '.join(given)}; allowed: one of them, as each decides the architecture"
            )
        if self.vocabulary is not None and (self.pretrained or self.hub):
            raise ValueError(
                f"found vocabulary and {given[0]}; allowed: one of them, as a tokenizer comes with {given[0]}"
            )

    def with_paths_relative_to(self, base: Path) -> Self:
        """A `pretrained` that is no folder but has the form of a hub's name, `model` or `owner/model`, is one."""
        name = self.pretrained
        if name is None or name.is_absolute() or name.parts[:1] == ("..",) or len(name.parts) > 2:
            return super().with_paths_relative_to(base)
        if (base / name).exists():
            return super().with_paths_relative_to(base)
        return replace(self, pretrained=None, hub=name.as_posix())

    @property
    def architecture(self) -> Architecture:
        """The preset with its vocabulary; for training from scratch only."""
        preset = ARCHITECTURES[self.size or "tiny"]
        return replace(preset, vocabulary=self.vocabulary or preset.vocabulary)

    def files(self) -> list[Path]:
        return checkpoint_files(self.pretrained) if self.pretrained else []

    def check(self) -> None:
        if self.pretrained is None:
            return
        with blame("pretrained"):
            positions = checkpoint_positions(self.pretrained)
        if self.sequence > positions:
            raise ValueError(
                f"sequence: found {self.sequence}; allowed: at most the {positions} of {self.pretrained}"
            )

    def conflict(self, axes: dict[str, Any]) -> str | None:
        if self.padding == "longest" and axes["execution"] != "eager":
            return f"execution {axes['execution']} would compile again for every length of a batch: set padding to fixed"
        return None
