"""A small sweep that races, and records of its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.records.record import Record
from harness.spec.cell import Trial
from harness.spec.sweep import Sweep
from tests.factories import make_record
from tests.support.sweeps import load

SPEEDS = {16: 1000.0, 64: 5000.0, 256: 4900.0}  # samples/s by batch size


def race_sweep(folder: Path, **keys: Any) -> Sweep:
    rules = {
        "length": {"steps": 60},
        "warmup": 2,
        "repeats": 8,
        "matrix": {"batch_size": [16, 64, 256]},
        "race": {},
    }
    return load(folder, **{**rules, **keys})


def speed_record(trial: Trial, speeds: Mapping[int, float] = SPEEDS) -> Record:
    """Return a trial's record with the speed of its batch size, ±1% by its block."""
    record = make_record(trial.cell, seed=trial.seed, repeat=trial.repeat)
    assert record.summary is not None
    batch_size = trial.cell.axes.batch_size
    noise = np.random.default_rng([trial.seed, trial.repeat, batch_size]).normal(0, 0.01)
    throughput = speeds[batch_size] * math.exp(noise)
    return replace(record, summary=replace(record.summary, throughput=throughput))
