"""Where the numbers come from: what went wrong, what they were measured with, how to repeat them.

All of it is read from records and logs, which may hold any text. The page escapes it and removes
secrets.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.analysis.cells import shown_seeds
from harness.core.import_path import ROOT
from harness.core.logs import open_log, read_tail
from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.hardware.machine import Device
from harness.records.code import Code, Repository
from harness.records.environment import Environment
from harness.records.record import Record
from harness.spec.sweep import Sweep, ready_sweeps

LOG_LINES = 30  # of the end of a log
MAX_TROUBLES = 20  # trials that are described with their logs
MAX_VALUES = 3  # different values of a setting that are listed; of more, only the number
PER_TRIAL_VARIABLES = ("TORCHELASTIC", "SLURM")  # they differ between trials and decide nothing


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A trial that is no part of the numbers, or an earlier attempt at one that is."""

    trial: str
    label: str
    status: str
    reasons: Sequence[str]
    log: str  # path; empty if there is none
    tail: str  # the end of the log; empty for a trial that is done
    traceback: str


def troubles(records: Sequence[Record], folder: SweepFolder) -> tuple[list[Trouble], int]:
    """Return the first trials that something went wrong with, and how many more there are.

    They are the failed, the invalid and the interrupted ones, and those that are done after an
    earlier attempt had failed.
    """
    troubled_records = []
    for record in records:
        if record.failure or record.violations or record.previous_failures:
            troubled_records.append(record)
    shown = [_trouble(record, folder) for record in troubled_records[:MAX_TROUBLES]]
    return shown, len(troubled_records) - len(shown)


def _trouble(record: Record, folder: SweepFolder) -> Trouble:
    """Return what went wrong with a trial.

    The log is that of the rank that failed; if none is known, what the launcher printed.
    """
    trial_folder = folder.trial_folder(record.trial.id)
    failure = record.failure
    reasons = [str(failure)] if failure else []
    reasons += record.violations
    reasons += [f"an earlier attempt: {earlier}" for earlier in record.previous_failures]
    log = str(trial_folder.launch_log.relative_to(trial_folder.path))
    traceback = ""
    if failure:
        traceback = failure.traceback or ""
        if failure.log:
            log = failure.log
    status: str = record.status
    tail = _read_tail(trial_folder, log)
    path = "" if tail is None else str(trial_folder.path / log)
    if status == "done":
        status = "done after a failure"
        tail = ""  # of the attempt that went well
    return Trouble(
        trial=record.trial.id,
        label=f"{record.trial.cell.label} seed {record.trial.seed}",
        status=status,
        reasons=reasons,
        log=path,
        tail=tail or "",
        traceback=traceback,
    )


def _read_tail(trial_folder: TrialFolder, log: Path | str) -> str | None:
    """Return the last LOG_LINES lines of a log, None if there is no such file in the folder.

    The path comes from a record, so only its name counts.
    """
    try:
        with open_log(trial_folder.log_folder / Path(log).name) as file:
            lines = read_tail(file).splitlines()
    except OSError:
        return None
    return "\n".join(lines[-LOG_LINES:])


def environment(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return every setting of the trials' hardware, software and variables, with its values.

    One value means that all trials had the same; several are a warning to whoever compares them.
    """
    values: dict[str, dict[str, None]] = {}  # by name; the inner dict is an ordered set
    previous: tuple[Environment, Device] | None = None
    for record in records:
        if record.environment is None:
            continue
        current = (record.environment, record.device)
        if current == previous:  # most trials have the same as the one before
            continue
        previous = current
        for name, value in _settings(*current):
            values.setdefault(name, {})[value] = None
    settings = []
    for name, different in values.items():
        listed = "; ".join(different)
        if len(different) > MAX_VALUES:
            listed = f"{len(different)} different values"
        settings.append((name, listed))
    return settings


def _settings(described: Environment, device: Device) -> Iterator[tuple[str, str]]:
    """Yield the names and values of what a trial ran with, without those that are unknown."""
    settings: dict[str, Any] = {"device": device}
    hardware = described.hardware
    settings |= asdict(hardware)
    del settings["gpus"], settings["memory_bytes"]
    if hardware.memory_bytes is not None:
        settings["memory"] = f"{hardware.memory_bytes / 2**30:.1f} GiB"
    settings["GPUs"] = ", ".join(gpu.name for gpu in hardware.gpus)
    settings |= asdict(described.software)
    packages = settings.pop("packages")
    for name, version in packages.items():
        if name != "torch":  # a setting already, with the build in its version: `2.11.0+cu128`
            settings[name] = version
    if described.settings is not None:
        settings |= asdict(described.settings)
    for name, value in described.variables.items():
        if not name.startswith(PER_TRIAL_VARIABLES):
            settings[name] = value
    for name, value in settings.items():
        if value in ("", None):
            continue
        yield name, value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to measure a sweep again."""

    code: Sequence[str]  # whose commits, each with whether it had uncommitted changes
    commands: str
    warnings: Sequence[str]  # what the commands do not bring back


def recipe(sweep: Sweep, records: Sequence[Record], folder: SweepFolder) -> Recipe:
    """Return how to repeat a sweep with the user's code, the harness and the packages that it ran with.

    The commands are of the trial that ended last of those whose environment is known.
    """
    known = [record for record in records if record.environment is not None]
    last = max(known or records, key=lambda record: record.ended)
    environments = [record.environment for record in known if record.environment]
    own = [environment.repository for environment in environments]
    code = [
        *_commits("yours", own),
        *_commits("the harness's", [environment.code for environment in environments]),
    ]
    warnings = _warnings(sweep, own)
    if len(code) > len({text.rpartition("(")[2].partition(",")[0] for text in code}):
        warnings.append("The trials ran on several commits; the commands use the last one.")
    return Recipe(
        code=code, commands="\n".join(_commands(sweep, records, last, folder)), warnings=warnings
    )


def _commits(owner: str, checkouts: Iterable[Code | Repository | None]) -> list[str]:
    """Return the commits of checkouts, each with whether it had uncommitted changes."""
    had_changes: dict[str, bool] = {}
    for checkout in checkouts:
        if checkout is not None and checkout.commit:
            dirty = had_changes.get(checkout.commit, False) or bool(checkout.dirty)
            had_changes[checkout.commit] = dirty
    return [
        f"{commit} ({owner}, {'with changes' if was_changed else 'clean'})"
        for commit, was_changed in had_changes.items()
    ]


def _warnings(sweep: Sweep, repositories: Sequence[Repository | None]) -> list[str]:
    """Return what the commands do not bring back of the user's own code."""
    if sweep.source.is_absolute() and sweep.source.is_relative_to(ROOT):
        return []  # a sweep that comes with the harness
    if not any(repositories):
        return [
            f"{sweep.source} and the code of its workloads are in no git repository, so that no commit"
            " brings them back. Keep the files, or commit them and run again."
        ]
    if any(repository.dirty for repository in repositories if repository is not None):
        return ["Your repository had uncommitted changes: git apply takes those that were kept."]
    return []


def _commands(
    sweep: Sweep, records: Sequence[Record], last: Record, folder: SweepFolder
) -> list[str]:
    """Return the lines that check out the user's code, install the packages, and run the sweep again."""
    commands = []
    environment = last.environment
    repository = None if environment is None else environment.repository
    if repository is not None:
        commands.append(f"# in your repository, that of {sweep.source.name}")
        if repository.commit:
            commands.append(f"git checkout {repository.commit}")
        if repository.diff is not None:
            path = folder.diff_path(repository.diff).absolute()
            commands.append(shlex.join(["git", "apply", str(path)]))
    code = None if environment is None else environment.code
    own_commit = None if repository is None else repository.commit
    if code is not None and code.commit and code.commit != own_commit:
        commands += ["# in a checkout of the harness", f"git checkout {code.commit}"]
    flag = Results(folder.path.parent.parent).flag
    return [
        *commands,
        _install_command(last),
        _run_command(sweep, records),
        "# its trials again, compared with what they computed",
        f"{shlex.join(['harness', 'reproduce', sweep.name])}{flag}",
    ]


def _install_command(record: Record) -> str:
    """Return the command that installs the packages of a trial, in the versions that it had.

    Builds of torch for CUDA are not on PyPI, but on their own index.
    """
    if record.environment is None:
        return "pip install ."
    software = record.environment.software
    versions = [f"{name}=={version}" for name, version in software.packages.items()]
    command = ["pip", "install", ".", *versions]
    build = software.torch.partition("+")[2]  # `cu128` of `2.11.0+cu128`
    if build:
        command += ["--extra-index-url", f"https://download.pytorch.org/whl/{build}"]
    return shlex.join(command)


def _run_command(sweep: Sweep, records: Sequence[Record]) -> str:
    """Return the command that runs a sweep as it was run last, with all seeds and repeats that it had.

    A sweep that comes with the harness is called by its name, any other by its path.
    """
    source = str(sweep.source)
    ready = ready_sweeps().get(sweep.source.stem)
    # Not a user's own `matrix.yaml`. The harness may be installed elsewhere than where the sweep ran.
    if ready is not None and sweep.source.parts[-3:] == ready.parts[-3:]:
        source = sweep.source.stem
    command = ["harness", "run", source, *sweep.options]
    seeds = shown_seeds(sweep, records)
    # An earlier command may have asked for others.
    if not sweep.workload_seeds and seeds != list(sweep.seeds):
        command += ["--set", f"seeds={seeds}"]
    repeats = max(sweep.repeats, *(record.trial.repeat + 1 for record in records))
    # Of the file, or added by `--until`.
    if repeats > 1 and not any(text.startswith("repeats=") for text in sweep.options):
        command += ["--set", f"repeats={repeats}"]
    return shlex.join(command)
