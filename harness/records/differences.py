"""Names what differs between two trials: the one place that compares what they ran with.

`run_settings` collects what a trial is run with besides its cell, for its record. It ends up in MLflow,
where more people read it than may read the profile. Hence values of variables are withheld by their
names.

Everything is compared as a flat table of fields with plain, dotted names, such as
`software.packages.numpy`, `variables.ATEN_CPU_CAPABILITY`, `hardware.cpu`, `settings.threads`,
`code.files.spiral.py`, `axes.precision` and `seed`. A field that a later version adds is compared
without further ado. The order of differences is that of `ORDER`: the likeliest cause comes first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from harness.core.variables import is_incidental, is_secret_name, recorded_value
from harness.records.environment import Environment
from harness.records.record import Record, RunSettings
from harness.sweep.axes import AXES, PREFIX
from harness.sweep.cell import Cell, Trial
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep

Value = str | int | float | bool | None
# Prefixes of fields, the likeliest cause of another result first. A field is where the longest
# prefix of its name is; one without any comes last.
ORDER = (
    "seed",
    "code",
    "data",
    "workload",
    "options",
    "length",
    "axes",
    "harness.training",
    "software.torch",
    "settings",
    "variables",
    "hardware",
)
# Parts of an environment that have other names here: `code` is the workload's.
ENVIRONMENT_NAMES = {"code": "harness", "dynamic_files": "code.files"}
# Keys of a profile that change what trials compute, or how fast.
SLURM_KEYS = ("python", "prefix", "cpus_per_rank")
KEPT_CELLS = 2**14  # of which the settings are kept; commands ask for them several times
HEX_DIGEST = re.compile(r"[0-9a-f]{40,}")
SHOWN_DIGITS = 12  # of a digest or a commit, in text


@dataclass(frozen=True)
class Difference:
    """A field in which two trials differ; None is a value that was not set, or not recorded."""

    field: str
    a: Value
    b: Value

    def __str__(self) -> str:
        return f"{self.field}: {shown(self.a)} and {shown(self.b)}"


def shown(value: Value) -> str:
    """Return a value as messages show it: a digest shortened, and a missing one as `none`."""
    return HEX_DIGEST.sub(lambda match: match[0][:SHOWN_DIGITS], as_text(value))


def as_text(value: Value) -> str:
    """Return a value as text, a missing one as `none`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def differences(a: Mapping[str, Value], b: Mapping[str, Value]) -> list[Difference]:
    """Return the fields in which two flat tables differ, in the order of `ORDER`."""
    differing = []
    for name in {**a, **b}:
        of_a, of_b = a.get(name), b.get(name)
        if of_a != of_b:
            differing.append(Difference(name, of_a, of_b))
    return sorted(differing, key=lambda difference: _sort_key(difference.field))


def _sort_key(name: str) -> tuple[int, str]:
    """Return where a field is among differences: where the longest prefix of its name is."""
    prefixes = [prefix for prefix in ORDER if name.startswith(prefix)]
    if not prefixes:
        return len(ORDER), name
    return ORDER.index(max(prefixes, key=len)), name


def environment_fields(environment: Environment) -> dict[str, Value]:
    """Return an environment as a flat table.

    Without variables that are another's at every trial, such as the number of a Slurm job, and
    without those that only say where something is.
    """
    content = asdict(environment)
    content["variables"] = {
        name: value for name, value in environment.variables.items() if not is_incidental(name)
    }
    named = {ENVIRONMENT_NAMES.get(name, name): section for name, section in content.items()}
    return flatten(named)


@lru_cache(KEPT_CELLS)
def identity_settings(cell: Cell) -> Mapping[str, Any]:
    """Return all settings that decide a cell's result, by their names for --across.

    They are exactly those in the cell's id: without the label of the workload, which the sweep
    chooses, and without absolute paths of data, which belong to one machine.
    """
    identity = cell.workload.identity
    settings: dict[str, Any] = {"workload": identity["uses"], **identity["settings"]}
    for name in ("arguments", "target", "module", "launch"):
        if name in identity:
            settings[name] = identity[name]
    settings |= {
        **cell.workload.file_digests,
        "length": str(cell.length),
        "evaluate": str(cell.evaluate),
        "stop": None if cell.stop is None else asdict(cell.stop),
        "warmup": cell.warmup,
        **cell.axes.values,
        **{f"{PREFIX}{name}": value for name, value in cell.variables_set.items()},
    }
    if cell.stack is not None:
        settings["stack.command"] = " ".join(cell.stack.command)
    return settings


def code_fields(cell: Cell) -> dict[str, Value]:
    """Return the code of a cell's workload as a flat table, whose names begin with `code.`."""
    if cell.workload.code is None:
        return {}
    return flatten({"code.files": dict(cell.workload.code)})


def trial_fields(trial: Trial) -> dict[str, Value]:
    """Return all that a cell hashes into its id, with every axis, and the seed, as a flat table.

    The repeat only counts trials that are alike.
    """
    settings: dict[str, Any] = {"seed": trial.seed}
    for name, value in identity_settings(trial.cell).items():
        settings[f"axes.{name}" if name in AXES else name] = value
    return {**flatten(settings), **code_fields(trial.cell)}


def record_fields(record: Record) -> dict[str, Value]:
    """Return what a record's trial was to compute, its environment, and how many ran at a time."""
    fields = trial_fields(record.trial)
    if record.environment is not None:
        fields |= environment_fields(record.environment)
    if record.lane.count > 1:
        fields["lanes"] = record.lane.count
    return fields


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Value]:
    """Return nested mappings as one, the names joined by dots; a list is one text.

    What has no value is left out: None, and a list without entries.
    """
    flat: dict[str, Value] = {}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{key}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            if value:
                flat[key] = ", ".join(map(str, value))
        elif value is not None:
            flat[key] = value
    return flat


def run_settings(sweep: Sweep, profile: Profile) -> RunSettings:
    """Return what the trials of a sweep are run with on a cluster, without secrets."""
    environment = {}
    for name, value in profile.environment.items():
        if not is_secret_name(name):
            environment[name] = recorded_value(name, value)
    slurm = {}
    if profile.launcher == "slurm":
        for name in SLURM_KEYS:
            slurm[name] = getattr(profile.slurm, name)
    return RunSettings(
        sweep_file=str(sweep.source),
        base_folder=str(sweep.base_folder),
        checkpoint="best" if sweep.checkpoint.best else "none",
        saves_at_intervals=sweep.checkpoint.of(profile.launcher, is_script=False) is not None,
        timeout=sweep.timeout,
        launcher=profile.launcher,
        device=profile.device,
        forkserver=profile.forkserver,
        environment=environment,
        slurm=slurm,
    )


def profile_change(recorded: RunSettings, current: RunSettings) -> str | None:
    """Return which setting of the profile differs that may change a result; None if none does.

    Values that were withheld are alike, as they can't be compared.
    """
    sections = ["environment"]
    if recorded.launcher == current.launcher == "slurm":
        sections.append("slurm")
    before = flatten({section: getattr(recorded, section) for section in sections})
    now = flatten({section: getattr(current, section) for section in sections})
    for change in differences(before, now):
        return f"{change.field}: found {as_text(change.b)}, recorded {as_text(change.a)}"
    return None
