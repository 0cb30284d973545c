"""`harness init`: a first sweep of a script, or of a workload to change."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.interface import starting
from harness.preflight.script_facts import read_script
from harness.spec.sweep import load_sweep
from tests.factories import make_cell, make_record
from tests.support.commands import harness
from tests.support.running import USER_SCRIPTS

pytestmark = pytest.mark.distributed


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files_here() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


@pytest.mark.nightly
def test_a_script_gets_a_sweep_that_runs() -> None:
    shutil.copy(USER_SCRIPTS / "plain.py", "plain.py")
    done = harness("init", "plain.py")
    assert (done.code, done.err) == (0, "")
    for text in (
        "options    --lr, --steps, --out",
        "wrote plain.yaml",
        "tried it: 40 steps in",
        "harness run plain.yaml    ",
    ):
        assert text in done.out
    sweep = load_sweep(Path("plain.yaml"))
    assert sweep.cells[0].workload.arguments == ["--lr", "{lr}"]
    assert sweep.cells[0].workload.options == {"lr": 0.01}
    assert sweep.cells[0].length.steps is None, "it ends after 40 steps by itself"
    assert sweep.all_seeds == [0, 1, 2, 3, 4]
    assert files_here() == ["plain.py", "plain.yaml"]

    again = harness("init", "plain.py")
    assert again.code == 2
    assert again.err.startswith("harness: plain.yaml: exists, and is not overwritten; ")


@pytest.mark.nightly
def test_the_command_line_of_a_script_comes_after_it() -> None:
    shutil.copy(USER_SCRIPTS / "plain.py", "plain.py")
    done = harness("init", "plain.py", "--steps", "5000", "--lr=0.5")
    assert done.code == 0, done.err
    (cell, *_) = load_sweep(Path("plain.yaml")).cells
    assert cell.workload.arguments == ["--steps", "5000", "--lr=0.5"]
    assert (cell.length.steps or 0) >= 60, "a length that the script reaches"


@pytest.mark.parametrize(
    ("text", "arguments", "code", "message"),
    [
        ("raise ValueError('no data')", (), 1, "the trial failed: train.py:1: rank 0 on "),
        (
            "import argparse\np.add_argument('--data', required=True)",
            (),
            2,
            "found no --data, which it",
        ),
        (
            "from workloads import Workload",
            (),
            2,
            "found a file with a workload; allowed: a script",
        ),
        ("x = = 1", (), 2, "invalid syntax"),
    ],
)
def test_what_does_not_run_leaves_no_file(
    text: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    Path("train.py").write_text(text + "\n")
    done = harness("init", "train.py", *arguments)
    assert done.code == code
    assert message in done.err
    assert "\n" not in done.err.strip()
    assert files_here() == ["train.py"]


def test_values_of_short_flags_are_kept() -> None:
    Path("train.py").write_text(
        "parser.add_argument('-d', '--data', required=True)\n"
        "parser.add_argument('-l', '--lr', type=float, default=0.1)\n"
        "parser.add_argument('-s', '--seed', type=int, default=0)\n"
        "raise ValueError('it ran')\n"
    )
    facts = read_script(Path("train.py"), [Path("train.py")])
    arguments = ["-d", "DIR", "-l", "0.5", "-s", "7"]
    text = starting.sweep_text("train.py", facts, arguments, None)
    assert 'arguments: "-d DIR -l 0.5 -s 7"\n' in text
    assert "options:" not in text
    text = starting.sweep_text("train.py", facts, arguments[:2], None)
    assert 'arguments: "-d DIR --lr {lr} --seed {seed}"\n' in text
    starting._check_required(Path("train.py"), facts, arguments)


def test_a_script_that_is_missing_is_named() -> None:
    Path("train.py").write_text("")
    assert (
        "trian.py: found no such file (did you mean 'train.py'?)" in harness("init", "trian.py").err
    )


def test_time_of_all_trials_is_that_of_the_length_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record(make_cell())
    assert record.rank0 is not None
    assert record.summary is not None
    record = replace(
        record,
        rank0=replace(record.rank0, train_samples=1000),
        summary=replace(record.summary, throughput=500.0),
    )
    monkeypatch.setattr(starting, "_try", lambda sweep: [record])
    seconds = []
    for epochs in (4, 8):
        example = tmp_path / f"example{epochs}"
        shutil.copytree(starting.EXAMPLE, example)
        path = example / "sweep.yaml"
        path.write_text(path.read_text().replace("4 epochs", f"{epochs} epochs"))
        monkeypatch.setattr(starting, "EXAMPLE", example)
        folder = tmp_path / f"mine{epochs}"
        folder.mkdir()
        seconds.append(starting.start_from_example(folder, print).seconds)
    assert seconds == [10 * 4 * 2.0, 10 * 8 * 2.0]


def test_without_a_script_a_workload_to_change_is_written() -> None:
    done = harness("init")
    assert (done.code, done.err) == (0, "")
    assert "wrote workload.py" in done.out
    assert "tried it: 60 steps in" in done.out
    assert "harness run sweep.yaml    10 trials" in done.out
    assert len(load_sweep(Path("sweep.yaml")).cells) == 2
    assert (
        "workload.py: exists, and is not" in harness("init").err
        or "sweep.yaml" in harness("init").err
    )


@pytest.mark.parametrize("script", [".", "/", "", "data"])
def test_what_is_no_script_is_refused(script: str) -> None:
    done = harness("init", script)
    assert done.code == 2
    assert done.err.endswith("found no .py; allowed: a Python file\n")


@pytest.mark.parametrize("name", ["train", "on", "2024", "1e3"])
def test_a_name_is_read_as_it_is(name: str) -> None:
    assert _name_of(name) == name


@pytest.mark.parametrize("name", ["my train", "train #2", 'a "b": c', "- x", "é"])
def test_a_file_may_have_a_name_that_no_sweep_may_have(name: str) -> None:
    assert _name_of(name)


def _name_of(name: str) -> str:
    Path(f"{name}.py").write_text("")
    facts = read_script(Path(f"{name}.py"), [])
    Path("sweep.yaml").write_text(starting.sweep_text(f"{name}.py", facts, [], None))
    sweep = load_sweep(Path("sweep.yaml"))
    assert sweep.cells[0].workload.label == sweep.name
    assert sweep.cells[0].workload.uses == f"{name}.py"
    return sweep.name
