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
    source = find_source(uses, tree)
    assert set(source.files) == IMPORTED
    assert source.distribution is None
    files = [str(getattr(module, "__file__", None)) for module in sys.modules.values()]
    assert [file for file in files if file.startswith(str(tree))] == []  # nothing was imported
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
    assert {f"workloads/{name}.py", "workloads/base.py", "workloads/sources.py"} <= files
    others = {f"workloads/{other}.py" for other in BUILT_IN if other != name}
    assert files & others == set()
    assert files & {"workloads/catalog.py", "workloads/code.py"} == set()
    assert set(find_source(BUILT_IN[name].path).files) == files


def test_an_installed_workload_is_its_distribution() -> None:
    source = find_source("sklearn.linear_model:Ridge")
    assert source.files == {}
    assert source.distribution == "scikit-learn"
    assert source.version is not None


CODE = """
# A comment
x = f"{1:>{10}} # no comment"


def f(y):
    return (
        y +  1
    )
"""
SAME = '''"""A docstring."""
x = f"{1:>{10}} # no comment"  # another


def f(y):
    """Return
    it."""
    "more"
    return (  # in brackets
        y + 1

    )
# the end'''


def digest(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return code.digest_code(path)


def test_comments_docstrings_and_blanks_are_no_code(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    before = digest(path, CODE)
    assert digest(path, SAME) == before
    assert digest(path, CODE.replace("\n", "\r\n")) == before
    assert digest(path, CODE.replace("    ", "\t")) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# no comment", "# no"),  # in an f-string
        ("y +  1", "y + 2"),
        ("x = ", "X = "),
        ("    return (", "    f'{launch()}'\n    return ("),  # is no docstring
        ("def f(y):", "def f(y):\n  if y:"),
    ],
)
def test_whatever_else_changes_is_other_code(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "x.py"
    assert old in CODE
    assert digest(path, CODE) != digest(path, CODE.replace(old, new))


def test_the_digest_of_code_depends_on_no_version_of_python(tmp_path: Path) -> None:
    expected = "29066c1b6e295a5e483f96159b92cc63d01e88611163395c14a1ecd09bdedaf4"
    assert digest(tmp_path / "x.py", CODE) == expected


def test_what_is_no_python_is_digested_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    broken = [digest(path, text) for text in ("x = (", "x = ( # 1", "  x\n y", "x = '")]
    assert len(set(broken)) == 4


def test_modules_and_variables_are_found_by_literal_names(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        """
import os
from importlib import import_module
from os import environ, getenv
a = import_module("late.one"), __import__("two"), import_module(f"three")
b = os.environ["A"], os.environ.get("B", 1), getenv("C"), "D" in environ, os.getenv(key="no")
os.environ["WRITTEN"] = environ.setdefault("E", "1") + os.environ[a] + other.environ_["no"]
""",
        encoding="utf-8",
    )
    source = code.read_source(path)
    assert {"late.one", "two"} <= source.imports
    assert "three" not in source.imports
    assert source.variables == set("ABCDE")
