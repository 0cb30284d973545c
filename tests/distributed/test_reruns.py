"""A trial whose measurement is invalid is set aside and run again, up to a limit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.core.paths import Results, TrialFolder
from harness.launch import hold
from harness.records.files import read_record
from harness.records.record import Record
from harness.sweep.cell import Trial
from harness.sweep.validity import ValidityRules
from tests.support.commands import harness
from tests.support.running import RecordCollector, line_sweep, run

pytestmark = pytest.mark.distributed

PROFILE = "device: cpu\nslots: 2\nvalidity: {data_wait: %s, reruns: 1}\n"


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
        assert invalid.summary is not None

    profile.write_text(PROFILE % "null", encoding="utf-8")
    ended = harness("run", *arguments)
    assert ended.code == 0
    for path in results.sweep_folder("line").record_paths():
        record = read_record(path)
        assert (record.status, record.attempt, len(record.previous_failures)) == ("done", 3, 2)
    assert "already there" in harness("run", *arguments).out

    paths[0].write_text("{}", encoding="utf-8")
    ended = harness("run", *arguments)
    assert ended.code == 1
    assert str(paths[0]) in ended.err
    assert harness("run", *arguments, "--force").code == 0
    assert [read_record(path).status for path in paths] == ["done", "done"]


class BusyProgram(RecordCollector):
    """A listener with which other programs begin to compute once a trial trains."""

    def __init__(self) -> None:
        super().__init__()
        self.programs: list[subprocess.Popen[bytes]] = []

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None:
        if progress and not self.programs:
            busy = ["sh", "-c", "while :; do :; done"]
            self.programs = [subprocess.Popen(busy) for _ in range(os.cpu_count() or 1)]

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        super().on_trial_end(record, folder)
        for program in self.programs:
            program.kill()
            program.wait()


@pytest.mark.nightly
def test_a_trial_beside_programs_that_have_the_cores_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "LOCK_PATH", tmp_path / "host.lock")
    path = line_sweep(tmp_path, {"line": {}}, length={"steps": 4000})
    rules = ValidityRules(steal=None, reruns=0)
    (record,) = run(path, listener=BusyProgram(), validity=rules)
    assert record.status == "invalid"
    assert record.violations[0].startswith("contention: rank 0 on ")
