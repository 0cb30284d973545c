"""`harness show --format`: the table of trials in files."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet
import pytest

import harness
from harness.spec.sweep import Sweep
from tests.support.commands import harness as command


def test_every_format_has_the_trials_of_the_data_frame(demo: Sweep, tmp_path: Path) -> None:
    trials = harness.load("demo").trials
    shown = command("show", "demo", "--format", "csv")
    assert (shown.code, shown.err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    objects = json.loads(command("show", "demo", "--format", "json").out)
    path = tmp_path / "tables" / "trials.parquet"
    written = command("show", "demo", "--output", str(path))
    assert written.out == f"{path}\n"
    pd.testing.assert_frame_equal(pd.read_parquet(path), trials)
    for table in (rows, objects):
        assert list(table[0]) == list(trials.columns)
        assert [row["trial"] for row in table] == trials.trial.to_list()
        rates = [float(row["throughput_samples_per_s"]) for row in table]
        assert rates == trials.throughput_samples_per_s.to_list()  # to the last bit
    assert rows[0]["started"] == objects[0]["started"] == "2023-11-14T22:13:20.000+00:00"
    assert (rows[0]["max_grad_norm"], objects[0]["max_grad_norm"]) == ("", None)
    field = pyarrow.parquet.read_schema(path).field("step_time_p50_ms")
    assert field.metadata[b"unit"] == b"ms"
    query = "SELECT precision, count(*), avg(throughput_samples_per_s)"
    means = trials.groupby("precision").throughput_samples_per_s.mean()
    assert queried(f"{query} FROM '{path}' GROUP BY ALL ORDER BY 1") == [
        ["bf16", 3, pytest.approx(means["bf16"])],
        ["fp32", 3, pytest.approx(means["fp32"])],
    ]


def queried(query: str) -> Any:
    """Return what DuckDB answers.

    In a process of its own: at the end of this one, it would list what pytest still holds.
    """
    program = f"import duckdb, json; print(json.dumps(duckdb.sql({query!r}).fetchall()))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return json.loads(ended.stdout)


def test_markdown_has_the_columns_that_matter(demo: Sweep) -> None:
    lines = command("show", "demo", "--format", "markdown", "--only", "seed=0").out.splitlines()
    assert lines == [
        "| workload | precision | seed | repeat | status | throughput_samples_per_s | step_time_p50_ms"
        " | final_accuracy |",
        "| --- | --- | ---: | ---: | --- | ---: | ---: | ---: |",
        "| mlp | fp32 | 0 | 0 | done | 6,388 | 10.08 | 0.9 |",
        "| mlp | bf16 | 0 | 0 | done | 7,985 | 8.06 | 0.9 |",
    ]


def test_columns_are_chosen_in_their_order(demo: Sweep, tmp_path: Path) -> None:
    shown = command(
        "show", "demo", "--format", "csv", "--columns", "seed, precision", "--cell", "mlp-"
    )
    assert shown.code == 2
    shown = command(
        "show", "demo", "--format", "csv", "--columns", "seed, precision", "--only", "seed>1"
    )
    assert sorted(shown.out.splitlines()) == ["2,bf16", "2,fp32", "seed,precision"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "cvs"], "--format: found 'cvs'; did you mean 'csv'? allowed: csv, json, markdown,"),
        (["--format", "parquet"], "--format parquet: found no --output; allowed: --output FILE"),
        (["--output", "trials.xls"], "--output trials.xls: found no --format; allowed: one, or a name in"),
        (["--format", "csv", "--columns", "sed"], "--columns: found 'sed'; did you mean 'seed'?"),
        (["--columns", "seed"], "--columns: found without --format"),
        (["--format", "csv", "--phases"], "--format, --output: found with --phases or --pivot"),
        (["--phases", "--pivot", "precision"], "--phases, --pivot: found both; allowed: one of them"),
    ],
)  # fmt: skip
def test_options_that_are_wrong_are_bad_input(
    demo: Sweep, options: list[str], message: str
) -> None:
    refused = command("show", "demo", *options)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"harness: {message}")
    assert not Path("trials.xls").exists()
