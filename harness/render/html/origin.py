"""Where the numbers come from: what went wrong, what they were measured with, and how to get them again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.paths import SweepFolder
from harness.hardware.roofline import device_of
from harness.records.record import Record
from harness.render.html.facts import Facts
from harness.spec.sweep import ready_sweeps

LOG_LINES = 30  # of the end of a log
SPREAD = 3  # different values of a setting that are listed; of more only how many
NOISE = ("TORCHELASTIC", "SLURM")  # variables that differ from trial to trial and decide nothing


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A trial that is no part of the numbers, or an earlier attempt of one that is."""

    trial: str
    label: str
    status: str
    reasons: Sequence[str]
    log: str  # path; empty if there is none
    tail: str
    traceback: str


def troubles(facts: Facts, folder: SweepFolder) -> list[Trouble]:
    """In the order of the trials; then those that are planned and have no record, as one."""
    found = [
        _trouble(record, folder)
        for record in facts.records
        if record.status != "done" or record.previous_failures
    ]
    return [one for one in found if one.reasons]


def missing(facts: Facts) -> int:
    """Trials that are planned and have no record."""
    return len(facts.sweep.trials()) - len(facts.records)


def _trouble(record: Record, folder: SweepFolder) -> Trouble:
    place, failure = folder.trial_folder(record.trial.id), record.failure
    reasons = [f"an earlier attempt: {one}" for one in record.previous_failures]
    reasons = ([str(failure)] if failure else []) + list(record.violations) + reasons
    path = place.path / failure.log if failure and failure.log else place.launch_log
    tail = ""
    if record.status != "done" and path.is_file():
        tail = "\n".join(
            path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        )
    return Trouble(
        trial=record.trial.id,
        label=f"{record.trial.cell.label} seed {record.trial.seed}",
        status="done after a failure" if record.status == "done" else record.status,
        reasons=reasons,
        log=str(path) if path.is_file() else "",
        tail=tail,
        traceback=failure.traceback or "" if failure else "",
    )


def environment(facts: Facts) -> list[tuple[str, str]]:
    """Every setting of the trials' hardware, software and variables; all its values where they differ."""
    found: dict[str, dict[str, None]] = {}
    for record in facts.records:
        for name, value in _flat(record).items():
            found.setdefault(name, {})[value] = None
    return [
        (name, "; ".join(values) if len(values) <= SPREAD else f"{len(values)} different values")
        for name, values in found.items()
    ]


def _flat(record: Record) -> dict[str, str]:
    known: Mapping[str, Any] = record.rank0.environment if record.rank0 else {}
    flat: dict[str, Any] = {"device": device_of(record)} if known else {}
    flat |= {name: value for name, value in (known.get("hardware") or {}).items() if name != "gpus"}
    if isinstance(size := flat.pop("memory_bytes", None), int):
        flat["memory"] = f"{size / 2**30:.1f} GiB"
    flat |= {
        "GPUs": ", ".join(
            gpu.get("name", "?") for gpu in (known.get("hardware") or {}).get("gpus", [])
        )
    }
    software = dict(known.get("software") or {})
    packages = software.pop("packages", {})
    flat |= software | {name: version for name, version in packages.items() if name != "torch"}
    flat |= {
        name: value
        for name, value in (known.get("variables") or {}).items()
        if not name.startswith(NOISE)
    }
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in flat.items()
        if value not in ("", None)
    }


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to measure it again: commands, and what is to be known about them."""

    code: Sequence[str]  # commits, each with whether it had changes
    commands: str
    notes: Sequence[str]


def recipe(facts: Facts, folder: SweepFolder) -> Recipe:
    """From the code that measured; settings that a command line changed are in each trial's trial.json."""
    found: dict[str, bool] = {}
    for record in facts.records:
        told: Mapping[str, Any] = (
            (record.rank0.environment.get("harness") or {}) if record.rank0 else {}
        )
        if commit := told.get("commit"):
            found[commit] = found.get(commit, False) or bool(told.get("dirty"))
    notes = []
    if not found:
        notes.append("The commit is not known: the harness did not run from a checkout.")
    if len(found) > 1:
        notes.append("The trials ran on several commits; the commands take the last one.")
    if any(found.values()):
        notes.append("The checkout had uncommitted changes, which the commit does not hold.")
    notes.append(
        "What --set and --data changed is not in the sweep file; each trial's trial.json holds all of it."
    )
    return Recipe(
        code=[
            f"{commit} {'with changes' if dirty else 'clean'}" for commit, dirty in found.items()
        ],
        commands="\n".join(_commands(facts, folder, list(found))),
        notes=notes,
    )


def _commands(facts: Facts, folder: SweepFolder, commits: Sequence[str]) -> list[str]:
    sweep = facts.sweep
    source = sweep.source.stem if sweep.source.stem in ready_sweeps() else str(sweep.source)
    files = {
        cell.workload.label: cell.workload.data["path"]
        for cell in sweep.cells
        if cell.workload.data.get("path")
    }
    data = [word for label, path in files.items() for word in ("--data", f"{label}={path}")]
    seeds = [
        "--set",
        f"seeds={','.join(map(str, sweep.seeds))}",
        "--set",
        f"repeats={sweep.repeats}",
    ]
    last = max(facts.records, key=lambda record: record.ended)
    software = last.rank0.environment.get("software", {}) if last.rank0 else {}
    versions = [f"{name}=={version}" for name, version in software.get("packages", {}).items()]
    _, _, build = str(software.get("torch", "")).partition("+")  # as in 2.11.0+cu128
    wheels = ["--extra-index-url", f"https://download.pytorch.org/whl/{build}"] if build else []
    trial = folder.trial_folder(last.trial.id).path
    ranks = last.trial.cell.axes.world_size
    return [
        *([f"git checkout {commits[-1]}"] if commits else []),
        shlex.join(["pip", "install", ".", *versions, *wheels]),
        shlex.join(["harness", "run", source, *data, *seeds]),
        "# one trial alone, as it ran",
        shlex.join(
            [
                "torchrun",
                "--standalone",
                f"--nproc-per-node={ranks}",
                "-m",
                "harness.training.worker",
                str(trial),
            ]
        ),
    ]
