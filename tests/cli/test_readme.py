"""The examples of README and manual do what the pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.gate.limits import read_gate
from harness.sweep.sweep import load_sweep
from tests.support.pages import documented_pages
from tests.support.running import run
from tests.support.tree import TOP

README = TOP / "README.md"


def write_printed(name: str, folder: Path) -> Path:
    """Write the file that README or manual print under that name into `folder`, and return its
    path.

    A file that several pages print is the same on all of them.
    """
    pattern = rf"```\w+\n# {re.escape(name)}\n(.*?)```"
    contents: set[str] = set()
    for page in documented_pages():
        contents |= set(re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL))
    (content,) = contents
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def test_the_readme_takes_two_minutes() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.distributed
def test_a_users_workload_trains(tmp_path: Path) -> None:
    lines = write_printed("spiral.py", tmp_path).read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 30
    narrow, wide = run(write_printed("spiral.yaml", tmp_path))
    assert wide.numbers["final_accuracy"] > 0.95 > narrow.numbers["final_accuracy"]


def test_the_sweep_is_what_it_says(tmp_path: Path) -> None:
    sweep = load_sweep(write_printed("sweep.yaml", tmp_path))
    assert len(sweep.cells) == 2 * (2 * 2 * 3 - 2) + 1
    assert len(sweep.trials()) == 3 * len(sweep.cells)


def test_the_mistake_gives_the_line_that_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_printed("sweep.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(["plan", "sweep.yaml", "--set", "execution=compiled"])
    assert exit.value.code == 2
    assert capsys.readouterr().err in README.read_text(encoding="utf-8")


def test_the_gates_file_is_one_that_is_read(tmp_path: Path) -> None:
    gate = read_gate(write_printed("gate.yaml", tmp_path))
    write_printed("sweep.yaml", tmp_path)
    limits = {}
    for cell in load_sweep(tmp_path / "sweep.yaml").cells:
        if cell.workload.label == "mlp":
            limits[cell.axes.precision] = gate.limits(cell)
    assert (limits["fp32"].min_effect, limits["fp32"].bits) == (0.01, "ignore")
    assert (limits["bf16"].min_effect, limits["bf16"].bits) == (0.005, "fail")
