"""A sweep that lost what would have failed does not pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.gate import against
from harness.gate.paired import PairedResult
from tests.support.commands import harness
from tests.support.repository import Repository

SWEEP: dict[str, Any] = {
    "name": "own",
    "workloads": {
        "one": {"uses": "mlp", "data": {"source": "digits"}, "options": {"hidden": [8]}},
        "two": {"uses": "mlp", "data": {"source": "digits"}, "options": {"hidden": [9]}},
    },
    "matrix": {"batch_size": [32, 64]},
    "length": {"steps": 100},
    "seeds": [0, 1],
}
OTHER_SPLIT = {**SWEEP["workloads"]["two"], "data": {"source": "digits", "split_seed": 3}}
WITHOUT_TWO = {"workloads": {"one": SWEEP["workloads"]["one"]}}


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing is trained: every cell comes out the same. Returns the labels of those measured."""
    labels: list[str] = []

    def measure(sweep: Any, cell: Any, *_: object) -> PairedResult:
        labels.append(cell.label)
        return PairedResult(verdict="same", ratio=1.0, low=0.99, high=1.01, a_rate=1.0, b_rate=1.0)

    monkeypatch.setattr(against, "arm_server", lambda *_: None)
    monkeypatch.setattr(against, "measure", measure)
    return labels


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """One that has committed the sweep."""
    return Repository(tmp_path, **SWEEP)


def gate(repository: Repository, changes: dict[str, Any], *options: str) -> tuple[int, list[str]]:
    """Return the exit code and the differences, where the working tree's sweep has changes."""
    content = {**SWEEP, **changes}
    repository.sweep.write_text(yaml.safe_dump(content), encoding="utf-8")
    ended = harness("gate", "--against", "HEAD", str(repository.sweep), "--json", *options)
    found = json.loads(ended.out)
    lost = [f"lost {label}" for label in found["lost"]]
    return ended.code, lost + [f"new {label}" for label in found["new"]]


@pytest.mark.parametrize(
    "changes",
    [
        {"matrix": {"batch_size": [32]}},
        WITHOUT_TWO,
        {"length": {"steps": 20}},
        {"warmup": 50},
        {"evaluate": {"steps": 7}},
        {"workloads": {**SWEEP["workloads"], "two": OTHER_SPLIT}},
        {"exclude": [{"workload": "two", "batch_size": 64}]},
    ],
)
def test_what_a_sweep_loses_is_named_and_inconclusive(
    repository: Repository, changes: dict[str, Any]
) -> None:
    code, differences = gate(repository, changes)
    assert code == 3
    assert "lost two eager fp32 single w0 b64 t1" in differences


def test_what_is_new_is_named_and_neither_measured_nor_failed(
    repository: Repository, measured: list[str]
) -> None:
    code, differences = gate(repository, {"matrix": {"batch_size": [32, 64, 128]}})
    assert code == 0
    label = "eager fp32 single w0 b128 t1"
    assert differences == [f"new one {label}", f"new two {label}"]
    assert len(measured) == 4
    assert not any("b128" in label for label in measured)


def test_the_same_sweep_differs_in_nothing_and_settings_are_those_of_both(
    repository: Repository,
) -> None:
    assert gate(repository, {"timeout": 60}) == (0, [])
    assert gate(repository, {}, "--set", "length={steps: 7}", "--set", "warmup=2") == (0, [])


def test_a_sweep_that_the_revision_lacks_is_measured_whole(
    repository: Repository, measured: list[str]
) -> None:
    repository.git("rm", "--cached", "--quiet", "sweep.yaml")
    repository.git("commit", "--quiet", "--message", "no sweep")
    assert gate(repository, {}) == (0, [])
    assert len(measured) == 4


def test_a_sweep_of_the_revision_that_can_not_be_read_is_no_sweep_without_cells(
    repository: Repository,
) -> None:
    repository.sweep.write_text("workloads: [", encoding="utf-8")
    repository.commit("broken")
    repository.sweep.write_text(yaml.safe_dump(SWEEP), encoding="utf-8")
    ended = harness("gate", "--against", "HEAD", str(repository.sweep))
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "sweep.yaml of HEAD can't be read: " in ended.err


def test_every_output_names_it(repository: Repository, tmp_path: Path) -> None:
    repository.sweep.write_text(yaml.safe_dump({**SWEEP, **WITHOUT_TWO}), encoding="utf-8")
    summary = tmp_path / "gate.md"
    command = ("gate", "--against", "HEAD", str(repository.sweep), "--summary", str(summary))
    ended = harness(*command)
    assert ended.code == 3
    assert "is inconclusive: the sweep lost or changed 2 cells" in ended.out.splitlines()[0]
    assert "this one has not" in ended.out
    assert "the sweep lost or changed 2 cells" in summary.read_text(encoding="utf-8")


def test_a_sweep_of_new_cells_only_does_not_pass(
    repository: Repository, measured: list[str]
) -> None:
    content = {**SWEEP, "matrix": {"batch_size": [128]}}
    repository.sweep.write_text(yaml.safe_dump(content), encoding="utf-8")
    ended = harness("gate", str(repository.sweep), "--against", "HEAD")
    assert (ended.code, measured) == (3, [])
    assert "is inconclusive: no cell was measured" in ended.out.splitlines()[0]


@pytest.mark.parametrize("target", ["outside.yaml", "repository/new.yaml", None])
def test_a_sweep_that_became_a_link_is_compared_with_the_file_that_it_was(
    tmp_path: Path, target: str | None
) -> None:
    """Without a target, its folder became one."""
    repository = Repository(tmp_path / "repository", **SWEEP)
    folder = repository.path / "bench"
    folder.mkdir()
    repository.sweep = repository.sweep.rename(folder / "sweep.yaml")
    repository.commit("a folder")
    if target is None:
        folder.rename(repository.path / "moved")
        folder.symlink_to("moved")
    else:
        repository.sweep.unlink()
        repository.sweep.symlink_to(tmp_path / target)
    code, differences = gate(repository, {"length": {"steps": 20}})
    assert code == 3
    assert "lost two eager fp32 single w0 b64 t1" in differences


def test_cells_with_other_defaults_of_the_code_are_measured(
    tmp_path: Path, measured: list[str]
) -> None:
    repository = Repository(tmp_path)
    repository.write_defaults(lr=0.003, batch_size=64)
    repository.commit("defaults")
    repository.write_defaults(lr=0.001, batch_size=32)
    ended = harness("gate", "--against", "HEAD", str(repository.sweep), "--json")
    assert json.loads(ended.out)["lost"] == []
    assert (ended.code, measured) == (0, ["own eager fp32 single w0 b32 t1"])


def test_a_null_in_place_of_a_default_is_a_change(tmp_path: Path) -> None:
    entry: dict[str, Any] = {"uses": "own.py:Slowed", "data": {"source": "digits"}}
    repository = Repository(tmp_path, workloads={"own": entry})
    repository.write_defaults(lr=0.003, batch_size=64, clip=1.0)
    repository.commit("clips")
    null = {**entry, "options": {"clip": None}}
    code, differences = gate(repository, {"workloads": {"own": null}, "matrix": {}, "seeds": [0]})
    assert (code, differences) == (3, ["lost own eager fp32 single w0 b64 t1"])
