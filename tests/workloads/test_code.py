"""The files of a workload's code are those that it imports from its own tree, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workloads import code, importing
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
    "bare/inner.py", "lazy.py", "spare.py",
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
    before = set(sys.modules)
    source = find_source(uses, tree)
    assert set(source.files) == IMPORTED
    assert source.distribution is None
    assert set(sys.modules) - before == set()  # nothing was imported
    assert code.imported_packages(source.files) == ["absent", "torch"]


def test_an_edit_is_seen_at_once(tree: Path) -> None:
    path = tree / "lazy.py"
    before = code.read_source(path)
    path.write_text("import spare\n", encoding="utf-8")
    after = code.read_source(path)
    assert after.sha256 != before.sha256
    assert after.imports == {"spare"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_workload_is_its_own_module_and_not_its_neighbors(name: str) -> None:
    files = set(find_source(name).files)
    assert {f"workloads/{name}.py", "workloads/base.py", "workloads/data.py"} <= files
    others = {f"workloads/{other}.py" for other in BUILT_IN if other != name}
    assert files & others == set()
    assert files & {"workloads/catalog.py", "workloads/code.py"} == set()
    assert set(find_source(BUILT_IN[name].path).files) == files


def test_an_installed_workload_is_its_distribution() -> None:
    source = find_source("sklearn.linear_model:Ridge")
    assert source.files == {}
    assert source.distribution == "scikit-learn"
    assert source.version is not None
