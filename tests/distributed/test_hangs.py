"""Ranks that hang in each way that is known: the failure names the rank, its line, and the others'."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.records.files import read_record
from tests.support import contrastive
from tests.support.hang_verdicts import WAYS, check_verdict, hang_sweep
from tests.support.running import line_sweep, local_profile, processes_below, run

pytestmark = pytest.mark.distributed
CONTRASTIVE = f"{contrastive.__file__}:Contrastive"


def test_a_loss_that_communicates_ends(tmp_path: Path) -> None:
    """Its operations are counted by every rank: by one alone, it would wait for the others."""
    variant = {"uses": CONTRASTIVE, "axes": {"strategy": "ddp", "world_size": 2}}
    sweep = line_sweep(tmp_path, {"contrastive": variant}, length={"steps": 10}, timeout=60)
    (record,) = run(sweep)
    assert record.failure is None, record.failure
    assert record.rank0 is not None
    # Two layers of 8x8, forward and for their weights; 32 similarities, forward and for both factors.
    assert record.rank0.flops_per_sample == 2 * 2 * (2 * 8 * 8) + 3 * (2 * 8 * 32)
    assert processes_below(tmp_path) == []


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_every_hang_is_named(tmp_path: Path, world_size: int, strategy: str) -> None:
    """Within the limits that every trial has: most of the minutes are waiting, so all wait at once."""
    with ExitStack() as stack:
        commands = []
        for way in WAYS:
            folder = tmp_path / way
            folder.mkdir()
            sweep = hang_sweep(folder, way, world_size=world_size, strategy=strategy)
            profile = local_profile(folder, slots=world_size)
            command = [sys.executable, "-m", "harness.cli", "--results", str(folder / "results")]
            command += ["run", str(sweep), "--cluster", str(profile)]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            stack.callback(process.kill)
            commands.append(process)
        assert [process.wait() for process in commands] == [1] * len(WAYS)
    for way in WAYS:
        (path,) = Results(tmp_path / way / "results").sweep_folder("line").record_paths()
        check_verdict(way, read_record(path))
    assert processes_below(tmp_path) == []
