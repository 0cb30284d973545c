"""Sweeps that have not run, and records that can't be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.records.format import sealed_text
from harness.records.record import SCHEMA
from tests.bad_input.refusals import GOOD, check, refused
from tests.support.commands import harness


@pytest.mark.parametrize("command", ["show", "collect"])
def test_sweep_that_has_not_run(command: str) -> None:
    Path("results/runs/nightly").mkdir(parents=True)
    Path("results/runs/nightly/sweep.json").write_text("{}", encoding="utf-8")
    line = refused(*command.split(), "nightli")
    wanted = "nightli: no records of such a sweep in results/runs; did you mean 'nightly'? allowed: nightly"
    assert line == wanted


@pytest.mark.parametrize("command", ["show", "collect"])
def test_sweep_whose_folder_is_damaged(command: str) -> None:
    Path("results/runs/nightly").mkdir(parents=True)
    Path("results/runs/nightly/sweep.json").write_text('{"name": ', encoding="utf-8")
    check(
        refused(*command.split(), "nightly"),
        "results/runs/nightly/sweep.json: can't be read as a sweep: ",
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            f'{{"schema": {SCHEMA}, "sweep": "demo"',
            "can't be read as a record: Input data was truncated; move it away",
        ),
        (
            '{"schema": 99}',
            "schema: found 99; allowed: 9; another version of the harness wrote it; ",
        ),
        ("[]", "can't be read as a record: Expected `object`, got `array`; move it away"),
        (f'{{"schema": {SCHEMA}}}', "seal: found none at the end that is of the text before it: "),
        (
            sealed_text({"schema": SCHEMA}),
            "can't be read as a record: Object missing required field `sweep`; move it away",
        ),
    ],
    ids=["truncated", "schema", "list", "unsealed", "incomplete"],
)
def test_record_that_stands_in_the_way(content: str, problem: str) -> None:
    from harness.sweep import sweep as spec

    Path("sweep.yaml").write_text(GOOD, encoding="utf-8")
    trial = spec.load_sweep(Path("sweep.yaml")).trials()[0]
    path = Path("results/runs/demo") / trial.id / "attempt-1" / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    ended = harness("run", "sweep.yaml")
    assert ended.code == 1  # the sweep goes on, but is not complete
    assert ended.err.startswith(f"{path}: {problem}")
    assert ended.err.endswith("\n1 record left out, because of the above\n")
    assert ended.err.count("\n") == 2
    assert path.read_text(encoding="utf-8") == content
    assert not list(path.parent.glob("trial.json"))
