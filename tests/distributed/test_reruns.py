"""A trial whose measurement is invalid is set aside and run again, up to a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.records.files import read_record
from tests.support.commands import harness
from tests.support.running import line_sweep

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
        assert "data_wait_share" in invalid.numbers

    profile.write_text(PROFILE % "null", encoding="utf-8")
    ended = harness("run", *arguments)
    assert ended.code == 0
    paths = results.sweep_folder("line").record_paths()
    for path in paths:
        record = read_record(path)
        assert (record.status, record.attempt, len(record.previous_failures)) == ("done", 3, 2)
    assert "already there" in harness("run", *arguments).out
