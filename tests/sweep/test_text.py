from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import BadInput, HarnessError
from harness.core.paths import Results
from harness.records.store import read_recorded_spec, write_spec
from harness.sweep.cluster import load_profile
from harness.sweep.sweep import find_sweep_file
from tests.support.sweeps import DIGITS, load


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "a\nb"}, r'^\S*sweep.yaml:1: name: found "a\\nb"; allowed: letters, digits'),
        ({"name": "../b"}, r'^\S*sweep.yaml:1: name: found "../b"; allowed: letters, digits'),
        (
            {"workloads": {"::error::": DIGITS["mlp"] | {"uses": "mlp"}}},
            r'^\S*sweep.yaml:3: workloads.::error::: found "::error::"; allowed: letters, digits',
        ),
    ],
)
def test_sweep_with_such_a_name_is_refused(
    tmp_path: Path, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        load(tmp_path, **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["\x1b[2J.yaml", "a\nb", "\udcff.yaml"])
def test_paths_and_profiles_with_control_characters_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="no such sweep file"):
        find_sweep_file(name)
    with pytest.raises(BadInput, match=r"--cluster |can't be read"):
        load_profile(name)


@pytest.mark.parametrize("kind", [HarnessError, BadInput])
def test_error_is_one_line_whatever_it_quotes(kind: type[HarnessError]) -> None:
    message = str(kind("a\n::error::b\x1b[2J\u202e" + "x" * 5000))
    assert message.startswith("a ::error::bxxx")
    assert message.isprintable()
    assert len(message) == 1000


def test_folder_with_a_broken_file_is_written_anew(tmp_path: Path) -> None:
    sweep = load(tmp_path)
    results = Results(tmp_path / "results")
    folder = results.sweep_folder(sweep.name)
    folder.path.mkdir(parents=True)
    folder.spec_path.write_text("{", encoding="utf-8")
    write_spec(sweep, folder)
    assert read_recorded_spec(results, sweep.name).trials() != []
