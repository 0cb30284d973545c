"""The lane of a trial: its share of a machine, next to those in which other trials ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.bounds import Number, Ordinal


@dataclass(frozen=True, kw_only=True)
class Lane:
    """The share of a machine that a trial has for itself, while others run in the other lanes.

    The default is the whole machine.
    """

    number: Number = 0  # counted from 0
    count: Ordinal = 1  # lanes of the machine, this one included
    cores: Sequence[Number] = ()  # CPU cores that its ranks are bound to; none: they are not bound
    gpus: Sequence[Number] = ()  # its GPUs among those that a process sees; none: all of them
