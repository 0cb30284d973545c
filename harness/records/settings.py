"""Collects what a trial is run with besides its cell, for its record.

It ends up in MLflow, where more people read it than may read the profile. Hence no values of
variables that are not known to be public. But a profile can change what trials compute, and is no
part of their cells. So a withheld value leaves a tag, by which the next command notices that it was
changed. Without the key, tags cannot be forged or brute-forced.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import asdict
from typing import Any

from harness.core.redaction import is_secret_name, redact_text, redact_variable, secret_values
from harness.core.variables import PUBLIC_VARIABLES
from harness.records import seal
from harness.records.record import Record, RunSettings
from harness.spec.cluster import Profile
from harness.spec.saving import SaveRules, save_plan
from harness.spec.sweep import Sweep

WITHHELD = re.compile(r"\[redacted(?: (?P<key>[0-9a-f]{8})-[0-9a-f]{16})?\]")
SLURM_KEYS = ("python", "prefix", "cpus_per_rank")  # that change what trials compute, or how fast


def run_settings(sweep: Sweep, profile: Profile, key: bytes | None = None) -> RunSettings:
    """Return what the trials of a sweep are run with on a cluster, without secrets.

    Values of variables are withheld by their names, and tagged with `key` if there is one. All
    texts of the profile, such as lines of `setup`, are redacted by the values of this process's
    secret variables.
    """
    settings = changed_settings(asdict(profile), asdict(Profile()))
    environment = settings.get("environment", {})
    for name, value in environment.items():
        environment[name] = _recorded_value(name, value, key)
    content = json.loads(seal.json_text(settings))
    secrets = secret_values()
    return RunSettings(
        sweep_file=str(sweep.source),
        base_folder=str(sweep.base_folder),
        seeds=list(sweep.seeds),
        repeats=sweep.repeats,
        checkpoint=sweep.checkpoint,
        checkpoint_every=sweep.saves.every,
        profiling=sweep.profile,
        fingerprints=sweep.fingerprints,
        timeout=sweep.timeout,
        launcher=profile.launcher,
        device=profile.device,
        profile=seal.cleaned(content, lambda text: redact_text(text, secrets)),
    )


def saves_at_intervals(record: Record) -> bool:
    """Return whether a trial saves checkpoints at intervals, as far as its record says."""
    if record.settings is None:
        return False
    rules = SaveRules(every=record.settings.checkpoint_every)
    return save_plan(rules, record.trial.cell, record.settings.launcher) is not None


def _recorded_value(name: str, value: str, key: bytes | None) -> str:
    """Return the value of a variable as a record has it.

    It has no tag if the name speaks of a secret: a password that was replaced changes no result.
    """
    if name in PUBLIC_VARIABLES or key is None or is_secret_name(name):
        return redact_variable(name, value)
    tag = hmac.new(key, f"{name}={value}".encode(), "sha256").hexdigest()[:16]
    key_id = hashlib.sha256(key).hexdigest()[:8]
    return f"[redacted {key_id}-{tag}]"


def profile_change(recorded: RunSettings, current: RunSettings) -> str | None:
    """Return which setting of the profile differs that may change a result; None if none does.

    The values of secrets do not count, nor those that can't be compared because they were withheld
    in one place and not in the other, or with another key.
    """
    before = recorded.profile.get("environment", {})
    now = current.profile.get("environment", {})
    for name in sorted({*before, *now}):
        if not is_secret_name(name) and not _may_be_same(before.get(name), now.get(name)):
            return f"environment.{name}: found {_shown(now.get(name))}, recorded {_shown(before.get(name))}"
    if recorded.launcher != "slurm" or current.launcher != "slurm":
        return None
    for name in SLURM_KEYS:
        value_before = recorded.profile.get("slurm", {}).get(name)
        value_now = current.profile.get("slurm", {}).get(name)
        if value_before != value_now:
            return f"slurm.{name}: found {_shown(value_now)}, recorded {_shown(value_before)}"
    return None


def _may_be_same(before: str | None, now: str | None) -> bool:
    """Return whether two recorded values of a variable are the same, or can't be compared."""
    if before is None or now is None or before == now:
        return before == now
    withheld_before, withheld_now = WITHHELD.fullmatch(before), WITHHELD.fullmatch(now)
    if withheld_before is None and withheld_now is None:
        return False
    if withheld_before is None or withheld_now is None:
        return True
    keys = withheld_before["key"], withheld_now["key"]
    return None in keys or keys[0] != keys[1]


def _shown(value: Any) -> str:
    """Return a setting as an error shows it."""
    if value is None:
        return "none"
    if isinstance(value, str) and WITHHELD.fullmatch(value):
        return "another value"
    return repr(value)


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
