"""The memory that training takes: right for a known allocation, and seen to fall where a setting
saves some.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.records.record import Record
from tests.support.running import by_label, line_sweep, run

pytestmark = pytest.mark.distributed

BALLAST = f"{Path(__file__).parent.parent / 'support' / 'ballast.py'}:Ballast"
# In MiB. Gradients come when the activations are gone. Of more than 32 MiB at once, as each layer
# has, glibc keeps nothing that was freed.
PARAMETERS = 64
ACTIVATIONS = 96
OPTIONS = {"parameters": PARAMETERS, "activations": ACTIVATIONS, "layers": 2}


def mebibytes(record: Record) -> list[float]:
    """Return what each rank's training took."""
    assert record.failure is None, record.failure
    return [rank.numbers["memory_training_mib"] for rank in record.ranks]


def test_a_known_allocation_is_found_within_5_percent(tmp_path: Path) -> None:
    """DDP's buckets of gradients stay; of activations that are checkpointed, one layer's are there."""
    variants: dict[str, dict[str, Any]] = {
        "single": {},
        "ddp": {"strategy": "ddp", "world_size": 2, "ddp.gradient_as_bucket_view": True},
        "checkpointing": {"activation_checkpointing": True},
    }
    entries: dict[str, Any] = {}
    for label, axes in variants.items():
        entries[label] = {"uses": BALLAST, "options": OPTIONS, "axes": axes}
    records = by_label(run(line_sweep(tmp_path, entries, length={"steps": 3})))
    whole = PARAMETERS + ACTIVATIONS
    assert mebibytes(records["single"]) == pytest.approx([whole], rel=0.05)
    assert mebibytes(records["ddp"]) == pytest.approx([whole + PARAMETERS] * 2, rel=0.05)
    # Parameters and gradients are then more than parameters and the activations of a layer.
    assert mebibytes(records["checkpointing"]) == pytest.approx([2 * PARAMETERS], rel=0.05)
