"""A trial that fails is failed by name, and stops no other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core.paths import Results
from harness.records.files import read_record
from harness.records.record import Record
from tests.support.commands import harness
from tests.support.running import by_label, line_sweep, processes_below, run, wait_until

pytestmark = pytest.mark.distributed

TWO: dict[str, Any] = {"strategy": "ddp", "world_size": 2}
PROFILE = "device: cpu\nslots: 2\nvalidity: {data_wait: %s, reruns: 1}\n"
VARIANTS: dict[str, dict[str, Any]] = {
    "nan": {"options": {"nan_at": 17}, "axes": TWO},
    "raises": {"options": {"raise_at": 9, "rank": 1}, "axes": TWO},
    "killed": {"options": {"kill_at": 9, "rank": 1}, "axes": TWO},
    "full": {"options": {"full_at": 9, "rank": 1}, "axes": TWO},
    "exits": {"options": {"exit_at": 9, "rank": 1}, "axes": TWO},
    "leaves": {"options": {"leave_at": 9, "rank": 1}, "axes": TWO},
    "fine": {"axes": TWO},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failures")


@pytest.fixture(scope="module")
def records(folder: Path) -> dict[str, Record]:
    """Run each variant in forked ranks."""
    sweep = line_sweep(folder, VARIANTS, length={"steps": 40})
    return by_label(run(sweep))


@pytest.mark.parametrize(
    ("label", "kind", "rank", "message"),
    [
        ("nan", "NonFiniteLoss", 0, "step 17 of 40"),
        ("raises", "ValueError", 1, "^the dog ate batch 17$"),
        ("killed", "Killed", 1, "SIGKILL"),
        ("full", "StorageError", 1, r"/rank1.json: could not be written; free: .* MiB$"),
        ("exits", "Exited", 1, "^with code 7; its log is empty$"),
        ("leaves", "SystemExit", 1, "^it had enough$"),
    ],
)
def test_each_failure_is_named_with_its_rank(
    records: dict[str, Record], label: str, kind: str, rank: int, message: str
) -> None:
    assert records[label].status == "failed"
    cause = records[label].failure
    assert cause is not None
    assert (cause.kind, cause.rank) == (kind, rank)
    assert re.search(message, cause.message)


def test_one_failed_trial_stops_no_other_and_keeps_what_was_seen(
    records: dict[str, Record], folder: Path
) -> None:
    assert records["fine"].status == "done"
    losses = records["nan"].ranks[0].loss
    assert losses is not None
    assert len(losses) >= 17
    assert processes_below(folder) == []


def test_an_exception_has_its_host_traceback_and_log(
    records: dict[str, Record], folder: Path
) -> None:
    cause = records["raises"].failure
    assert cause is not None
    assert cause.host
    assert "line.py" in str(cause.traceback)
    log = folder / "results" / "runs" / "line" / records["raises"].trial.id / str(cause.log)
    assert "the dog ate batch 17" in log.read_text(encoding="utf-8")


@pytest.mark.nightly
def test_a_trial_that_hangs_ends_at_its_time_out(tmp_path: Path) -> None:
    (record,) = run(
        line_sweep(tmp_path, {"hangs": {"options": {"hang_at": 5}, "axes": TWO}}, timeout=6)
    )
    assert record.failure is not None
    assert (record.failure.kind, record.failure.rank) == ("Timeout", 0)
    assert "line.py:" in record.failure.message, "it says where the rank hangs"
    assert 6 <= record.ended - record.started < 21
    assert processes_below(tmp_path) == []


@pytest.mark.parametrize("victims", [2, 4], ids=["agent-starts", "ranks-start"])
def test_torchrun_and_its_ranks_end_with_a_starter_that_is_killed(
    tmp_path: Path, victims: int
) -> None:
    """While they still import torch, too, which takes seconds.

    There are four processes at most: the starter, torchrun, and two ranks.
    """
    program = (
        "import sys, time; from pathlib import Path\n"
        "from harness.core.paths import TrialFolder\n"
        "from harness.launch.launcher import RankProgram\n"
        "from harness.launch.torchrun import Torchrun\n"
        "folder = TrialFolder(Path(sys.argv[1]))\n"
        "program = RankProgram(folder=folder, world_size=2, num_threads=1)\n"
        "Torchrun(environment={}).start(program)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "trial")]) as starter:
        wait_until(lambda: len(processes_below(tmp_path)) >= victims, every=0.01)
        starter.kill()
    wait_until(lambda: processes_below(tmp_path) == [], 2)
    assert processes_below(tmp_path) == []


def test_running_again_retries_what_failed_and_keeps_the_reasons(tmp_path: Path) -> None:
    variants = {"raises": {"options": {"raise_at": 1}}, "fine": {}}
    path = line_sweep(tmp_path, variants, length={"steps": 4})
    assert [record.status for record in run(path, fail_fast=True)] == ["failed"]
    before = by_label(run(path, redo="missing"))
    assert before["raises"].attempt == 1
    after = by_label(run(path))
    assert after["fine"] == before["fine"]
    assert after["raises"].attempt == 2
    assert [failure.message for failure in after["raises"].previous_failures] == [
        "the dog ate batch 17"
    ]


@pytest.mark.nightly
def test_invalid_trials_run_again_up_to_the_limit(tmp_path: Path) -> None:
    sweep = line_sweep(
        tmp_path, {"small": {"options": {"samples": 128}}, "large": {}}, length={"steps": 8}
    )
    profile = tmp_path / "profile.yaml"
    results = Results(tmp_path / "results")
    arguments = [str(sweep), "--cluster", str(profile), "--results", str(results.path)]

    profile.write_text(PROFILE % 0.0, encoding="utf-8")  # no loader is that fast
    ended = harness("run", *arguments)
    assert ended.code == 3
    assert ended.out.count("! 1/2 ") + ended.out.count("! 2/2 ") == 4  # two trials, each once again
    assert "invalid" in ended.out
    assert "data_wait: the loader starved: found" in ended.out
    paths = results.sweep_folder("line").record_paths()
    assert len(paths) == 2
    for path in paths:
        record = read_record(path)
        assert (record.status, record.attempt) == ("invalid", 2)
        assert [failure.kind for failure in record.previous_failures] == ["Invalid"]
        invalid = read_record(path.parent.with_name("attempt-1") / path.name)
        assert (invalid.status, invalid.attempt, invalid.failure) == ("invalid", 1, None)
        assert "data_wait_share" in invalid.numbers

    profile.write_text(PROFILE % "null", encoding="utf-8")
    ended = harness("run", *arguments)
    assert ended.code == 0
    paths = results.sweep_folder("line").record_paths()
    for path in paths:
        record = read_record(path)
        assert (record.status, record.attempt, len(record.previous_failures)) == ("done", 3, 2)
    assert "already there" in harness("run", *arguments).out
