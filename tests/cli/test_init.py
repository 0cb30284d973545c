"""`harness init`: a first sweep of a script, or of a workload to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.init import sweep_of_script
from harness.sweep.sweep import load_sweep
from tests.support.commands import harness


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_script_gets_a_sweep_with_its_command_line() -> None:
    Path("train.py").write_text("print('a loop of my own')\n")
    done = harness("init", "train.py", "--lr=0.5", "--note", "two words", "--seed", "{seed}")
    assert (done.code, done.err) == (0, "")
    assert "wrote train.yaml" in done.out
    sweep = load_sweep(Path("train.yaml"))
    (cell, _) = sweep.cells
    expected = ["--lr=0.5", "--note", "two words", "--seed", "{seed}"]
    assert cell.workload.arguments == expected
    assert sweep.all_seeds == [0, 1, 2, 3, 4]
    again = harness("init", "train.py")
    assert again.code == 2
    assert again.err.startswith("harness: train.yaml: exists, and is not overwritten; ")


def test_a_script_called_main_has_the_name_of_its_folder(tmp_path: Path) -> None:
    Path("dcgan").mkdir()
    Path("dcgan/main.py").write_text("parser.add_argument('--manualSeed', type=int)\n")
    assert harness("init", "dcgan/main.py").code == 0
    sweep = load_sweep(Path("dcgan/main.yaml"))
    assert sweep.name == "dcgan"
    assert sweep.cells[0].workload.arguments == ["--manualSeed", "{seed}"]


def test_seed_and_batch_size_are_those_of_the_trial() -> None:
    options = """
    parser.add_argument("--batch-size", type=int, default=32, help="samples (of all ranks)")
    parser.add_argument('--seed', default=1, type=int)
    parser.add_argument("--world-size")
    """
    Path("train.py").write_text(f"parser = object()\nif True:{options}")
    assert harness("init", "train.py").code == 0
    cell = load_sweep(Path("train.yaml")).cells[0]
    assert cell.workload.arguments == ["--batch-size", "{batch_size}", "--seed", "{seed}"]
    assert cell.axes.batch_size == 32
    Path("train.yaml").unlink()
    assert harness("init", "train.py", "--seed=7", "--batch-size", "8").code == 0
    given = load_sweep(Path("train.yaml")).cells[0].workload.arguments
    assert given == ["--seed=7", "--batch-size", "8"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from workloads import Workload", "found a file with a workload; allowed: a script"),
        ("x = = 1", "invalid syntax"),
    ],
)
def test_what_is_refused_leaves_no_file(text: str, message: str) -> None:
    Path("train.py").write_text(text + "\n")
    done = harness("init", "train.py")
    assert done.code == 2
    assert message in done.err
    assert "\n" not in done.err.strip()
    assert [path.name for path in Path().iterdir()] == ["train.py"]


def test_without_a_script_a_workload_to_change_is_written() -> None:
    done = harness("init")
    assert (done.code, done.err) == (0, "")
    assert "wrote workload.py" in done.out
    assert len(load_sweep(Path("sweep.yaml")).cells) == 2
    assert "exists, and is not" in harness("init").err


@pytest.mark.parametrize("script", [".", "/", "", "data"])
def test_what_is_no_script_is_refused(script: str) -> None:
    done = harness("init", script)
    assert done.code == 2
    assert "found another name; allowed: a Python file" in done.err


@pytest.mark.parametrize("name", ["on", "2024", "1e3"])
def test_a_name_is_read_as_it_is(name: str) -> None:
    Path(f"{name}.py").write_text("")
    Path("sweep.yaml").write_text(sweep_of_script(Path(f"{name}.py"), []))
    sweep = load_sweep(Path("sweep.yaml"))
    workload = sweep.cells[0].workload
    assert (sweep.name, workload.label, workload.uses) == (name, name, f"{name}.py")
