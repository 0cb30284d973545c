"""A profile is held against what the real sinfo says."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.spec import partitions
from harness.spec.partitions import NodeGroup, Partition
from tests.slurm.cluster import Slurm
from tests.support.commands import harness

pytestmark = pytest.mark.slurm


def test_the_real_answer_is_understood(slurm: Slurm) -> None:
    nodes = [NodeGroup(count=2, cpus=4, memory_mib=8000, gpus={})]
    assert partitions.query() == [
        Partition(name="debug", default=True, time_limit_seconds=3600, nodes=nodes),
        Partition(name="urgent", default=False, time_limit_seconds=3600, nodes=nodes),
    ]


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("partition", "urgnt", "found 'urgnt'; did you mean 'urgent'? allowed: debug, urgent"),
        (
            "nodes",
            "3",
            "found 3; allowed: at most 2, which have what is asked for in partition debug",
        ),
        (
            "cpus_per_rank",
            "5",
            "found 5; allowed: at most 4 for the 1 ranks of a node in partition debug",
        ),
        ("time", "2:00:00", "found '2:00:00', 7200 s; allowed: at most 3600 s in partition debug"),
        ("memory", "9G", "found '9G'; allowed: at most 8000 MiB in partition debug"),
    ],
)
def test_what_it_can_not_do_is_one_line(
    slurm: Slurm, tmp_path: Path, key: str, value: str, line: str
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"launcher: slurm\nslurm:\n  {key}: {value}\n", encoding="utf-8")
    ended = harness("plan", "quickstart", "--cluster", str(path))
    assert (ended.code, ended.err) == (2, f"harness: {path}:3: slurm.{key}: {line}\n")
