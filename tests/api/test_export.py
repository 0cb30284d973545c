"""`harness show --output`: the table of trials in files."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import harness
from harness.sweep.sweep import Sweep
from tests.support.commands import harness as command


@pytest.mark.parametrize(
    ("ending", "read"),
    [
        ("csv", pd.read_csv),
        ("json", lambda path: pd.read_json(path, orient="records", precise_float=True)),
        ("parquet", pd.read_parquet),
    ],
)
def test_every_format_has_the_trials_of_the_data_frame(
    demo: Sweep, tmp_path: Path, ending: str, read: object
) -> None:
    trials = harness.load("demo").trials
    path = tmp_path / f"trials.{ending}"
    written = command("show", "demo", "--output", str(path))
    assert (written.code, written.out) == (0, f"{path}\n")
    table = read(path)  # type: ignore[operator]
    assert list(table.columns) == list(trials.columns)
    assert table.trial.to_list() == trials.trial.to_list()
    rates = table.throughput_samples_per_s.to_list()
    assert rates == pytest.approx(trials.throughput_samples_per_s.to_list(), rel=1e-14)


def test_a_name_that_says_no_format_is_bad_input(demo: Sweep) -> None:
    refused = command("show", "demo", "--output", "trials.xls")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(
        "harness: --output: found trials.xls; allowed: a name that ends in .csv, .json, .parquet"
    )
    assert not Path("trials.xls").exists()
