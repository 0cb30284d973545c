"""What a sweep file may set for the convolutional network."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.settings import Count, Fraction, Rate, Settings


@dataclass(frozen=True, kw_only=True)
class CNNOptions(Settings):
    """The options of the convolutional network."""

    width: Count = 16  # channels of the first convolution; the second has twice as many
    batch_norm: bool = False
    dropout: Fraction = 0.3
    lr: Rate = 2e-3  # the peak of the one-cycle schedule
    warmup: Fraction = 0.2  # the fraction of the steps in which the learning rate rises
