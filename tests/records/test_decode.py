"""Files are decoded exactly as their types say, or refused in one line that says where and why."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from harness.core.errors import BadInput
from harness.core.validation import decode_value
from harness.records.bounds import Number
from harness.records.decode import FileFormat, decode_file, decode_text
from harness.records.files import write_record
from harness.sweep.cluster import Profile
from tests.factories import make_record
from workloads.settings import Between


@dataclass(frozen=True, kw_only=True)
class Leaf:
    kind: Literal["leaf"] = "leaf"
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Twig:
    kind: Literal["twig"] = "twig"
    leaves: tuple[Leaf, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tree:
    schema: int = 2
    rings: int
    height: float = 1.0
    season: Literal["summer", "winter"] = "summer"
    evergreen: bool = False
    twig: Twig | None = None
    names: Sequence[str] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    counted: Number = 0

    def __post_init__(self) -> None:
        if self.rings < 0:
            raise ValueError(f"rings: found {self.rings}; allowed: 0 or more")


TREE_FORMAT = FileFormat(name="tree", schema=2, remedy="plant a new one")
TREE = Tree(rings=3, height=2.5, twig=Twig(leaves=(Leaf(), Leaf(path=Path("c")))), names=["oak"])


def test_what_was_written_comes_back_equal() -> None:
    text = json.dumps(asdict(TREE), default=str)
    assert decode_text(Tree, text, "tree.json", TREE_FORMAT) == TREE


def test_whole_number_may_stand_for_a_fraction() -> None:
    tree = decode_value(Tree, {"rings": 3, "height": 2})
    assert isinstance(tree.height, float)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rings": "3"}, 'rings: found "3"; allowed: a whole number'),
        ({"rings": 3.0}, "rings: found 3.0; allowed: a whole number"),
        ({"rings": True}, "rings: found true; allowed: a whole number"),
        ({"rings": None}, "rings: found null; allowed: a whole number"),
        ({"height": "2"}, 'height: found "2"; allowed: a number'),
        ({"height": True}, "height: found true; allowed: a number"),
        ({"evergreen": 1}, "evergreen: found 1; allowed: true or false"),
        (
            {"season": "sumer"},
            "season: found \"sumer\"; did you mean 'summer'? allowed: summer, winter",
        ),
        ({"names": "oak"}, 'names: found "oak"; allowed: a list'),
        ({"names": ["oak", 3]}, "names[1]: found 3; allowed: text"),
        ({"shares": {"b": "much"}}, 'shares.b: found "much"; allowed: a number'),
        ({"twig": 3}, "twig: found 3; allowed: keys with values or null"),
        ({"twig": {"leaves": [{"kind": "root"}]}}, 'twig.leaves[0].kind: found "root"; '),
        ({"counted": -1}, "counted: found -1; allowed: at least 0"),
        ({"rings": -1}, "rings: found -1; allowed: 0 or more"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_its_key(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        decode_value(Tree, {"rings": 3, **change})
    assert str(raised.value).startswith(problem)


def test_key_that_is_no_field_is_ignored_or_refused() -> None:
    assert decode_value(Tree, {"rings": 3, "ring": 4}) == Tree(rings=3)
    with pytest.raises(ValueError, match=r"^ring: unknown key; did you mean 'rings'\? allowed: "):
        decode_value(Tree, {"rings": 3, "ring": 4}, refuse_unknown=True)


def test_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match=r"^rings: missing; it has no default$"):
        decode_value(Tree, {})


def test_error_names_file_key_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    path.write_text('{"schema": 2, "rings": "x"}', encoding="utf-8")
    with pytest.raises(BadInput) as raised:
        decode_file(Tree, path, TREE_FORMAT)
    assert str(raised.value) == (
        f"{path}: can't be read as a tree: Expected `int`, got `str` - at `$.rings`; plant a new one"
    )


@pytest.mark.parametrize("content", [b"", b'{"rings": 3', b"\xff\xfe", b'{"rings": NaN}'], ids=str)
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tree.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"can't be read as a tree: .*; plant a new one$"):
        decode_file(Tree, path, TREE_FORMAT)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"tree.json: can't be read as a tree: No such file"):
        decode_file(Tree, tmp_path / "tree.json", TREE_FORMAT)


def test_threads_of_a_new_process_may_read_records_at_once(tmp_path: Path) -> None:
    """Without a lock, msgspec ends such a process with a segmentation fault."""
    program = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from harness.records.files import read_record

all_are_there = Barrier(8)

def read(path):
    all_are_there.wait()
    return read_record(path).status

sys.setswitchinterval(1e-6)
with ThreadPoolExecutor(8) as threads:
    print(*threads.map(read, [Path(sys.argv[1])] * 8))
"""
    record = tmp_path / "record.json"
    write_record(record, make_record())
    command = [sys.executable, "-c", program, str(record)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["done"] * 8), ended.stderr


@pytest.mark.parametrize("schema", [1, 3, 2.5, "2", True, None, [2]], ids=str)
def test_file_of_another_schema_is_refused_with_the_remedy(schema: object) -> None:
    with pytest.raises(BadInput) as raised:
        decode_text(Tree, json.dumps({"schema": schema, "rings": 3}), "tree.json", TREE_FORMAT)
    assert str(raised.value) == (
        f"tree.json: schema: found {json.dumps(schema)}; allowed: 2;"
        " another version of the harness wrote it; plant a new one"
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("auto", None),
        (2, None),
        (0, "parallel: found 0; allowed: at least 1"),
        ("all", "parallel: "),
    ],
)
def test_a_number_with_bounds_or_a_word(value: object, problem: str | None) -> None:
    content = {**asdict(Profile()), "parallel": value}
    if problem is None:
        assert decode_value(Profile, content).parallel == value
        return
    with pytest.raises(ValueError, match=problem):
        decode_value(Profile, content)


@dataclass(frozen=True, kw_only=True)
class Garden:
    paths: Mapping[str, Sequence[Annotated[float, Between(0)]]] = field(default_factory=dict)
    beds: Sequence[tuple[str, Annotated[int, Between(0, 9)] | None]] = ()
    gate: Annotated[int, Between(1)] | None = None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"garden": {"paths": {"a": [1, -2.5]}}}, "garden.paths.a[1]: found -2.5; allowed: "),
        ({"garden": {"beds": [["x", None], ["y", 10]]}}, "garden.beds[1][1]: found 10; allowed: "),
        ({"garden": {"gate": 0}}, "garden.gate: found 0; allowed: "),
    ],
)
def test_number_out_of_its_bounds_is_named_by_its_place(
    content: Mapping[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}"):
        decode_value(dict[str, Garden], content)
