"""What a baseline says of what its trials ran with is held against what runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from harness.analysis.result import CellResult, join, of_trial
from harness.hardware.machine import machine_key
from harness.records.environment import Environment
from harness.reproduce.conditions import HARDWARE, baseline_differences, code_of_baseline
from tests.factories import make_record


def environment() -> Environment:
    record = make_record()
    assert record.environment is not None
    return record.environment


def fields() -> dict[str, Sequence[str]]:
    """Return what a baseline of one trial in that environment says."""
    baseline = of_trial(make_record())
    return {**baseline.environment, HARDWARE: [machine_key(environment().hardware, "cpu")]}


def named(recorded: Mapping[str, Sequence[str]], here: Environment) -> list[tuple[str, object]]:
    """Return the names of the differences, with what was recorded."""
    return [(entry.field, entry.a) for entry in baseline_differences(recorded, here, "cpu")]


def test_the_same_environment_differs_in_nothing() -> None:
    assert named(fields(), environment()) == []


def test_each_field_that_differs_is_named() -> None:
    here = environment()
    here = replace(
        here,
        software=replace(here.software, torch="9.9"),
        hardware=replace(here.hardware, usable_cores=99),
        variables={**here.variables, "MKL_CBWR": "COMPATIBLE"},
    )
    assert named(fields(), here) == [
        ("software.torch", environment().software.torch),
        ("variables.MKL_CBWR", None),
        (HARDWARE, machine_key(environment().hardware, "cpu")),
    ]


def test_a_value_that_any_of_its_trials_had_is_no_difference() -> None:
    recorded = fields()
    several = {**recorded, "software.torch": ["1.0", *recorded["software.torch"]]}
    assert named(several, environment()) == []
    others = {**recorded, "software.torch": ["1.0", "1.1"]}
    assert named(others, environment()) == [("software.torch", "1.0 or 1.1")]


def test_a_baseline_without_an_environment_is_never_the_same() -> None:
    assert named({}, environment()) == [("environment", None)]


@pytest.mark.parametrize(
    ("texts", "is_known"), [({}, False), ({"harness.version": ["0.1.0"]}, True)]
)
def test_the_harness_that_measured_it(texts: dict[str, list[str]], is_known: bool) -> None:
    assert (code_of_baseline(texts) is not None) == is_known


def test_trials_of_several_harnesses_name_none() -> None:
    recorded = {"harness.version": ["0.1.0"], "harness.training": ["a", "b"]}
    assert code_of_baseline(recorded) is None


def test_the_harness_of_a_baseline_is_that_of_its_records() -> None:
    (baseline,) = join([of_trial(make_record())])
    assert isinstance(baseline, CellResult)
    assert code_of_baseline(baseline.environment) == environment().code
