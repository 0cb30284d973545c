"""Files count by content and by the setting that names them, and are those of the cell in a trial."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput, DataChanged
from harness.sweep import files as spec_files
from harness.sweep.cell import Cell
from harness.sweep.files import (
    check_files,
    digest_files,
    files_by_setting,
    keep_digests,
    read_digests,
)
from tests.support.sweeps import load
from workloads.catalog import load_class
from workloads.settings import Settings

WORKLOAD = """
from dataclasses import dataclass, field
from pathlib import Path
from workloads import Classifier, Settings

@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    teacher: Path | None = None
    start: Path | None = None
    shards: tuple[Path, ...] = ()
    named: dict[str, Path] = field(default_factory=dict)

class W(Classifier):
    Options = Options
    def splits(self): ...
    def build_model(self): ...
    def optimizer(self, model): ...
    def flops_per_sample(self): return 1.0
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "w.py").write_text(WORKLOAD, encoding="utf-8")
    for name, text in {"a.json": "1", "b.json": "2", "copy.json": "1"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "link.json").symlink_to("a.json")
    return tmp_path


def planned(folder: Path, uses: str = "w.py:W", **options: Any) -> Cell:
    (cell,) = load(folder, {"w": {"uses": uses, "options": options}}).cells
    return cell


def test_the_setting_that_names_a_file_decides_the_id(folder: Path) -> None:
    start, teacher = planned(folder, start="a.json"), planned(folder, teacher="a.json")
    assert len({planned(folder).id, start.id, teacher.id}) == 3
    both = planned(folder, start="a.json", teacher="b.json")
    assert both.id != planned(folder, start="b.json", teacher="a.json").id


def test_the_content_of_a_file_decides_the_id_and_its_name_does_not(folder: Path) -> None:
    ids = {planned(folder, start=name).id for name in ("a.json", "copy.json", "link.json")}
    assert len(ids) == 1
    assert planned(folder, start="b.json").id not in ids


def test_lists_and_dicts_of_paths_are_settings_too(folder: Path) -> None:
    a_b, b_a = (
        planned(folder, shards=names) for names in (["a.json", "b.json"], ["b.json", "a.json"])
    )
    assert a_b.id != b_a.id
    assert planned(folder, shards=["copy.json", "b.json"]).id == a_b.id
    assert a_b.workload.options["shards"] == (str(folder / "a.json"), str(folder / "b.json"))
    assert set(a_b.workload.file_digests) == {"options.shards"}
    assert planned(folder, named={"x": "a.json"}).id != planned(folder, named={"y": "a.json"}).id


def test_linked_folders_count_with_all_that_is_in_them(folder: Path) -> None:
    (folder / "real" / "train").mkdir(parents=True)
    (folder / "data").mkdir()
    file = folder / "real" / "train" / "x"
    file.write_text("1", encoding="utf-8")
    (folder / "real" / "train" / "up").symlink_to(folder / "real")  # which leads back
    (folder / "data" / "train").symlink_to(folder / "real" / "train")
    before = planned(folder, start="data").id
    file.write_text("2", encoding="utf-8")
    assert planned(folder, start="data").id != before


@pytest.mark.parametrize("option", ["start", "shards"])
def test_a_missing_file_is_a_mistake_in_one_line(folder: Path, option: str) -> None:
    value: Any = ["a.json", "none.json"] if option == "shards" else "none.json"
    options = {option: value}
    with pytest.raises(BadInput, match=rf"options\.{option}: .*none\.json: found No such"):
        planned(folder, **options)


def check(cell: Cell, folder: Path) -> None:
    workload = load_class("w.py:W", folder)
    paths = {name: value and Path(value) for name, value in cell.workload.options.items()}
    options = workload.Options(**{**paths, "shards": (), "named": {}})
    check_files(cell.workload, files_by_setting(options, workload.Data()))


def test_a_file_that_changed_since_the_plan_is_refused_by_name(folder: Path) -> None:
    cell = planned(folder, start="a.json")
    check(cell, folder)
    file = folder / "a.json"
    status = file.stat()
    file.write_text("3", encoding="utf-8")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # its size and time are the same
    with pytest.raises(DataChanged, match=r"^options\.start: .*a\.json: found \w{12}; allowed"):
        check(cell, folder)
    file.unlink()
    with pytest.raises(DataChanged, match=r"a\.json"):
        check(cell, folder)


def test_files_that_were_only_touched_are_the_same(folder: Path) -> None:
    cell = planned(folder, start="a.json")
    (folder / "a.json").unlink()
    (folder / "a.json").write_text("1", encoding="utf-8")
    check(cell, folder)
    check(replace(cell, workload=replace(cell.workload, file_states={})), folder)


def test_files_are_read_only_if_they_look_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = planned(folder, start="a.json")
    monkeypatch.setattr(spec_files, "file_digest", None)
    check(cell, folder)


def test_a_file_is_read_once_for_all_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, memory = tmp_path / "data.bin", tmp_path / "file-digests.json"
    read: list[Path] = []
    digest = spec_files.file_digest

    def counted(path: Path) -> str:
        """Note that a file is read."""
        read.append(path)
        return digest(path)

    monkeypatch.setattr(spec_files, "file_digest", counted)
    for content in (b"a", b"b"):
        data.write_bytes(content)
        digests = [digest_files([("data", data)], {})]
        for _ in range(2):
            known = read_digests(memory)
            digests.append(digest_files([("data", data)], known))
            keep_digests(memory, known)
        assert digests == digests[:1] * 3
    assert read == [data] * 4


def test_files_that_settings_add_count_by_name_and_content(folder: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Data(Settings):
        def files(self) -> list[Path]:
            return [folder / "a.json", folder / "b.json"]

    files = files_by_setting(Settings(), Data())
    assert files == {"data.files": [(name, folder / name) for name in ("a.json", "b.json")]}
    renamed = [("c.json", folder / "a.json"), files["data.files"][1]]
    assert digest_files(renamed, {})[1] != digest_files(files["data.files"], {})[1]
