from __future__ import annotations

import re
from pathlib import Path

import pytest

import workloads
from workloads.base import Classifier, Workload
from workloads.catalog import BUILT_IN, load_class

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


def test_files_of_one_name_are_loaded_side_by_side(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(OWN)
    assert load_class("one/mine.py:Mine", tmp_path) is not load_class("two/mine.py:Mine", tmp_path)


def test_a_class_from_a_package() -> None:
    assert load_class("workloads.mlp:MLP") is load_class("mlp")


def test_a_class_from_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text(OWN)
    (tmp_path / "theirs-1.0.dist-info").mkdir()
    (tmp_path / "theirs-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n"
    )
    (tmp_path / "theirs-1.0.dist-info" / "entry_points.txt").write_text(
        "[harness.workloads]\ntheirs = theirs:Mine\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_class("theirs").__name__ == "Mine"
    with pytest.raises(
        ValueError, match=r"did you mean 'theirs'.*; allowed: cnn, distilbert, mlp, theirs, "
    ):
        load_class("their")


@pytest.mark.parametrize(
    ("uses", "message"),
    [
        (
            "mpl",
            "found no workload 'mpl' .did you mean 'mlp'..; allowed: cnn, distilbert, mlp, package.module:Class",
        ),
        ("workloads.mpl:MLP", "workloads.mpl: found no such module"),
        ("workloads.mlp:MPL", "found no workload 'MPL' .did you mean 'MLP'..; allowed: MLP"),
        ("min.py:Mine", "min.py: found no such file .did you mean 'mine.py'"),
        ("mine.py:Options", "mine.py: found no workload 'Options'"),
        ("mine.py:Unfinished", "found no build_model, flops_per_sample, optimizer in Unfinished"),
    ],
)
def test_errors_list_the_alternatives(tmp_path: Path, uses: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    with pytest.raises(ValueError, match=message) as caught:
        load_class(uses, tmp_path)
    assert "\n" not in str(caught.value)


def test_an_error_inside_a_users_module_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_class("broken.py:Mine", tmp_path)


def test_exports_are_loaded_on_first_use() -> None:
    for name in workloads.__all__:
        assert getattr(workloads, name) is not None
    assert workloads.Workload is Workload
    with pytest.raises(AttributeError, match="no attribute 'Wrokload'"):
        workloads.Wrokload  # noqa: B018


def test_the_package_imports_no_harness() -> None:
    files = list(Path(workloads.__file__).parent.rglob("*.py"))
    assert len(files) > 10
    assert not [
        file
        for file in files
        if re.search(r"^\s*(from|import) harness", file.read_text(), re.MULTILINE)
    ]
