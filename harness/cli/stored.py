"""Defines `harness results list`, `rename`, `merge`, `prune`, `archive` and `restore`.

They work on the folders of recorded sweeps. Nothing is removed that was not named before, and
nothing of a sweep that a process or a job is working on.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import (
    JsonOption,
    NameArgument,
    ResultsOption,
    UriOption,
    examples,
    print_collect,
)
from harness.cli.completion import complete_recorded_sweeps
from harness.core.errors import BadInput, HarnessError

app = typer.Typer(
    help="Manage recorded sweeps: report, verify, archive, prune and more.",
    no_args_is_help=True,
)

YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask before files are removed.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]


@app.command("list", epilog=examples("harness results list"))
def list_results(results: ResultsOption = Path("results"), as_json: JsonOption = False) -> None:
    """List the sweeps that have run, with their trials, size and age."""
    from harness.core.paths import Results
    from harness.housekeeping.sweeps import list_sweeps
    from harness.render.stored import show_sweeps

    show_sweeps(list_sweeps(Results(results)), as_json=as_json)


@app.command(epilog=examples("harness results rename nightly nightly-before-upgrade"))
def rename(
    sweep: NameArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.")],
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Give a recorded sweep another name.

    Records stay as they are, and say under which name they were measured. MLflow's experiment and
    runs get the new name too. The sweep file keeps its own name, under which it runs again.
    """
    from harness.core.paths import Results
    from harness.housekeeping import sweeps
    from harness.records.store import recorded_folder, recorded_name
    from harness.tracking import Tracker

    results_folder = Results(results)
    sweep = recorded_name(results_folder, sweep)
    if dry_run:
        before = recorded_folder(results_folder, sweep).path
        print(f"would rename {before} to {results_folder.sweep_folder(name).path}")
        return
    tracker = Tracker(results_folder, tracking_uri)
    # A renaming that MLflow did not take is completed when it is asked for again.
    is_left_to_mlflow = sweeps.is_renamed(results_folder, sweep, name)
    if not is_left_to_mlflow:
        print(sweeps.rename(results_folder, sweep, name).path)
    # The records are the truth: where MLflow does not follow, the sweep has its new name all the same.
    if tracker.rename(sweep, name):
        print(f"MLflow: {sweep} is now {name}")
    elif is_left_to_mlflow:
        recorded_folder(results_folder, sweep)  # raises BadInput: there is no such sweep


@app.command(
    epilog=examples(
        "harness results merge node1 node2 --into all-nodes",
        "harness results merge /mnt/other/results/runs/nightly --into nightly",
    )
)
def merge(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SWEEP",
            help="Sweeps that have run: names, or folders of other results.",
            autocompletion=complete_recorded_sweeps,
        ),
    ],
    into: Annotated[
        str, typer.Option("--into", metavar="NAME", help="The sweep that gets their trials.")
    ],
    results: ResultsOption = Path("results"),
    dry_run: DryRunOption = False,
) -> None:
    """Copy the trials of some sweeps into one.

    It may exist or not. It asks for the cells, seeds and repeats of all. The others stay as they
    are; prune removes them. Refused are trials that two of them have with different records, and
    trials that ran with different profiles.
    """
    from harness.core.paths import Results
    from harness.core.text import counted
    from harness.housekeeping.merge import merge as merge_sweeps
    from harness.housekeeping.sweeps import source_folder

    results_folder = Results(results)
    folders = [source_folder(results_folder, source) for source in sources]
    if dry_run:
        for folder in folders:
            trials = counted(len(folder.record_paths()), "trial")
            print(f"would copy {trials} of {folder.path} into {into}")
        return
    added = merge_sweeps(results_folder, folders, into)
    print(f"{counted(len(added), 'trial')} added to {results_folder.sweep_folder(into).path}")
    print_collect(results_folder, into)


@app.command(
    epilog=examples(
        "harness results prune nightly --dry-run",
        "harness results prune nightly --failed --yes",
        "harness results prune scratch --whole",
    )
)
def prune(
    sweep: NameArgument,
    whole: Annotated[bool, typer.Option("--whole", help="Remove the sweep as a whole.")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Remove trials that failed or are invalid, too.")
    ] = False,
    results: ResultsOption = Path("results"),
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Remove trials of a recorded sweep, or all of it.

    Without further options these are trials of none of its cells, such as those of earlier code,
    which no command shows. Each is named before anything is removed. MLflow keeps its runs.
    """
    from harness.core.paths import Results
    from harness.housekeeping import sweeps
    from harness.records.store import recorded_folder
    from harness.render.stored import show_removals

    if whole and failed:
        raise BadInput("--whole: found with --failed; allowed: one of them")
    results_folder = Results(results)
    statuses = ("failed", "invalid") if failed else ()
    removals = sweeps.removals(results_folder, sweep, whole=whole, statuses=statuses)
    if not removals:
        print("nothing to remove")
        return
    show_removals(removals, is_dry_run=dry_run)
    if dry_run:
        return
    _confirm_removal(yes=yes)
    sweeps.remove(recorded_folder(results_folder, sweep), removals)


@app.command(
    epilog=examples(
        "harness results archive nightly",
        "harness results archive nightly --output nightly.tar.gz --remove",
    )
)
def archive(
    sweep: NameArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE.tar.gz", help="The file.  [default: SWEEP.tar.gz]"),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the sweep once the archive is verified.")
    ] = False,
    results: ResultsOption = Path("results"),
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Write a recorded sweep into one file.

    It holds records, logs, checkpoints and traces, and a manifest by which `harness results restore`
    checks each of them. Not in it: MLflow's runs, which `harness results collect` delivers again.
    """
    from harness.core.paths import Results
    from harness.core.text import counted
    from harness.housekeeping import archive as archives
    from harness.housekeeping import sweeps
    from harness.records.store import recorded_folder
    from harness.render.format import byte_size
    from harness.render.stored import show_removals

    results_folder = Results(results)
    folder = recorded_folder(results_folder, sweep)
    path = output or Path(f"{folder.path.name}.tar.gz")
    if dry_run:
        print(f"would archive {folder.path} ({byte_size(sweeps.size_of(folder.path))}) in {path}")
        return
    links = archives.links(folder)
    if remove and links:
        raise BadInput(
            f"--remove: found links, which no archive holds: {links[0]}"
            f"{f' and {len(links) - 1} more' if len(links) > 1 else ''}; allowed: a sweep without"
        )
    # Listed before the archive is written, so that what is added meanwhile is not removed.
    removals = [sweeps.whole_sweep(folder)] if remove else []
    manifest = archives.archive(folder, path)
    print(f"{path}: {counted(len(manifest.files), 'file')}, {byte_size(path.stat().st_size)}")
    if remove:
        archives.verify(path)
        show_removals(removals, is_dry_run=False)
        _confirm_removal(yes=yes)
        sweeps.remove(folder, removals)


@app.command(epilog=examples("harness results restore nightly.tar.gz"))
def restore(
    path: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="An archive.")],
    results: ResultsOption = Path("results"),
    dry_run: DryRunOption = False,
) -> None:
    """Bring back a sweep from an archive.

    Every file is checked by the manifest. A sweep that exists is never touched.
    """
    from harness.core.paths import Results
    from harness.core.text import counted
    from harness.housekeeping import archive as archives

    results_folder = Results(results)
    manifest = archives.verify(path) if dry_run else archives.restore(results_folder, path)
    verb = "would restore" if dry_run else "restored"
    folder = results_folder.sweep_folder(manifest.sweep).path
    print(f"{verb} {counted(len(manifest.files), 'file')} of {manifest.sweep} to {folder}")
    if not dry_run:
        print_collect(results_folder, manifest.sweep)


def _confirm_removal(*, yes: bool) -> None:
    """Ask whether to remove; raises BadInput where nobody can answer, HarnessError for a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput("--yes: needed to remove files where nobody can be asked")
    answer = input("remove? [y/N] ")
    if answer.strip().lower() not in ("y", "yes"):
        raise HarnessError("nothing was removed")
