"""Files are decoded exactly as their types say, or refused in one line that says where and why.

Any change breaks a seal.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from harness.core.errors import BadFile, BadInput, FileUnavailable
from harness.core.validation import decode_value
from harness.records.files import RECORD_FORMAT, read_record, write_record
from harness.records.format import FileFormat, Number, decode_file, decode_text, sealed_text
from tests.factories import make_cell, make_record
from workloads.settings import Between


@dataclass(frozen=True, kw_only=True)
class Twig:
    kind: Literal["twig"] = "twig"
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Tree:
    schema: int = 2
    rings: int
    height: float = 1.0
    season: Literal["summer", "winter"] = "summer"
    evergreen: bool = False
    twigs: tuple[Twig, ...] | None = None
    names: Sequence[str] = ()
    shares: Mapping[str, Sequence[Annotated[float, Between(0)]]] = field(default_factory=dict)
    counted: Number = 0

    def __post_init__(self) -> None:
        if self.rings < 0:
            raise ValueError(f"rings: found {self.rings}; allowed: 0 or more")


TREE_FORMAT = FileFormat(name="tree", schema=2, remedy="plant a new one")
TREE = Tree(rings=3, height=2.5, twigs=(Twig(), Twig(path=Path("c"))), names=["oak"])


def test_what_was_written_comes_back_equal() -> None:
    content = json.dumps(asdict(TREE), default=str).encode()
    assert decode_text(Tree, content, "tree.json", TREE_FORMAT) == TREE
    tree = decode_value(Tree, {"rings": 3, "height": 2})
    assert isinstance(tree.height, float), "a whole number may stand for a fraction"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rings": "3"}, 'rings: found "3"; allowed: a whole number'),
        ({"rings": True}, "rings: found true; allowed: a whole number"),
        ({"height": "2"}, 'height: found "2"; allowed: a number'),
        ({"evergreen": 1}, "evergreen: found 1; allowed: true or false"),
        (
            {"season": "sumer"},
            "season: found \"sumer\"; did you mean 'summer'? allowed: summer, winter",
        ),
        ({"names": ["oak", 3]}, "names[1]: found 3; allowed: text"),
        ({"shares": {"a": [1, -2.5]}}, "shares.a[1]: found -2.5; allowed: "),
        ({"twigs": [{"kind": "root"}]}, 'twigs[0].kind: found "root"; '),
        ({"counted": -1}, "counted: found -1; allowed: at least 0"),
        ({"rings": -1}, "rings: found -1; allowed: 0 or more"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_its_key(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        decode_value(Tree, {"rings": 3, **change})
    assert str(raised.value).startswith(problem)


def test_a_key_that_is_missing_or_no_field() -> None:
    with pytest.raises(ValueError, match=r"^rings: missing; it has no default$"):
        decode_value(Tree, {})
    assert decode_value(Tree, {"rings": 3, "ring": 4}) == Tree(rings=3)
    with pytest.raises(ValueError, match=r"^ring: unknown key; did you mean 'rings'\? allowed: "):
        decode_value(Tree, {"rings": 3, "ring": 4}, refuse_unknown=True)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"schema": 2, "rings": "x"}', "Expected `int`, got `str` - at `$.rings`"),
        (b"", ""),
        (b'{"rings": 3', ""),
        (b"\xff\xfe", ""),
        (b'{"schema":' * 5000 + b"1" + b"}" * 5000, ""),
    ],
    ids=["type", "empty", "cut", "binary", "deep"],
)
def test_error_names_file_problem_and_remedy(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "tree.json"
    path.write_bytes(content)
    with pytest.raises(BadFile) as raised:
        decode_file(Tree, path, TREE_FORMAT)
    message = str(raised.value)
    assert message.startswith(f"{path}: can't be read as a tree: {problem}")
    assert message.endswith("; plant a new one")


def test_a_file_that_is_not_handed_out_is_no_damaged_one(tmp_path: Path) -> None:
    for path, problem in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(
            FileUnavailable, match=f"as a tree: {problem}.*; try again, and look at"
        ):
            decode_file(Tree, path, TREE_FORMAT)


@pytest.mark.parametrize("schema", [1, 3, 2.5, "2", True, None, [2]], ids=str)
def test_file_of_another_schema_is_refused_with_the_remedy(schema: object) -> None:
    text = json.dumps({"schema": schema, "rings": 3})
    with pytest.raises(BadInput) as raised:
        decode_text(Tree, text.encode(), "tree.json", TREE_FORMAT)
    assert str(raised.value) == (
        f"tree.json: schema: found {json.dumps(schema)}; allowed: 2;"
        " another version of the harness wrote it; plant a new one"
    )


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


ON_TWO_RANKS = make_record(make_cell(strategy="ddp", world_size=2))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a record of two ranks is."""
    path = tmp_path / "record.json"
    write_record(path, ON_TWO_RANKS)
    return path


def edited(edit: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    """Return a change by somebody who knows nothing of a file's seal."""

    def change(text: str) -> str:
        content = json.loads(text)
        edit(content)
        return json.dumps(content)

    return change


@pytest.mark.parametrize(
    "change",
    [
        edited(lambda content: content["numbers"].update(final_loss=0.1)),
        edited(lambda content: content["arrays"].update(sha256="0" * 64)),
        edited(lambda content: content.pop("seal")),
        lambda text: text.replace('"attempt": 1,', '"attempt": 2,'),
        lambda text: text.replace(' "seal": ', '  "seal": '),
        lambda text: text.removesuffix("\n"),
    ],
    ids=["number", "digest", "no seal", "value", "before seal", "end"],
)
def test_any_change_is_refused_with_the_remedy(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text(encoding="utf-8")
    path.write_text(change(before), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != before
    with pytest.raises(BadFile) as raised:
        read_record(path)
    assert str(raised.value) == (
        f"{path}: seal: found none at the end that is of the text before it:"
        f" it was changed after it was written; {RECORD_FORMAT.remedy}"
    )


def test_text_that_is_no_unicode_can_be_read_back(path: Path) -> None:
    """The name of a file may hold bytes that are no UTF-8, and an error may name that file."""
    record = make_record(status="failed")
    assert record.failure is not None
    write_record(path, replace(record, failure=replace(record.failure, message="no \udc80.csv")))
    failure = read_record(path).failure
    assert failure is not None
    assert failure.message == "no ?.csv"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:300] + bytes(8) + content[308:],
        lambda content: content[:-30] + bytes(8) + content[-22:],
    ],
    ids=["half", "nothing", "values", "end"],
)
def test_columns_that_were_changed_are_refused(
    path: Path, damage: Callable[[bytes], bytes]
) -> None:
    (columns,) = path.parent.glob("*.npz")
    columns.write_bytes(damage(columns.read_bytes()))
    message = f"^{re.escape(str(columns))}: .*; {RECORD_FORMAT.remedy}$"
    with pytest.raises(BadFile, match=message):
        _ = read_record(path).ranks


def test_columns_of_another_record_are_refused(path: Path) -> None:
    """They are whole by themselves, with a checksum of their own."""
    (columns,) = path.parent.glob("*.npz")
    write_record(path.with_name("other.json"), make_record(ON_TWO_RANKS.trial.cell, seed=1))
    (other,) = path.parent.glob("other*.npz")
    other.replace(columns)
    with pytest.raises(BadFile, match=r"found the SHA-256 \w+…; allowed: \w+…"):
        list(read_record(path).ranks)


def test_columns_are_only_read_beside_the_record(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["seal"]
    content["arrays"]["file"] = f"../../{content['arrays']['file']}"
    path.write_text(sealed_text(content), encoding="utf-8")
    assert len(read_record(path).ranks) == 2


def test_seal_is_the_digest_of_the_text_before_it() -> None:
    text = sealed_text({"path": Path("a"), "pair": (1, 2), "names": {10: "ä", 9: "b"}})
    body, _, end = text.partition(',\n "seal"')
    assert end == f': "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'
    content = decode_text(dict[str, Any], text.encode(), "", FileFormat(name="", is_sealed=True))
    del content["seal"]
    assert content == {"path": "a", "pair": [1, 2], "names": {"10": "ä", "9": "b"}}
    with pytest.raises(TypeError):
        sealed_text({"steps": np.int64(3)})
