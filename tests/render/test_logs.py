"""What `harness status logs` prints."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.interface import logs as view
from harness.records.store import lock
from tests.factories import make_record, write_trial
from tests.support.commands import CommandResult, harness


@pytest.fixture
def trial(tmp_path: Path) -> TrialFolder:
    """A trial of one rank that is done."""
    record = make_record()
    sweep_folder = Results(tmp_path).sweep_folder("demo")
    write_trial(sweep_folder, record, logs="its output")
    trial_folder = sweep_folder.trial_folder(record.trial.id)
    trial_folder.assignment_path.touch()
    return trial_folder


def results_of(trial: TrialFolder) -> Path:
    return trial.path.parents[2]


def logs(trial: TrialFolder, *more: str, trial_id: str | None = None) -> CommandResult:
    return harness(
        "status", "logs", trial_id or trial.path.name, "--results", str(results_of(trial)), *more
    )


def test_prints_the_log_of_a_rank_or_of_what_started_the_ranks(trial: TrialFolder) -> None:
    assert logs(trial, "--rank", "0").out == "rank 0\nits output"
    assert logs(trial).out == "launched\nits output"


def test_says_of_an_empty_log_which_others_have_content(trial: TrialFolder) -> None:
    trial.launch_log.write_text("", encoding="utf-8")
    ended = logs(trial)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == (f"harness: {trial.launch_log} is empty; logs with content: rank0.log\n")


def test_of_a_rank_that_does_not_exist_lists_the_logs(trial: TrialFolder) -> None:
    ended = logs(trial, "--rank", "7")
    assert ended.code == 2
    assert "rank7.log: no such log; " in ended.err
    assert "allowed: launch.log, rank0.log" in ended.err


def test_of_a_trial_that_two_sweeps_have_needs_the_sweep(trial: TrialFolder) -> None:
    other = Results(results_of(trial)).sweep_folder("other")
    write_trial(other, make_record(sweep="other"))
    (other.path / trial.path.name / "trial.json").touch()
    ended = logs(trial)
    assert ended.code == 2
    assert "found in several sweeps, demo, other; allowed: name one of them with --sweep" in (
        ended.err
    )
    assert logs(trial, "--sweep", "demo").out == "launched\nits output"


def test_of_an_unknown_trial_suggests_the_nearest(trial: TrialFolder) -> None:
    ended = logs(trial, trial_id=trial.path.name[:-1] + "1")
    assert ended.code == 2
    assert trial.path.name in ended.err


def test_follows_until_the_trial_has_ended(
    trial: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.record_path.unlink()

    def write_more(seconds: float) -> None:
        with trial.rank_log(0).open("a", encoding="utf-8") as log:
            log.write("\nmore, and ü")
        trial.record_path.touch()

    monkeypatch.setattr(view, "sleep", write_more)
    with lock(SweepFolder(trial.path.parent)):
        assert logs(trial, "--rank", "0", "--follow").out == "rank 0\nits output\nmore, and ü"


def test_follows_no_trial_whose_command_was_killed(
    trial: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.record_path.unlink()
    folder = SweepFolder(trial.path.parent)

    def kill_command(seconds: float) -> None:
        held.close()

    monkeypatch.setattr(view, "sleep", kill_command)
    with ExitStack() as held:
        held.enter_context(lock(folder))
        assert logs(trial, "--follow").out == "launched\nits output"
    assert logs(trial, "--follow").out == "launched\nits output"
    folder.jobs_path.mkdir()  # a job may still run it, or run it again
    assert view._is_running(trial)


def test_linked_log_is_refused(trial: TrialFolder, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("secret", encoding="utf-8")
    trial.rank_log(0).unlink()
    trial.rank_log(0).symlink_to(tmp_path / "private")
    ended = logs(trial, "--rank", "0")
    assert (ended.code, ended.out) == (2, "")
    assert (
        "is no file, or reached through a link; allowed: a file in the trial's folder" in ended.err
    )


def test_terminal_gets_symbols_for_control_characters(
    trial: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.launch_log.write_bytes(b"\x1b]0;title\x07\t1/2\r2/2 \xc2\x9b2J\n")
    assert logs(trial).out == "\x1b]0;title\x07\t1/2\r2/2 \x9b2J\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert view._printable("\x1b]0;title\x07\t1/2\r2/2 \x9b2J\n") == (
        "\N{SYMBOL FOR ESCAPE}]0;title\N{SYMBOL FOR BELL}\t1/2\r2/2 \N{REPLACEMENT CHARACTER}2J\n"
    )


def test_a_runner_of_github_takes_no_line_of_a_log_for_a_command(
    trial: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.launch_log.write_text("::error::not ours\n", encoding="utf-8")
    assert logs(trial).out == "::error::not ours\n"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    first, line, empty, last = logs(trial).out.splitlines()
    assert (line, empty) == ("::error::not ours", "")
    word = first.removeprefix("::stop-commands::")
    assert (len(word), last) == (32, f"::{word}::")
    assert logs(trial).out.splitlines()[0] != first, "nobody can foresee the word"
