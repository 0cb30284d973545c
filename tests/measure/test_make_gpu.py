"""`make gpu`: parts that fail, hang or can't be tried are rows of its page, and the rest goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.programs.gpu import __main__ as driver
from tests.programs.gpu.outcome import missed_goals
from tests.programs.gpu.parts import FIRST, Part, parts
from tests.programs.gpu.tasks import TESTS, figures_of, make_cell, train_once
from tests.support.tree import TOP

MODULES = {
    "fine": "import sys, pathlib\n"
    "pathlib.Path(sys.argv[1], 'figures.json').write_text('{\"samples/s\": 12.34567}')\n",
    "broken": "raise ValueError('no | such thing')\n",
    "slow": "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(child.pid, flush=True)\ntime.sleep(60)\n",
}


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the parts by short ones, and return where a run leaves its page."""
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    replaced = [
        Part(name=FIRST, shows="the machine", module="fine"),
        Part(name="bad", shows="an error", module="broken"),
        Part(name="hangs", shows="a limit", module="slow", seconds=1.0),
        Part(name="graphs", shows="CUDA graphs", module="fine", gpu_only=True),
        Part(name="text", shows="a package", module="fine", needs=("no_such_package",)),
        Part(name="last", shows="what follows", module="fine", goals={"samples/s": 100}),
    ]
    monkeypatch.setattr(driver, "parts", lambda *_, **__: replaced)
    monkeypatch.setattr(driver, "OPTIONAL", ("no_such_package",))
    return tmp_path / "out"


def test_every_part_has_a_row_and_none_ends_the_run(
    output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert driver.main(["--output", str(output), "--device", "cpu"]) == 1
    assert "missing packages: no_such_package" in capsys.readouterr().out
    page = (output / "page.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]
    assert [(row[0].removeprefix("| "), row[2]) for row in rows] == [
        (FIRST, "passed"),
        ("bad", "failed: exit code 1; ValueError: no ¦ such thing"),
        ("hangs", "timed out: took more than 1 s"),
        ("graphs", "skipped: needs a GPU"),
        ("text", "skipped: needs no_such_package"),
        ("last", "passed"),
    ]
    assert rows[-1][-1] == "samples/s 12.35 |"
    assert "The run is not over" not in page
    child = int((output / "hangs" / "log.txt").read_text())
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text()


def test_goals_count_on_a_gpu_only(output: Path) -> None:
    driver.main(["--output", str(output)])
    assert "goal missed: samples/s: 12.3; wanted: 100" in (output / "page.md").read_text()


def test_a_part_that_runs_out_of_time_is_skipped(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "MINUTES", 0.001)
    driver.main(["--output", str(output), "--device", "cpu"])
    assert "the 0.001 minutes were over" in (output / "page.md").read_text()


def test_starting_needs_the_standard_library_alone() -> None:
    code = "import sys, tests.programs.gpu.__main__\nprint({'torch', 'numpy', 'harness'} & set(sys.modules))"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "set()\n"


def test_without_a_required_package_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "REQUIRED", ("no_such_package",))
    assert driver.main(["--output", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith("found no no_such_package: ")
    assert not (tmp_path / "out").exists()


def test_parts_have_names_of_their_own_and_goals_that_are_measured() -> None:
    for device in ("cuda", "cpu"):
        names = [part.name for part in parts(device, small=False)]
        assert len(set(names)) == len(names)
    (part,) = [part for part in parts("cuda", small=False) if part.name == "distilbert-compile"]
    assert [name for name in TESTS if not (TOP / name).is_file()] == []
    assert missed_goals(part, {}) == ["MFU of the measured peak: not measured; wanted: 0.5"]


def test_every_trial_has_a_cell() -> None:
    cells = []
    for part in parts("cuda", small=False):
        if part.task == "train":
            cells.append(make_cell(**part.keywords["cell"]))
    assert any(cell.axes.loader_pin_memory for cell in cells)
    assert any(cell.axes.fsdp_cpu_offload for cell in cells)


def test_a_trial_without_the_command_line_leaves_a_record_and_figures(tmp_path: Path) -> None:
    cell = make_cell("mlp", 12, {"batch_size": 64})
    with mock.patch.dict(os.environ):  # a rank exports what it is
        record = train_once(cell, tmp_path / "mlp" / "trial0", "cpu")
    assert (tmp_path / "mlp" / "trial0" / "record.json").is_file()
    figures = figures_of(record)
    assert figures["samples/s"] > 0
    assert 0 < figures["accuracy"] <= 1
