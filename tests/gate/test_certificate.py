"""What a certificate says of its comparisons, where it lies, and who cites it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.gate import against, certify
from harness.gate.certify import Certificate, CertifySettings, SelfComparison, prepare
from harness.gate.paired import Budget, PairedResult
from harness.records.environment import Code, Hardware, Software
from harness.records.format import sealed_text
from harness.sweep.cluster import Profile
from harness.view.gate import certificate_view
from tests.support.commands import harness
from tests.support.repository import Repository

SETTINGS = CertifySettings(cell="mlp-1", label="mlp", seconds=1.0, min_effect=0.01, alpha=0.05)


def made(alarms: int, of: int, changes: Sequence[float] = (), **more: Any) -> Certificate:
    changes = changes or [0.004] * of
    template = SelfComparison(
        verdict="same", log_ratio=0.0, pairs=5, seconds=1.1, ended=1.79e9, load=0.5
    )
    comparisons = [replace(template, log_ratio=change) for change in changes]
    comparisons[:alarms] = [replace(same, verdict="slower") for same in comparisons[:alarms]]
    certified = Certificate(
        settings=SETTINGS,
        comparisons=comparisons,
        device="cpu",
        hardware=Hardware(cpu="Fast CPU", usable_cores=2, gpus=[]),
        software=Software(python="3.11.7", torch="2.13"),
        code=Code(version="1"),
    )
    return replace(certified, **more)


@pytest.mark.parametrize(("alarms", "holds"), [(0, True), (10, True), (16, True), (20, False)])
def test_it_holds_unless_false_alarms_are_certainly_too_many(alarms: int, holds: bool) -> None:
    certified = made(alarms, 200)
    assert certified.holds is holds
    conclusion = str(certificate_view(certified, Path("a")).lines[-1])
    assert ("can't be trusted" in conclusion) is not holds


def test_what_was_measured_is_told() -> None:
    """All but a twentieth of the changes stay below the noise floor."""
    changes = [0.001 * number * (-1) ** number for number in range(1, 101)]
    assert made(0, 100, changes).noise_floor == pytest.approx(math.expm1(0.095))
    lines = list(map(str, certificate_view(made(1, 20), Path("a")).lines))
    assert lines[0] == "mlp against itself on Fast-CPU-2-cores: 19 same, 1 slower"
    assert lines[1].endswith("; noise floor: 0.4%")
    assert lines[3].startswith("1 of 20 false alarms (0.1% to 24.9%, 5% are allowed)")


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    results, certified = Results(tmp_path), made(1, 3)
    path = certify.write(results, certified)
    assert path == tmp_path / "certificates" / "Fast-CPU-2-cores.json"
    assert certify.read(path) == certified


@pytest.mark.parametrize(
    ("change", "message"),
    [({"schema": 0}, "schema: found 0"), ({"hardware": {}}, "can't be read as a certificate")],
)
def test_what_is_no_certificate_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = certify.write(Results(tmp_path), made(1, 3))
    content = json.loads(path.read_text(encoding="utf-8")) | change
    path.write_text(sealed_text(content), encoding="utf-8")
    with pytest.raises(BadInput, match=message) as caught:
        certify.read(path)
    assert "harness certify makes a new one" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"settings": replace(SETTINGS, seconds=2.0)},
        {"software": Software(python="3.11.7", torch="2.14")},
        {"code": Code(version="2")},
    ],
)
def test_only_like_is_resumed(change: dict[str, Any]) -> None:
    assert made(1, 3).continues(made(0, 5))
    assert not made(1, 3).continues(made(1, 3, **change))


def test_an_interrupted_run_is_resumed_and_one_of_other_settings_is_not_overwritten(
    tmp_path: Path,
) -> None:
    results, profile = Results(tmp_path), Profile(device="cpu")
    begun = replace(prepare(results, profile, SETTINGS), comparisons=made(0, 2).comparisons)
    path = certify.write(results, begun)
    assert prepare(results, profile, SETTINGS) == begun
    with pytest.raises(BadInput, match="found 2 comparisons with other settings") as caught:
        prepare(results, profile, replace(SETTINGS, seconds=9.0))
    assert str(caught.value).startswith(str(path))


def test_a_certificate_changes_no_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its noise is that of another cell."""
    budgets: list[float] = []

    def measure(*arguments: object) -> PairedResult:
        budgets.extend(item.min_effect for item in arguments if isinstance(item, Budget))
        return PairedResult(verdict="same", ratio=1.0, low=0.99, high=1.01)

    monkeypatch.setattr(against, "measure", measure)
    monkeypatch.chdir(tmp_path)
    repository, results = Repository(tmp_path / "user"), Results(tmp_path / "results")
    noisy = made(0, of=20, changes=[0.05, -0.05] * 10)
    begun = prepare(results, Profile(device="cpu"), SETTINGS)
    certify.write(results, replace(begun, comparisons=noisy.comparisons))
    assert harness("gate", "--against", "HEAD", str(repository.sweep)).code == 0
    assert budgets == [0.01]
