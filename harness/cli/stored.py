"""Defines the commands of `harness results`.

They work on the folders of recorded sweeps. Nothing is removed that was not named before, and
nothing of a sweep that a process or a job is working on. Only `collect` and `rename` need MLflow.
"""

import sys
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import (
    GoalOption,
    JsonOption,
    NameArgument,
    ResultsOption,
    UriOption,
    examples,
    print_collect,
    print_left_out,
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
        before = results_folder.sweep_folder(sweep).path
        after = sweeps.rename(results_folder, sweep, name, dry_run=True).path
        print(f"would rename {before} to {after}")
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
    trials = counted(len(merge_sweeps(results_folder, folders, into, dry_run=dry_run)), "trial")
    path = results_folder.sweep_folder(into).path
    if dry_run:
        print(f"would add {trials} to {path}")
        return
    print(f"{trials} added to {path}")
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
    archives.check_path(folder, path)
    links = archives.links(folder)
    if remove and links:
        raise BadInput(
            f"--remove: found links, which no archive holds: {links[0]}"
            f"{f' and {len(links) - 1} more' if len(links) > 1 else ''}; allowed: a sweep without"
        )
    if dry_run:
        print(f"would archive {folder.path} ({byte_size(sweeps.size_of(folder.path))}) in {path}")
        return
    if remove:
        _check_answerable(yes=yes)
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
    files = f"{counted(len(manifest.files), 'file')} of {manifest.sweep}"
    if dry_run:
        folder = archives.check_is_new(results_folder, manifest, path)
        print(f"would restore {files} to {folder.path}")
        return
    print(f"restored {files} to {results_folder.sweep_folder(manifest.sweep).path}")
    print_collect(results_folder, manifest.sweep)


@app.command(
    epilog=examples(
        "harness results report matrix", "harness results report nightly --against baseline"
    )
)
def report(
    sweep: NameArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE.html",
            help="The file to write. Default: report.html next to the records.",
        ),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="BASELINE|SWEEP",
            help="What to compare the sweep with, named as for `harness compare`.",
        ),
    ] = "",
    goal: GoalOption = None,
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
) -> None:
    """Write a sweep's report as one HTML file.

    The file needs no network and no other file, so it can be mailed or kept as an artifact. It
    names for every section that is empty the data that would fill it.
    """
    from harness.core.paths import Results
    from harness.interface.reporting import write_report
    from harness.records.store import read_recorded_sweep

    results_folder = Results(results)
    recorded = read_recorded_sweep(results_folder, sweep)
    print_left_out(recorded)
    reference = None
    if against:
        from harness.interface.comparing import select_results  # which loads what talks to MLflow

        # The sweep is selected too because `baseline` means those of the hardware of the others.
        reference = select_results(results_folder, [against, sweep], tracking_uri)[0]
    path = output or results_folder.sweep_folder(recorded.sweep.name).report_path
    write_report(path, results_folder, recorded, reference, goal)
    print(path)  # alone on stdout, for scripts that mail or upload the file


@app.command(
    epilog=examples("harness results collect quickstart --tracking-uri http://127.0.0.1:5000")
)
def collect(
    sweep: NameArgument, results: ResultsOption = Path("results"), tracking_uri: UriOption = None
) -> None:
    """Deliver the records of a sweep to MLflow.

    For trials that ran while MLflow could not be reached, and for jobs that nobody watched. Records
    that are there already are not sent again.
    """
    from harness.core.paths import Results
    from harness.core.text import counted
    from harness.records.store import read_recorded_sweep
    from harness.tracking import Tracker

    results_folder = Results(results)
    recorded = read_recorded_sweep(results_folder, sweep)
    print_left_out(recorded)
    sweep_folder = results_folder.sweep_folder(recorded.sweep.name)
    trials = [record.trial.id for record in recorded.records]
    del recorded  # they would take as much memory as all that MLflow is told
    # Safe to repeat: a delivery that was cut off is completed, and nothing is added twice.
    delivery = Tracker(results_folder, tracking_uri).deliver(sweep_folder, trials)
    delivered = counted(delivery.delivered, "trial")
    print(f"{delivered} delivered, {delivery.already_delivered} were there already")


@app.command(epilog=examples("harness results verify", "harness results verify nightly"))
def verify(
    sweeps: Annotated[
        list[str],
        typer.Argument(
            metavar="[SWEEP]…",
            help="Sweeps that have run. Default: all of them.",
            autocompletion=complete_recorded_sweeps,
        ),
    ] = [],  # noqa: B006 - typer copies it
    results: ResultsOption = Path("results"),
) -> None:
    """Check that recorded numbers are as they were written.

    Other commands check the seal of each file that they read, and of records only the headers. This
    reads the columns of records too, computes each figure again that follows from them, and checks
    what commands leave next to them: fingerprints, checkpoints, exported models, parity, the results
    of check and find-lr. Without SWEEP, also measured peaks, certificates and baselines.

    A seal has no secret: it proves that nothing was damaged or edited by hand, and not who wrote
    it. Whoever can write to the folder can seal other numbers that agree with each other.

    Exit code 2 if anything is damaged, which is named.
    """
    from harness.core.paths import Results
    from harness.core.text import counted
    from harness.housekeeping.verify import verify_machines, verify_sweep
    from harness.records.store import read_recorded_spec, recorded_sweep_names

    results_folder = Results(results)
    names = sweeps or recorded_sweep_names(results_folder)
    for name in sweeps:
        read_recorded_spec(results_folder, name)  # which says what there is if there is none
    parts = [verify_sweep(results_folder, name) for name in names]
    if not sweeps:
        parts.append(verify_machines(results_folder))
    files = records = ranks = problems = 0
    for verified in chain.from_iterable(parts):
        files += 1
        records += verified.is_record
        ranks += verified.ranks
        if verified.problem is not None:
            problems += 1
            print(verified.problem, file=sys.stderr)
    if problems:
        raise BadInput(f"found {counted(problems, 'damaged file')} of {files}")
    print(
        f"{counted(records, 'record')} of {counted(len(names), 'sweep')} are whole, with the series"
        f" of {counted(ranks, 'rank')}; so are {counted(files - records, 'other file')}"
    )
    print("that is no proof against someone who can write to the folder: seals have no secret")


@app.command(epilog=examples("harness results mllog mnist", "harness results mllog mnist --check"))
def mllog(
    sweep: NameArgument,
    results: ResultsOption = Path("results"),
    check: Annotated[
        bool,
        typer.Option("--check", help="Ask MLCommons' compliance checker about each log."),
    ] = False,
) -> None:
    """Write the trials of a sweep as logs in MLPerf's format.

    With mllog: true in its file, `harness run` writes them. They are made from the records, and are
    in the folders of the trials.

    Exit code 1 if the checker refuses one, and 2 if a trial has no log or the checker is not
    installed.
    """
    from harness.core.paths import Results
    from harness.mllog.checker import check_logs
    from harness.mllog.log import write_logs
    from harness.records.store import read_recorded_sweep
    from harness.render.stored import show_answers

    results_folder = Results(results)
    recorded = read_recorded_sweep(results_folder, sweep)
    print_left_out(recorded)
    written = write_logs(results_folder.sweep_folder(sweep), recorded)
    if not check:
        for log in written:
            print(log.path)
        return
    benchmarks = sorted({log.benchmark for log in written})
    answers = check_logs([log.path for log in written], benchmarks)
    show_answers(written, answers)
    if not all(answer.accepted for answer in answers):
        raise typer.Exit(1)


def _confirm_removal(*, yes: bool) -> None:
    """Ask whether to remove; raises BadInput where nobody can answer, HarnessError for a no."""
    _check_answerable(yes=yes)
    try:
        answer = "y" if yes else input("remove? [y/N] ")
    except EOFError:  # Ctrl-D
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise HarnessError("nothing was removed")


def _check_answerable(*, yes: bool) -> None:
    """Raise BadInput where there is nobody to ask whether to remove."""
    if not yes and not sys.stdin.isatty():
        raise BadInput("--yes: needed to remove files where nobody can be asked")
