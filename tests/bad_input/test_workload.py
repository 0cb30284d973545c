"""Workloads of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_input.refusals import check, refused

MINE = "name: demo\nworkloads:\n  mine:\n    uses: mine.py:Mine\n"


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (None, "found no such file; allowed: a Python file"),
        (
            "from workloads import Workload\n",
            "found no workload 'Mine'; allowed: a class that derives from workloads.",
        ),
        (
            "class Mine: ...\n",
            "found no workload 'Mine'; allowed: a class that derives from workloads.Workload",
        ),
        ("from workloads import Workload\nclass Mine(Workload): ...\n", "found no build_model, "),
    ],
    ids=["file", "class", "base", "methods"],
)
def test_workload_of_the_user(here: Path, module: str | None, problem: str) -> None:
    if module is not None:
        Path("mine.py").write_text(module, encoding="utf-8")
    Path("sweep.yaml").write_text(MINE, encoding="utf-8")
    check(
        refused("run", "sweep.yaml"),
        f"sweep.yaml:4: workloads.mine.uses: {here / 'mine.py'}: {problem}",
    )


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (
            "import workloads\n",
            "found no workload; allowed: a class that derives from workloads.Workload",
        ),
        ("from workloads import Workload\nclass Mine(Workload): ...\n", "found no build_model, "),
        (
            "from tests.support.line import LineFit\nclass A(LineFit): ...\nclass B(LineFit): ...\n",
            "found 2 workloads; allowed: mine.py:A or mine.py:B",
        ),
    ],
    ids=["none", "methods", "two"],
)
def test_file_without_one_workload(here: Path, module: str, problem: str) -> None:
    Path("mine.py").write_text(module, encoding="utf-8")
    Path("sweep.yaml").write_text(MINE.replace(":Mine", ""), encoding="utf-8")
    check(
        refused("run", "sweep.yaml"),
        f"sweep.yaml:4: workloads.mine.uses: {here / 'mine.py'}: {problem}",
    )


def test_workload_of_the_user_that_is_no_valid_python(here: Path) -> None:
    Path("mine.py").write_text("import os\n\nclass Mine(:\n", encoding="utf-8")
    Path("sweep.yaml").write_text(MINE, encoding="utf-8")
    place = f"sweep.yaml:4: workloads.mine.uses: {here / 'mine.py'}:3: "
    assert refused("run", "sweep.yaml") == f"{place}found invalid syntax; allowed: valid Python"


def test_options_of_a_workload_of_the_user() -> None:
    line_fit = Path(__file__).parents[1] / "support" / "line.py"
    spec = f"name: demo\nworkloads:\n  mine:\n    uses: {line_fit}:LineFit\n    options: {{sample: 3}}\n"
    Path("sweep.yaml").write_text(spec, encoding="utf-8")
    wanted = "sweep.yaml:5: workloads.mine.options.sample: unknown key; did you mean 'samples'? allowed: "
    check(refused("run", "sweep.yaml"), wanted)


def test_module_beside_the_workload_is_importable_and_its_error_is_one_line(here: Path) -> None:
    Path("beside_mine.py").write_text("SIZE = nothing\n", encoding="utf-8")
    Path("mine.py").write_text("from beside_mine import SIZE\n", encoding="utf-8")
    Path("sweep.yaml").write_text(MINE, encoding="utf-8")
    check(
        refused("plan", "sweep.yaml"),
        f"sweep.yaml:4: workloads.mine.uses: {here / 'beside_mine.py'}:1: NameError: name 'nothing'",
    )
