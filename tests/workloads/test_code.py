"""The files of a workload's code are those that it imports from its own tree, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workloads import importing
from workloads.catalog import BUILT_IN, find_source

FILES = {
    "spiral.py": (
        "from __future__ import annotations\n"
        "import json, torch\n"
        "import layers.wide as wide\n"
        "from typing import TYPE_CHECKING\n"
        "from workloads import Classifier\n"
        "if TYPE_CHECKING:\n    import types_only\n"
        "def build():\n"
        "    try:\n        from lazy import thing\n"
        "    except ImportError:\n        import spare\n"
        "    import absent\n"
    ),
    "layers/__init__.py": "from . import base\n",
    "layers/base.py": "import spiral\n",
    "layers/wide.py": "from .deep import *\nfrom ..layers.base import depth\n",
    "layers/deep.py": "if True:\n    match 1:\n        case 1:\n            from bare.inner import x\n",
    "layers/unused.py": "",
    "bare/inner.py": "",  # a package without __init__.py
    "lazy.py": "",
    "spare.py": "this is no Python",
    "types_only.py": "",
}
IMPORTED = {
    "spiral.py", "layers/__init__.py", "layers/base.py", "layers/wide.py", "layers/deep.py",
    "bare/inner.py", "lazy.py", "types_only.py",
}  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    importing.make_importable(tmp_path)
    return tmp_path


@pytest.mark.parametrize("uses", ["spiral.py:Spiral", "spiral:Spiral"])
def test_imports_are_followed_within_the_users_tree_only(tree: Path, uses: str) -> None:
    source = find_source(uses, tree)
    assert set(source.files) == IMPORTED
    assert source.distribution is None
    files = [str(getattr(module, "__file__", None)) for module in sys.modules.values()]
    assert [file for file in files if file.startswith(str(tree))] == []  # nothing was imported
    assert source.packages == ["absent", "spare", "torch", "workloads"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_workload_is_its_own_module_and_not_its_neighbors(name: str) -> None:
    files = set(find_source(name).files)
    assert {f"{name}.py", f"{name}_settings.py", "base.py", "settings.py"} <= files
    others: set[str] = set()
    for other in set(BUILT_IN) - {name}:
        others |= {f"{other}.py", f"{other}_settings.py"}
    assert files & others == set()
    assert files & {"catalog.py", "code.py"} == set()
    assert set(find_source(BUILT_IN[name].path).files) == files


def test_an_installed_workload_is_its_distribution() -> None:
    source = find_source("sklearn.linear_model:Ridge")
    assert source.files == {}
    assert source.distribution == "scikit-learn"
    assert source.version is not None


def test_a_files_name_may_have_a_dot(tree: Path) -> None:
    (tree / "spiral.v2.py").write_text("import lazy\n", encoding="utf-8")
    assert set(find_source("spiral.v2.py", tree).files) == {"spiral.v2.py", "lazy.py"}


def test_a_package_without_init_may_be_in_two_folders(tmp_path: Path) -> None:
    near = tmp_path / "near"
    (near / "parts").mkdir(parents=True)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "val.py").write_text("", encoding="utf-8")
    (near / "w.py").write_text("from parts import val\n", encoding="utf-8")
    found = {path.name for path in find_source("near/w.py:W", tmp_path).files.values()}
    assert found == {"w.py", "val.py"}
