"""The program `harness`: its commands, and errors and signals as one line and an exit code.

A command returns its exit code, or raises HarnessError, whose message is for people and whose class has
the exit code. Any other exception is a defect of the harness, and keeps its traceback. Only the module
of the command that runs is imported.
"""

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer.main
from typer.core import TyperGroup
from typer.exceptions import TyperException

import harness
from harness.core.errors import MAX_MESSAGE, BadInput, HarnessError, did_you_mean, one_line
from harness.core.files import storage_error
from harness.core.paths import Results
from harness.launch.interrupt import handle_signals
from harness.sweep.axes import AXES

INTERRUPTED = 130  # exit code, as shells have it: 128 plus the number of SIGINT
# Of processes, memory and open files.
LIMITS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# The folder of records, which `harness --results` chooses for the command that follows it.
RESULTS: ContextVar[Results] = ContextVar("results")
# By the panel of `harness --help`: the module of each command, and when to use it.
PANELS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Run": {
        "init": ("init", "Begin: a first sweep, of your script or of an example."),
        "axes": ("run", "Look up what a sweep can vary."),
        "workloads": ("run", "Look up what can be trained."),
        "plan": ("run", "Before a run: see its cells, trials and duration."),
        "check": ("run", "Before a long run: look for mistakes in the workloads."),
        "find-lr": ("run", "Before a long run: choose a learning rate."),
        "run": ("run", "Run a sweep on this machine, or resume it."),
        "submit": ("jobs", "Run a sweep on a Slurm cluster, or resume it."),
        "status": ("jobs", "During a run: follow its trials."),
        "cancel": ("jobs", "Cancel the jobs of a sweep."),
    },
    "Results": {
        "show": ("results", "After a run: read its results."),
        "compare": ("results", "Decide which of several results is better."),
        "report": ("results", "Write a sweep's report as one HTML file."),
        "ui": ("results", "Browse results in MLflow."),
        "collect": ("results", "Deliver records to MLflow that it lacks."),
        "verify": ("results", "Check that recorded numbers are as they were written."),
        "prune": ("results", "Remove trials, or a sweep."),
    },
    "Gate": {
        "gate": ("gate", "Before a merge: find out if a change makes training slower."),
        "bisect": ("gate", "Find the commit that made training slower."),
        "baseline": ("gate", "Save results that later runs are compared with."),
        "certify": ("gate", "Measure a machine's false alarms."),
    },
    "Reproduce": {
        "reproduce": ("reproduce", "Run a recorded trial again, and compare the bits."),
        "diff": ("reproduce", "Find out why two cells of a sweep differ."),
        "parity": ("reproduce", "Find out which cells of a sweep compute the same."),
    },
    "Machine": {
        "doctor": ("machine", "On a new machine or cluster: check it."),
        "peak": ("machine", "Measure a machine's peak rates, for MFU."),
    },
    "Serve": {
        "export": ("machine", "Export a trained model."),
    },
}
MODULES: Mapping[str, str] = {
    name: module for commands in PANELS.values() for name, (module, _) in commands.items()
}


class Commands(TyperGroup):
    """All commands; the contexts and formatters that typer passes have no public classes."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, None for a name that there is none of."""
        if cmd_name not in MODULES:
            return None
        app = import_module(f"harness.cli.{MODULES[cmd_name]}").app
        app.rich_markup_mode = None  # help is plain text, in which square brackets are no styles
        command: Any = typer.main.get_command(app)
        if isinstance(command, TyperGroup):  # of a module with several commands
            command = command.commands[cmd_name]
        # \b keeps the lines of a paragraph from being joined.
        command.help = command.help.replace("Examples:", "\b\nExamples:")
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that `args` begin with; raises BadInput for one that there is none of."""
        name = args[0]
        is_completion = ctx.resilient_parsing
        if name not in MODULES and not is_completion:
            raise BadInput(f"{name}: no such command; {did_you_mean(name, MODULES)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel, with a line for each command."""
        width = max(map(len, MODULES))  # so that all panels align
        for panel, commands in PANELS.items():
            rows = []
            for name, (_, when_to_use) in commands.items():
                rows.append((f"{name:{width}}", when_to_use))
            with formatter.section(panel):
                formatter.write_dl(rows)


app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},  # those of all commands
    epilog="\b\nStart with: harness run quickstart",
    rich_markup_mode=None,  # help is plain text, in which square brackets are no styles
    pretty_exceptions_enable=False,  # a traceback is Python's own
)


def _print_version(is_asked_for: bool) -> None:
    """Print the version and end the command, if `--version` was given."""
    if is_asked_for:
        print(f"harness {harness.__version__}")
        raise typer.Exit


@app.callback()
def options(
    # The variable is for CI files and clusters, where every command needs the same value.
    results: Annotated[
        Path,
        typer.Option(metavar="DIR", envvar="HARNESS_RESULTS", help="The folder of all records."),
    ] = Path("results"),
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Benchmark and reproduce distributed training in PyTorch."""
    RESULTS.set(Results(results))


def command_tree() -> TyperGroup:
    """Return all commands with their options, as they are parsed."""
    tree = typer.main.get_command(app)
    assert isinstance(tree, TyperGroup)  # as there is more than one command
    return tree


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process.

    `arguments` are those after the command's name, by default the process's own; then the process is
    for this command only. Without any, the help is printed.

    Exit codes: 0 success, 1 a trial failed or a gate said fail, 2 bad input, 3 inconclusive,
    130 interrupted.
    """
    # By Python's default most of them end the process at once, without the cleanup of `with` and `finally`.
    handle_signals(signal.default_int_handler)
    if arguments is None:
        arguments = sys.argv[1:]
    if not arguments:
        arguments = ["--help"]
    try:
        # Not standalone: typer would print errors in its own way and end the process. The result is what
        # the command returned, its exit code if it has one.
        tree = command_tree()
        code = tree(args=arguments, prog_name="harness", standalone_mode=False)
        sys.stdout.flush()  # here, where it is noticed if the disk is full
    except HarnessError as error:
        code = _fail(str(error), error.exit_code)
    except TyperException as error:
        message = _with_hint(error)
        context = getattr(error, "ctx", None)  # only usage errors have one
        command = "harness" if context is None else context.command_path
        code = _fail(f"{message} (see {command} --help)", BadInput.exit_code)
    except BrokenPipeError:  # what read our output is gone
        _drop_output()
        code = HarnessError.exit_code
    except OSError as error:
        code = _fail_for_system(error)
    except KeyboardInterrupt:  # before typer was there, which turns it into this exit code
        code = INTERRUPTED
    if code == INTERRUPTED:
        _fail("interrupted; a sweep or a certificate goes on when its command is repeated", code)
    sys.exit(code)


def _with_hint(error: TyperException) -> str:
    """Return the message of an error, and what to write instead of an option that a command lacks."""
    message = error.format_message()
    option = getattr(error, "option_name", "")
    axis = option.strip("-").replace("-", "_")
    if option == "--results":
        message += "; it goes before the command: harness --results DIR COMMAND"
    elif axis in AXES:
        message += f"; did you mean --set {axis}=VALUE?"
    return message


def _fail_for_system(error: OSError) -> int:
    """Print the line of an error of the disk, of permissions or of a limit, and return the exit code.

    Any other error is raised. An error of the disk that names no file is that of what was printed:
    `write_atomically` names its files.
    """
    # Of a rename, the second name is the file's own and the first that of a temporary file.
    name = error.filename2 or error.filename
    path = Path(os.fsdecode(name or "."))
    failure = storage_error(error, path)
    if failure is not None and name is None:
        _drop_output()
        return _fail(f"output: {error.strerror}", failure.exit_code)
    if failure is not None:
        return _fail(str(failure), failure.exit_code)
    if isinstance(error, PermissionError) and name is not None:
        return _fail(f"{path}: {error.strerror}", BadInput.exit_code)
    if error.errno in LIMITS:
        return _fail(f"limit of the system: {error.strerror}", HarnessError.exit_code)
    raise error


def _drop_output() -> None:
    """Send what is left of the output nowhere: Python would fail again when it flushes it at exit."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    """Print the one line of an error to stderr and return the exit code.

    Line breaks and control characters are removed: a path or a message of a rank may have any.
    """
    print(f"harness: {one_line(message, MAX_MESSAGE)}", file=sys.stderr)
    return code
