"""`reduction: tree` computes the same bits at 1, 2 and 4 ranks, under DDP and FSDP2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.records.record import Record
from tests.support.commands import harness
from tests.support.running import LINE, line_sweep, local_profile, run

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
    assert {label: len(seen) for label, seen in digests(records).items()} == {
        "mlp": 1,
        "cnn": 1,
        "distilbert": 1,
        "gpt": 1,
        "line": 1,
    }


@pytest.mark.nightly
def test_the_backends_order_computes_other_bits_at_each_number_of_ranks(tmp_path: Path) -> None:
    workloads = {"mlp": WORKLOADS["mlp"] | {"options": {"dropout": 0.0}}}
    records = run(sweep_of(tmp_path, "backend", workloads, steps=12), slots=4)
    assert len(digests(records)["mlp"]) > 1


@pytest.mark.nightly
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_trial_that_continues_at_other_numbers_of_ranks_ends_with_the_same_bits(
    tmp_path: Path, workload: str
) -> None:
    """Saved at 4 ranks, continued at 2, saved again, and finished at 4: with DDP and with FSDP2."""
    content = {
        "name": "resumed",
        "workloads": {workload: WORKLOADS[workload]},
        "length": {"steps": 6},
        "evaluate": {
            "steps": 6
        },  # other ranks evaluate other shares, whose sums have other last bits
        "warmup": 1,
        "axes": {"reduction": "tree", "batch_size": 32, "world_size": 4},
        "matrix": {"strategy": ["ddp", "fsdp2"]},
    }
    path = tmp_path / "resumed.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    flags = ["--cluster", str(local_profile(tmp_path)), "--at-least", "bitwise", "--json"]
    ended = harness("parity", str(path), "--resume-at", "2,4", *flags)
    assert ended.code == 0, ended.out + ended.err
    cells = json.loads(ended.out)["cells"]
    assert [cell["rung"] for cell in cells] == ["bitwise", "bitwise"]
    assert all(cell["compared"] for cell in cells)


def test_the_backends_order_does_not_survive_another_number_of_ranks(tmp_path: Path) -> None:
    """The check can fail. From two ranks to one, whose sums have another order."""
    entry = {"options": {"dropout": 0.2}, "axes": {"strategy": "ddp", "world_size": 2}}
    path = line_sweep(tmp_path, {"line": entry}, length={"steps": 4})
    flags = ["--cluster", str(local_profile(tmp_path)), "--json"]
    ended = harness("parity", str(path), "--resume-at", "1", *flags)
    (cell,) = json.loads(ended.out)["cells"]
    assert cell["failure"] is None
    assert cell["first_difference"]["step"] == 3  # the first one of one rank
    assert "--resume-at: found '0'" in harness("parity", str(path), "--resume-at", "0").err
    refused = harness("parity", str(path), "--resume-at", "3").err
    assert "its 2 micro-batches can't be shared out evenly" in refused
