"""Texts of users and of ranks: shown as they are, by every command, and never as commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.core.paths import Results
from harness.records.record import Failure
from tests.factories import make_record
from tests.support.commands import harness
from tests.support.reports import make_sweep, write_run

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m"


def test_an_error_of_a_rank_sends_no_escape_sequences(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    sweep = make_sweep(tmp_path, seeds=1)
    failure = Failure(
        kind=f"Error{ESCAPE}",
        message=f"[/x] {ESCAPE}\n::error::owned",
        rank=0,
        host=ESCAPE,
        log="logs/rank0.log",
        traceback=ESCAPE,
    )
    records = []
    for trial in sweep.trials():
        record = make_record(trial.cell, seed=0, sweep="demo", status="failed", failure=failure)
        records.append(replace(record, sweep="demo"))
    write_run(results, sweep, records)
    for command in (["show", "demo"], ["status", "demo"], ["show", "demo", "--wide"]):
        ended = harness(*command, "--results", str(results.path))
        shown = ended.out.replace("\n", "")
        assert shown.isprintable()
        assert "\n::error::" not in ended.out
