"""What a sweep file may set for the multilayer perceptron."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.settings import Count, Fraction, Rate, Settings


@dataclass(frozen=True, kw_only=True)
class MLPOptions(Settings):
    """The options of the multilayer perceptron."""

    hidden: tuple[Count, ...] = (256, 128)  # features of each hidden layer
    batch_norm: bool = False
    dropout: Fraction = 0.2
    lr: Rate = 1e-3
