"""Where the numbers come from: what went wrong, what they were measured with, how to repeat them.

All of it is read from records, which may hold any text. The page escapes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from harness.core.import_path import ROOT
from harness.core.paths import Results, SweepFolder
from harness.core.text import listed
from harness.records.differences import as_text, environment_fields
from harness.records.environment import Environment, Repository
from harness.records.record import Record
from harness.sweep.sweep import Sweep, ready_sweeps
from harness.view.view import Table


def troubles(
    records: Sequence[Record], folder: SweepFolder
) -> list[tuple[Record, list[str], Path]]:
    """Return the trials that something went wrong with, each with the reasons and a log.

    They are the failed, the invalid and the interrupted ones, and those that are done after an
    earlier attempt had failed. The log is that of the rank that failed, or of the launcher.
    """
    found = []
    for record in records:
        trial_folder = folder.trial_folder(record.trial.id)
        log = trial_folder.launch_log
        reasons = list(record.violations)
        if record.failure is not None:
            reasons.insert(0, str(record.failure))
            if record.failure.log:
                log = trial_folder.path / record.failure.log
        for earlier in record.previous_failures:
            reasons.append(f"an earlier attempt: {earlier}")
        if reasons:
            found.append((record, reasons, log))
    return found


def environment_table(records: Sequence[Record]) -> Table:
    """Return every setting of the trials' hardware, software and variables, with its values.

    Several values are a warning to whoever compares the trials.
    """
    values: dict[str, dict[str, None]] = {}  # by name; the inner dict is an ordered set
    environments = dict.fromkeys(record.environment for record in records)
    for environment in filter(None, environments):
        for name, value in environment_fields(environment).items():
            if value not in ("", None):
                texts = values.setdefault(name, {})
                texts[as_text(value)] = None
    table = Table(["setting", "value"])
    for name, different in values.items():
        table.add_row(name, listed(list(different)))
    return table


def recipe(
    sweep: Sweep, records: Sequence[Record], folder: SweepFolder
) -> tuple[list[str], list[str]]:
    """Return the commands that measure a sweep again, and warnings of what they do not bring back.

    They have the user's code, the harness and the packages of the trial that ended last.
    """
    by_end = sorted(records, key=attrgetter("ended"))
    environments = [record.environment for record in by_end if record.environment]
    environment = repository = code = None
    if environments:
        environment = environments[-1]
        repository = environment.repository
        code = environment.code
    commands, warnings = _checkout(sweep, repository, folder)
    user_commit = None if repository is None else repository.commit
    if code is not None and code.commit and code.commit != user_commit:
        changes = ", which had uncommitted changes" if code.dirty else ""
        commands.append(f"# in a checkout of the harness{changes}")
        commands.append(f"git checkout {code.commit}")
    if any(other.repository != repository for other in environments):
        warnings.append("The trials ran on several commits; the commands use the last one.")
    results = Results(folder.path.parent.parent)
    commands += [
        _install_command(environment),
        _run_command(sweep, records),
        "# its trials again, compared with what they computed",
        results.command(f"reproduce {shlex.quote(sweep.name)}"),
    ]
    return commands, warnings


def _checkout(
    sweep: Sweep, repository: Repository | None, folder: SweepFolder
) -> tuple[list[str], list[str]]:
    """Return the commands that bring back the user's code, and warnings of what they do not."""
    if repository is None or not repository.commit:
        if sweep.source.is_relative_to(ROOT):  # it comes with the harness
            return [], []
        return [], [
            f"{sweep.source} and the code of its workloads are in no git repository, so that no commit"
            " brings them back. Keep the files, or commit them and run again."
        ]
    commands = [f"# in the repository of {sweep.source}", f"git checkout {repository.commit}"]
    if repository.diff is not None:
        path = folder.diff_path(repository.diff).absolute()
        commands.append(f"git apply {shlex.quote(str(path))}")
    elif repository.dirty:
        return commands, ["Your uncommitted changes were not kept."]
    return commands, []


def _install_command(environment: Environment | None) -> str:
    """Return the command that installs the packages of a trial, in the versions that it had.

    Builds of torch for CUDA are not on PyPI, but on their own index.
    """
    command = ["pip", "install", "."]
    if environment is not None:
        software = environment.software
        for name, version in software.packages.items():
            command.append(f"{name}=={version}")
        build = software.torch.partition("+")[2]  # `cu128` of `2.11.0+cu128`
        if build:
            command += ["--extra-index-url", f"https://download.pytorch.org/whl/{build}"]
    return shlex.join(command)


def _run_command(sweep: Sweep, records: Sequence[Record]) -> str:
    """Return the command that runs a sweep as it was run last, with all repeats that it had.

    A sweep that comes with the harness is called by its name, any other by its path.
    """
    path = sweep.source
    source = str(path)
    ready = ready_sweeps().get(path.stem)
    # Not a user's own `matrix.yaml`. The harness may be installed elsewhere than where the sweep ran.
    if ready is not None and path.parts[-3:] == ready.parts[-3:]:
        source = path.stem
    command = ["harness", "run", source, *sweep.options]
    # `--until` adds repeats.
    last_repeat = max(record.trial.repeat for record in records)
    repeats = max(sweep.repeats, last_repeat + 1)
    are_set = any(text.startswith("repeats=") for text in sweep.options)
    if repeats > 1 and not are_set:
        command += ["--set", f"repeats={repeats}"]
    return shlex.join(command)
