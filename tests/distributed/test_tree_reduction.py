"""`reduction: tree` computes the same bits at 1, 2 and 4 ranks, under DDP and FSDP2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.records.record import Record
from tests.support.running import LINE, run

pytestmark = pytest.mark.distributed

# Each workload has dropout, one has batch norm, and one draws random numbers in loader workers. Layers
# of 10 and 8 features leave shards that fill no vector register.
WORKLOADS: dict[str, dict[str, Any]] = {
    "mlp": {"data": {"source": "digits"}},
    "cnn": {"data": {"source": "digits"}, "options": {"width": 8, "batch_norm": True}},
    "distilbert": {
        "data": {"source": "tickets", "rows": 100},
        "options": {"sequence": 64},  # more than any text has: the longest of a batch is its width
        "length": {"steps": 3},
    },
    "gpt": {"data": {"source": "python", "sequence": 16}, "length": {"steps": 3}},
    "line": {"uses": LINE, "options": {"noise": 0.1, "dropout": 0.2}, "axes": {"num_workers": 2}},
}
# Strategy, ranks and DDP's bucket size in MiB.
ARRANGEMENTS: list[tuple[str, int, float | None]] = [
    ("single", 1, None),
    ("ddp", 2, None),
    ("ddp", 4, 0.01),
    ("fsdp2", 1, None),
    ("fsdp2", 2, None),
    ("fsdp2", 4, None),
]
MICRO_BATCHES = 4
# Its ranks take longest, so it does without four of them.
DISTILBERT_WORLD_SIZES = (1, 2)


def sweep_of(folder: Path, reduction: str, workloads: dict[str, Any], steps: int) -> Path:
    """Write a sweep over the arrangements and return its path."""
    strategies, world_sizes, buckets = zip(*ARRANGEMENTS, strict=True)
    left_out = []
    if "distilbert" in workloads:
        for world_size in sorted(set(world_sizes).difference(DISTILBERT_WORLD_SIZES)):
            left_out.append({"workload": "distilbert", "world_size": world_size})
    if "line" in workloads:  # it is too small for two buckets
        left_out.append({"workload": "line", "ddp.bucket_cap_mb": 0.01})
    content = {
        "name": "tree",
        "workloads": workloads,
        "exclude": left_out,
        "length": {"steps": steps},
        "warmup": 1,
        "matrix": {"reduction": [reduction], "batch_size": [32]},
        "zip": [
            {
                "strategy": list(strategies),
                "world_size": list(world_sizes),
                "ddp.bucket_cap_mb": list(buckets),
                "grad_accum_steps": [MICRO_BATCHES // world_size for world_size in world_sizes],
            }
        ],
    }
    path = folder / "tree.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def digests(records: list[Record]) -> dict[str, set[str]]:
    """Return the different digests of the final parameters, by workload."""
    by_workload: dict[str, set[str]] = {}
    for record in records:
        assert record.failure is None
        assert record.rank0 is not None
        label = record.trial.cell.workload.label
        by_workload.setdefault(label, set()).add(record.rank0.parameter_digest)
    return by_workload


@pytest.mark.nightly
def test_all_arrangements_compute_the_same_bits(tmp_path: Path) -> None:
    records = run(sweep_of(tmp_path, "tree", WORKLOADS, steps=12), slots=4)
    # Two of the arrangements have four ranks, and one has small buckets.
    assert len(records) == len(WORKLOADS) * len(ARRANGEMENTS) - 2 - 1
    counts = {label: len(seen) for label, seen in digests(records).items()}
    assert counts == dict.fromkeys(WORKLOADS, 1)


@pytest.mark.nightly
def test_the_backends_order_computes_other_bits_at_each_number_of_ranks(tmp_path: Path) -> None:
    workloads = {"mlp": WORKLOADS["mlp"] | {"options": {"dropout": 0.0}}}
    records = run(sweep_of(tmp_path, "backend", workloads, steps=12), slots=4)
    assert len(digests(records)["mlp"]) > 1
