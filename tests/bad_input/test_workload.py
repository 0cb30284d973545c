"""Workloads of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.sweep.sweep import load_sweep
from tests.bad_input.refusals import check, refused
from tests.support.commands import harness

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
            "found 0 workloads; allowed: a class that derives from workloads.Workload",
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


SETTINGS = """
from __future__ import annotations
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING
import torch
from tests.support.line import LineFit
from workloads import Settings
if TYPE_CHECKING:
    from collections.abc import Sequence
class Color(Enum):
    RED = "red"
@dataclass(frozen=True)
class Inner:
    size: int = 1
@dataclass(frozen=True, kw_only=True)
class Declared({base}):
    {setting}
class Mine(LineFit):
    {section} = Declared
"""


@pytest.mark.parametrize("section", ["Options", "Data"])
def test_settings_of_a_workload_of_the_user(section: str) -> None:
    module = SETTINGS.format(section=section, base="Inner", setting="width: int = 3")
    Path("mine.py").write_text(module, encoding="utf-8")
    Path("sweep.yaml").write_text(MINE, encoding="utf-8")
    problem = "Mine: found <class 'mine"
    check(refused("plan", "sweep.yaml"), f"sweep.yaml:4: workloads.mine.uses: {problem}")
    check(refused("workloads", "mine.py:Mine"), f"WORKLOAD mine.py:Mine: {problem}")


@pytest.mark.parametrize("section", ["Options", "Data"])
@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("widths: Sequence[int] = ()", "name 'Sequence' is not defined"),
        ("path: Path | Color = Color.RED", "Type unions containing a custom type may not"),
    ],
)
def test_a_type_that_no_sweep_file_can_hold(section: str, setting: str, problem: str) -> None:
    module = SETTINGS.format(section=section, base="Settings", setting=setting)
    Path("mine.py").write_text(module, encoding="utf-8")
    Path("sweep.yaml").write_text(MINE, encoding="utf-8")
    problem = f"Declared: found a type that can't be read: {problem}"
    check(refused("plan", "sweep.yaml"), f"sweep.yaml:4: workloads.mine.uses: {problem}")
    check(refused("workloads", "mine.py:Mine"), f"WORKLOAD mine.py:Mine: {problem}")


def test_defaults_may_be_of_any_type() -> None:
    """A cell keeps the fields of a nested dataclass."""
    for setting in ("inner: Inner = Inner()", "device: torch.device = torch.device('cpu')"):
        module = SETTINGS.format(section="Options", base="Settings", setting=setting)
        Path("mine.py").write_text(module, encoding="utf-8")
        Path("sweep.yaml").write_text(MINE, encoding="utf-8")
        assert harness("plan", "sweep.yaml").code == 0
        assert harness("workloads", "mine.py:Mine").code == 0


def test_value_of_another_type_is_kept_as_json_has_it() -> None:
    module = SETTINGS.format(section="Options", base="Settings", setting="color: Color")
    Path("mine.py").write_text(module, encoding="utf-8")
    Path("sweep.yaml").write_text(f"{MINE}    options: {{color: red}}\n", encoding="utf-8")
    (cell,) = load_sweep(Path("sweep.yaml")).cells
    assert cell.workload.options["color"] == "red"


def test_module_beside_the_workload_is_importable_and_its_error_is_one_line(here: Path) -> None:
    Path("beside_mine.py").write_text("SIZE = nothing\n", encoding="utf-8")
    Path("mine.py").write_text("from beside_mine import SIZE\n", encoding="utf-8")
    Path("sweep.yaml").write_text(MINE, encoding="utf-8")
    check(
        refused("plan", "sweep.yaml"),
        f"sweep.yaml:4: workloads.mine.uses: {here / 'beside_mine.py'}:1: NameError: name 'nothing'",
    )
