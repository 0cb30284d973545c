from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import workloads
from workloads.base import Classifier, Workload
from workloads.catalog import BUILT_IN, find_source, load_class

OWN = """
from dataclasses import dataclass
from workloads import Classifier, Settings

@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    depth: int = 2

class Mine(Classifier):
    Options = Options
    def splits(self): ...
    def build_model(self): ...
    def optimizer(self, model): ...
    def flops_per_sample(self): return 1.0

class Unfinished(Classifier):
    def splits(self): ...
"""


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_table_agrees_with_the_classes(name: str) -> None:
    entry, workload = BUILT_IN[name], load_class(name)
    assert entry.path == f"{workload.__module__}:{workload.__name__}"
    assert entry.options is workload.Options
    assert entry.data == workload.Data
    assert entry.batch_size == workload.batch_size


def test_a_class_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    workload = load_class("mine.py:Mine", tmp_path)
    assert issubclass(workload, Classifier)
    assert workload.Options().identity() == {"depth": 2}
    assert load_class(f"{tmp_path}/mine.py:Mine") is workload


@pytest.mark.parametrize(
    ("uses", "message"),
    [
        (
            "mpl",
            "found no workload 'mpl' .did you mean 'mlp'..; allowed: cnn, distilbert, gpt, mlp",
        ),
        ("workloads.mpl:MLP", "No module named 'workloads.mpl'"),
        ("code.mine:Mine", "'code' is not a package; allowed: a module that is installed or"),
        ("workloads.mlp:MPL", "found no workload 'MPL'; allowed: workloads.mlp:MLP"),
        ("min.py:Mine", "min.py: found no such file .did you mean 'mine.py'"),
        ("mine.py:Options", "mine.py: found no workload 'Options'"),
        ("mine.py:Unfinished", "found no build_model in Unfinished"),
    ],
)
def test_errors_list_the_alternatives(tmp_path: Path, uses: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    with pytest.raises(ValueError, match=message) as caught:
        load_class(uses, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import not_installed_anywhere", "ModuleNotFoundError: No module named 'not_installed_an"),
        ("import math\nmath.sqrt(-1)", r"broken.py:2: ValueError: math domain error$"),
        ("import helpers", r"helpers.py:1: ModuleNotFoundError: No module named 'gone'$"),
        ("from workloads.mine import X", "'workloads' is a package of the harness: rename yours$"),
    ],
)
@pytest.mark.parametrize("uses", ["broken.py:Mine", "broken:Mine"])
def test_an_error_inside_a_users_module_names_its_file_and_line(
    tmp_path: Path, uses: str, code: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text(code)
    (tmp_path / "helpers.py").write_text("import gone\n")
    with pytest.raises(ValueError, match=message) as caught:
        load_class(uses, tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


SIBLING = OWN + "from sibling import DEPTH\nMine.depth = DEPTH\n"


@pytest.mark.parametrize("uses", ["models/mine.py:Mine", "models.mine:Mine"])
def test_a_workload_imports_modules_beside_it_and_beside_the_sweep(
    tmp_path: Path, uses: str
) -> None:
    (tmp_path / "models").mkdir()
    in_package = "." in uses.partition(":")[0].removesuffix(".py")
    (tmp_path / ("sibling.py" if in_package else "models/sibling.py")).write_text("DEPTH = 5\n")
    (tmp_path / "models" / "mine.py").write_text(SIBLING)
    workload: Any = load_class(uses, tmp_path)
    assert workload.depth == 5
    files = find_source(uses, tmp_path).files
    assert {path.name for path in files.values()} == {"mine.py", "sibling.py"}


def test_two_folders_with_modules_of_the_same_name_get_their_own(tmp_path: Path) -> None:
    for depth in (1, 2):
        folder = tmp_path / str(depth)
        folder.mkdir()
        (folder / "mine.py").write_text(SIBLING)
        (folder / "sibling.py").write_text(f"DEPTH = {depth}\n")
    classes: list[Any] = [load_class(f"{depth}/mine.py:Mine", tmp_path) for depth in (1, 2)]
    assert [workload.depth for workload in classes] == [1, 2]


def test_what_is_installed_comes_before_what_lies_beside_the_sweep(tmp_path: Path) -> None:
    for name in ("workloads", "psutil"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "mine.py").write_text("import json, psutil, workloads\nNAME = psutil.__name__\n")
    program = (
        "import sys\nfrom pathlib import Path\nfrom workloads.importing import import_file\n"
        "assert 'psutil' not in sys.modules\n"
        f"print(import_file(Path({str(tmp_path)!r}) / 'mine.py').NAME, sys.path[-1])"
    )
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == f"psutil {tmp_path}\n"


def test_exports_are_loaded_on_first_use() -> None:
    assert workloads.Workload is Workload
    with pytest.raises(AttributeError, match="no attribute 'Wrokload'"):
        workloads.Wrokload  # noqa: B018
