"""What `harness logs` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.paths import Results, TrialFolder
from harness.render.terminal import logs as view
from tests.factories import make_record, write_trial
from tests.support.commands import harness


@pytest.fixture
def trial(tmp_path: Path) -> TrialFolder:
    found = make_record()
    folder = Results(tmp_path).sweep_folder("demo")
    write_trial(folder, found, logs="its words")
    place = folder.trial_folder(found.trial.id)
    place.assignment_path.touch()
    return place


def logs(trial: TrialFolder, *more: str) -> str:
    ended = harness("logs", trial.path.name, "--results", str(trial.path.parents[2]), *more)
    return ended.out if ended.code == 0 else ended.err


def test_of_a_rank_and_of_what_started_it(trial: TrialFolder) -> None:
    assert logs(trial, "--rank", "0") == "rank 0\nits words"
    assert logs(trial) == "launched\nits words"


def test_an_empty_one_is_said_to_be_empty(trial: TrialFolder) -> None:
    trial.launch_log.write_text("", encoding="utf-8")
    ended = harness("logs", trial.path.name, "--results", str(trial.path.parents[2]))
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == f"harness: {trial.launch_log}: empty; written: rank0.log\n"


def test_of_a_rank_that_there_is_not(trial: TrialFolder) -> None:
    assert "rank7.log: not there; " in logs(trial, "--rank", "7")
    assert "allowed: launch.log, rank0.log" in logs(trial, "--rank", "7")


def test_a_trial_of_two_sweeps_needs_its_sweep(trial: TrialFolder) -> None:
    write_trial(Results(trial.path.parents[2]).sweep_folder("other"), make_record(sweep="other"))
    (trial.path.parents[1] / "other" / trial.path.name / "trial.json").touch()
    assert "found in demo, other; allowed: one of them, with --sweep" in logs(trial)
    assert logs(trial, "--sweep", "demo") == "launched\nits words"


def test_an_unknown_one_gets_the_nearest(trial: TrialFolder) -> None:
    ended = harness("logs", trial.path.name[:-1] + "1", "--results", str(trial.path.parents[2]))
    assert ended.code == 2
    assert trial.path.name in ended.err


def test_follows_until_the_trial_has_ended(
    trial: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.record_path.unlink()

    def meanwhile(seconds: float) -> None:
        with trial.rank_log(0).open("a", encoding="utf-8") as log:
            log.write("\nmore, and ü")
        trial.record_path.touch()

    monkeypatch.setattr(view, "sleep", meanwhile)
    assert logs(trial, "--rank", "0", "--follow") == "rank 0\nits words\nmore, and ü"
