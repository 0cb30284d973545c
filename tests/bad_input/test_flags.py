"""Options and arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bad_input.refusals import GOOD, check, refused, tree


@pytest.mark.parametrize(
    ("flags", "begins"),
    [
        (
            ["--set", "precsion=bf16"],
            "--set precsion=bf16: unknown axis; did you mean 'precision'?",
        ),
        (
            ["--set", "precision=bf17"],
            "--set precision=bf17: matrix.precision[0]: found \"bf17\"; did you mean 'bf16'?",
        ),
        (
            ["--set", "precision"],
            "--set precision: found no '='; allowed: --set AXIS=VALUE,VALUE or KEY=VALUE",
        ),
        (
            ["--set", "batch_size=32,0"],
            "--set batch_size=32,0: matrix.batch_size[1]: found 0; allowed: at least 1",
        ),
        (["--set", "precision=[fp32"], "--set precision=[fp32: no valid YAML: expected ',' or ']'"),
        (["--set", "stop={}"], "--set stop={}: stop: found neither patience nor goal; allowed: "),
        (
            ["--set", "timeout=1e300"],
            "--set timeout=1e300: timeout: found 1e+300; allowed: at most",
        ),
        (["--set", "seeds=0,x"], '--set seeds=0,x: seeds[1]: found "x"; allowed: a whole number'),
        (
            ["--set", "length.step=3"],
            "--set length.step=3: length.step: unknown key; did you mean 'steps'? allowed: ",
        ),
        (
            ["--set", "name.first=x"],
            '--set name.first=x: name: found {"first": "x"}; allowed: text',
        ),
        (
            ["--set", "zip=3", "--set", "precision=bf16"],
            "--set zip=3: zip: found 3; allowed: a list",
        ),
        (
            ["--set", "workloads.mpl.options.dropout=0"],
            "--set workloads.mpl.options.dropout=0: workloads.mpl.uses: found no workload 'mpl'",
        ),
        (
            ["--set", "workloads.mlp.options.width=3"],
            "--set workloads.mlp.options.width=3: workloads.mlp.options.width: ",
        ),
        (
            ["--data", "folder"],
            "--data folder: workloads.mlp.data.path: unknown key; allowed: ",
        ),
        (
            ["--data", "mlp=folder"],
            "--data mlp=folder: workloads.mlp.data.path: unknown key; allowed: ",
        ),
    ],
)
def test_flag(flags: list[str], begins: str) -> None:
    Path("sweep.yaml").write_text(GOOD, encoding="utf-8")
    check(refused("run", "sweep.yaml", *flags), begins)


@pytest.mark.parametrize(
    ("arguments", "contains"),
    [
        (["plna", "quickstart"], "plna: no such command; did you mean 'plan'?"),
        (["comapre", "quickstart"], "comapre: no such command; did you mean 'compare'?"),
        (["diff", "quickstart", "--seed", "99999999999"], "Invalid value for '--seed'"),
        (["parity", "quickstart", "--seed", "-1"], "Invalid value for '--seed'"),
        (["status", "mine", "--watch", "--json"], "--json: found without SWEEP or with --watch"),
        (["run", "quickstart", "other"], "Got unexpected extra argument(s) (other)"),
        (["run", "quickstart", "--fast-fail"], "No such option: --fast-fail"),
        (["run", "quickstart", "--set"], "Option '--set' requires an argument."),
        (["ui", "--port", "http"], "Invalid value for '--port'"),
        (["run"], "Missing argument 'SWEEP'. (see harness run --help)"),
        (
            ["show", "demo"],
            "demo: no records of such a sweep in results/runs; there are none; "
            "--results or HARNESS_RESULTS says where",
        ),
    ],
)
def test_command_line(arguments: list[str], contains: str) -> None:
    assert contains in refused(*arguments)


def test_what_measures_this_machine_names_no_command_that_does_not() -> None:
    error = refused("peak", "--cluster", "slurm")
    assert error.endswith("--cluster slurm: launcher: found 'slurm'; allowed: torchrun")


def test_installed_command(here: Path) -> None:
    Path("sweep.yaml").write_text(GOOD + "matrix:\n  precision: [fp32, bf61]\n", encoding="utf-8")
    before = tree(here)
    variables = {name: value for name, value in os.environ.items() if name != "HARNESS_RESULTS"}
    command = [str(Path(sys.executable).with_name("harness")), "run", "sweep.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert (done.returncode, done.stdout) == (2, "")
    wanted = "harness: sweep.yaml:5: matrix.precision[1]: found \"bf61\"; did you mean 'bf16'? allowed: bf16, "
    assert done.stderr.startswith(wanted)
    assert done.stderr.count("\n") == 1
    assert tree(here) == before
