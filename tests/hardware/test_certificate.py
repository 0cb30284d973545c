"""What a certificate says of its comparisons, where it lies, and who cites it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis import baseline
from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.gate.against import Conditions, GateOptions
from harness.gate.certify import prepare, with_visible_effect
from harness.hardware import certificate
from harness.hardware.certificate import (
    Certificate,
    CertifySettings,
    SelfComparison,
    citation_lines,
)
from harness.records.code import Code
from harness.records.environment import Hardware, Software
from harness.records.seal import sealed_text
from harness.render.machine import conclusion, summary_lines
from harness.spec.cluster import Profile
from tests.support.commands import harness
from tests.support.results import make_result

DAY = 1.79e9  # 2026-09-21
SETTINGS = CertifySettings(cell="mlp-1", label="mlp", seconds=1.0, min_effect=0.01, alpha=0.05)


def made(alarms: int, of: int, changes: Sequence[float] = (), **more: Any) -> Certificate:
    changes = changes or [0.004] * of
    comparisons = [
        SelfComparison(
            verdict="slower" if number < alarms else "same",
            log_ratio=change,
            rate=1000.0 * 1.01 ** (number % 3),
            pairs=5,
            seconds=1.1,
            ended=DAY + number,
            load=0.5,
        )
        for number, change in enumerate(changes)
    ]
    hardware = Hardware(cpu="Fast CPU", usable_cores=2, gpus=[])
    origin: dict[str, Any] = {
        "device": "cpu",
        "hardware": hardware,
        "software": Software(python="3.11.7", torch="2.13"),
        "code": Code(version="1"),
    }
    return Certificate(**{"settings": SETTINGS, "comparisons": comparisons, **origin, **more})


def test_in_words() -> None:
    assert made(3, 200).description.startswith(
        "3 of 200 false alarms (1.5%, 0.3% to 4.3%), noise floor 0.4% within 1 s; 2026-09-"
    )


def test_the_deviation_of_a_pair_holds_however_early_comparisons_end() -> None:
    """They end at the first mean after two pairs that is not too low, or after ten."""
    rng = np.random.default_rng(3)
    (first,) = made(0, 1).comparisons
    comparisons = []
    for number in range(4000):
        values = rng.normal(0, 0.01, 10)
        means = np.cumsum(values) / np.arange(1, 11)
        certain = np.flatnonzero(means[1:] > -0.005)
        pairs = int(certain[0]) + 2 if len(certain) else 10
        comparisons.append(
            replace(first, pairs=pairs, log_ratio=float(means[pairs - 1]), ended=DAY + number)
        )
    deviation = made(0, 1, comparisons=comparisons).pair_deviation
    assert deviation == pytest.approx(0.01, rel=0.04)


def test_a_gate_asks_for_no_less_than_can_be_seen_here(tmp_path: Path) -> None:
    results = Results(tmp_path)
    options = GateOptions(revision="main")
    key = made(0, of=20).key
    conditions = Conditions(hardware=key, torch="2.13", certificate="")
    assert with_visible_effect(options, results, conditions, 1) == options
    certificate.write(results, made(0, of=9, changes=[0.02] * 9))
    assert with_visible_effect(options, results, conditions, 1) == options, "too few to tell"
    seen = {}
    for noise, seconds, cells in ((0.01, 8.0, 1), (0.01, 30.0, 1), (0.01, 8.0, 8), (0.05, 8.0, 1)):
        # Of 5 pairs of 0.22 s each, whose mean log ratio has this deviation from 0.
        certificate.write(results, made(0, of=20, changes=[noise, -noise] * 10))
        asked = replace(options, budget_seconds=seconds)
        seen[noise, seconds, cells] = with_visible_effect(asked, results, conditions, cells)
    usual = seen[0.01, 8.0, 1]
    assert usual.min_effect_source == "what the certificate of this machine says can be seen in 8 s"
    assert 0.015 < usual.min_effect < 0.03
    assert usual.min_effect == pytest.approx(round(usual.min_effect, 3)), "a tenth of a percent"
    assert seen[0.01, 30.0, 1] == replace(options, budget_seconds=30.0), "other pairs, of 1 s each"
    assert seen[0.01, 8.0, 8].min_effect > usual.min_effect
    assert seen[0.05, 8.0, 1].min_effect > 3 * usual.min_effect


def test_the_noise_floor_is_what_all_but_a_twentieth_stay_below() -> None:
    changes = [0.001 * number * (-1) ** number for number in range(1, 101)]
    assert made(0, 100, changes).noise_floor == pytest.approx(math.expm1(0.095))


@pytest.mark.parametrize(("alarms", "holds"), [(0, True), (10, True), (16, True), (20, False)])
def test_it_holds_unless_false_alarms_are_certainly_too_many(alarms: int, holds: bool) -> None:
    certified = made(alarms, 200)
    assert certified.holds is holds
    assert ("can't be trusted" in conclusion(certified)) is not holds


def test_what_was_measured_is_told() -> None:
    lines = summary_lines(made(1, 20))
    assert lines[0] == "mlp against itself on Fast-CPU-2-cores"
    assert lines[1].startswith("19 same, 1 slower; median of 1.1 s of measuring, 1 s at most")


def test_it_is_read_as_it_was_written_a_line_for_each_comparison(tmp_path: Path) -> None:
    results, certified = Results(tmp_path), made(1, 3)
    path = certificate.write(results, certified)
    assert path == tmp_path / "certificates" / "Fast-CPU-2-cores.json"
    assert certificate.read(results, certified.key) == certified
    assert sum('"verdict"' in line for line in path.read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 0}, "schema: found 0"),
        ({"comparisons": []}, "no comparison"),
        ({"hardware": {"cpu": "Other", "usable_cores": 4}}, "is of Other-4-cores"),
        ({"hardware": {}}, "not a valid certificate"),
        ({"settings": 1}, "not a valid certificate"),
    ],
)
def test_what_is_no_certificate_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    results, certified = Results(tmp_path), made(1, 3)
    path = certificate.write(results, certified)
    content = json.loads(path.read_text(encoding="utf-8")) | change
    path.write_text(sealed_text(content), encoding="utf-8")
    with pytest.raises(BadInput, match=message) as caught:
        certificate.read(results, certified.key)
    assert "harness certify --restart" in str(caught.value)


def test_only_like_is_gone_on_with() -> None:
    certified = made(1, 3)
    assert certified.continues(made(0, 5))
    changed: list[dict[str, Any]] = [
        {"settings": replace(SETTINGS, seconds=2.0)},
        {"software": Software(python="3.11.7", torch="2.14")},
        {"code": Code(version="2")},
    ]
    assert [certified.continues(made(1, 3, **other)) for other in changed] == [False, False, False]


def test_an_interrupted_run_is_gone_on_with_unless_told_otherwise(tmp_path: Path) -> None:
    results, profile = Results(tmp_path), Profile(device="cpu")
    begun = replace(
        prepare(results, profile, SETTINGS, restart=False), comparisons=made(0, 2).comparisons
    )
    certificate.write(results, begun)
    assert prepare(results, profile, SETTINGS, restart=False) == begun
    assert prepare(results, profile, SETTINGS, restart=True).comparisons == ()


def test_a_run_of_other_settings_or_versions_is_not_overwritten(tmp_path: Path) -> None:
    results, profile = Results(tmp_path), Profile(device="cpu")
    begun = prepare(results, profile, SETTINGS, restart=False)
    software = replace(begun.software, packages={**begun.software.packages, "numpy": "1.0"})
    path = certificate.write(
        results, replace(begun, software=software, comparisons=made(0, 2).comparisons)
    )
    wanted = replace(SETTINGS, seconds=9.0)
    with pytest.raises(BadInput) as caught:
        prepare(results, profile, wanted, restart=False)
    assert str(caught.value).startswith(
        f"{path}: found 2 comparisons with settings.seconds 1.0, now 9.0;"
        " software.packages.numpy 1.0, now "
    )
    assert "--restart" in str(caught.value)
    assert prepare(results, profile, wanted, restart=True).comparisons == ()


def test_it_is_cited_for_its_hardware_and_for_several_only_if_all_have_one(tmp_path: Path) -> None:
    results, certified = Results(tmp_path), made(3, 200)
    certificate.write(results, certified)
    assert citation_lines(results, [certified.key, certified.key]) == [
        f"A/A certificate of this hardware: {certified.description}"
    ]
    assert citation_lines(results, ["other"]) == [
        "A/A certificate of this hardware: none; harness certify measures it"
    ]
    assert citation_lines(results, [certified.key, "other"]) == []
    other = made(0, 20, hardware=Hardware(cpu="Other", usable_cores=4))
    certificate.write(results, other)
    assert len(citation_lines(results, [certified.key, other.key])) == 2


def test_compare_cites_it(tmp_path: Path) -> None:
    results, certified = Results(tmp_path), made(3, 200)
    certificate.write(results, certified)
    cell = make_result([1000.0, 1001.0, 1002.0], conditions={"hardware": [certified.key]})
    (saved,) = baseline.save(results, [cell])
    ended = harness("compare", str(saved.path), str(saved.path), "--results", str(tmp_path))
    assert f"A/A certificate of this hardware: {certified.description}" in ended.out.splitlines()


@pytest.mark.parametrize(
    "arguments", [["--cluster", "slurm"], ["--budget", "0s"], ["--min-effect", "little"]]
)
def test_what_it_does_not_take(arguments: list[str]) -> None:
    ended = harness("certify", *arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
