"""Collects what a trial is run with beside its cell, for its record.

It is what `harness rerun` needs to run the trial again, and it ends up in MLflow, where more people
read it than may read the profile. Hence no secrets.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from harness.core.redaction import redact_text, redact_variable, secret_values
from harness.records.record import RunSettings
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep


def run_settings(sweep: Sweep, profile: Profile) -> RunSettings:
    """Return what the trials of a sweep are run with on a cluster, without secrets.

    Values of variables are redacted by their names, and all texts of the profile, such as lines of
    `setup`, by the values of this process's secret variables.
    """
    settings = changed_settings(asdict(profile), asdict(Profile()))
    environment = settings.get("environment", {})
    for name, value in environment.items():
        environment[name] = redact_variable(name, value)
    return RunSettings(
        sweep_file=str(sweep.source),
        base_folder=str(sweep.base_folder),
        seeds=list(sweep.seeds),
        repeats=sweep.repeats,
        checkpoint=sweep.checkpoint,
        profiling=sweep.profile,
        timeout=sweep.timeout,
        launcher=profile.launcher,
        device=profile.device,
        profile=_redacted(settings, secret_values()),
    )


def changed_settings(settings: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from their defaults, nested ones too.

    A setting that has no default is kept.
    """
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        default = defaults.get(name)
        if value == default:
            continue
        if isinstance(value, dict) and isinstance(default, dict):
            changed[name] = changed_settings(value, default)
        else:
            changed[name] = value
    return changed


def _redacted(value: Any, secrets: list[str]) -> Any:
    """Return a value as JSON can hold it, with no credentials in any of its texts.

    Tuples become lists, and paths become texts.
    """
    if isinstance(value, dict):
        return {name: _redacted(item, secrets) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, secrets) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact_text(str(value), secrets)
