"""The memory that training takes: right for a known allocation, and seen to fall where a setting
saves some.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from harness.measure.memory import training_bytes
from harness.records.record import Record
from tests.support.running import by_label, line_sweep, run

pytestmark = pytest.mark.distributed

BALLAST = f"{Path(__file__).parent.parent / 'support' / 'ballast.py'}:Ballast"
HAND_BACK = {
    "MALLOC_MMAP_THRESHOLD_": "131072"
}  # bytes from which on glibc keeps nothing that was freed


def mebibytes(record: Record) -> list[float]:
    """What each rank's training took."""
    assert record.failure is None, record.failure
    return [(training_bytes(rank.memory) or 0) / 2**20 for rank in record.ranks]


def test_a_known_allocation_is_found_within_5_percent(tmp_path: Path) -> None:
    """128 MiB of parameters and 384 of activations; gradients come when the activations are gone."""
    ddp = {"strategy": "ddp", "world_size": 2, "gradient_as_bucket_view": True}
    entries: dict[str, Any] = {"single": {"uses": BALLAST}, "ddp": {"uses": BALLAST, "axes": ddp}}
    found = by_label(run(line_sweep(tmp_path, entries, length={"steps": 4})))
    assert mebibytes(found["single"]) == pytest.approx([512], rel=0.05)
    assert mebibytes(found["ddp"]) == pytest.approx(
        [512 + 128] * 2, rel=0.05
    )  # and buckets of gradients that stay


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Any]:
    source = random.Random(0)
    words = ["red", "green", "blue", "north", "south", "east", "west"]
    rows = [f"{' '.join(source.choices(words, k=60))},{number % 2}" for number in range(80)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return {"source": "csv", "path": str(tmp_path / "texts.csv")}


def distilbert(texts: dict[str, Any], axes: dict[str, Any], **options: Any) -> dict[str, Any]:
    given = {"padding": "fixed", "vocabulary": 256, **options}
    return {"uses": "distilbert", "data": texts, "options": given, "axes": axes}


def test_activation_checkpointing_lowers_what_activations_take(
    tmp_path: Path, texts: dict[str, Any]
) -> None:
    """Of four layers it keeps what goes in, and one at a time inside: less than half of it all."""
    entries = {
        str(asked): distilbert(
            texts, {"activation_checkpointing": asked}, size="small", sequence=64
        )
        for asked in (False, True)
    }
    path = line_sweep(tmp_path, entries, length={"steps": 2}, warmup=0, axes={"batch_size": 32})
    found = by_label(run(path, environment=HAND_BACK))
    (without,), (asked,) = mebibytes(found["False"]), mebibytes(found["True"])
    assert asked < 0.7 * without


def test_fsdp2_lowers_what_parameters_take(tmp_path: Path, texts: dict[str, Any]) -> None:
    """DDP holds parameters, gradients, their buckets and Adam's two moments: 5 times 165 MiB; FSDP2
    halves the most.
    """
    entries = {
        strategy: distilbert(
            texts, {"strategy": strategy, "world_size": 2}, size="base", sequence=8
        )
        for strategy in ("ddp", "fsdp2")
    }
    path = line_sweep(tmp_path, entries, length={"steps": 2}, warmup=0, axes={"batch_size": 8})
    found = by_label(run(path, environment=HAND_BACK))
    ddp, fsdp2 = mebibytes(found["ddp"]), mebibytes(found["fsdp2"])
    assert max(fsdp2) < 0.7 * min(ddp)
