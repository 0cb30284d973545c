"""Runs the command line, and turns errors and signals into one line and an exit code.

A command raises HarnessError, whose message is for people and whose class has the exit code, or
`typer.Exit` where it has printed all there is to say. Any other exception is a defect of the
harness, and keeps its traceback.
"""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer.main
from typer.core import TyperGroup
from typer.exceptions import TyperException

import harness
from harness.cli.commands import Commands
from harness.cli.hints import usage_hint
from harness.core.errors import MAX_MESSAGE, BadInput, HarnessError, one_line
from harness.core.files import storage_error
from harness.launch.interrupt import handle_signals, interrupt

BROKEN_PIPE = 1  # exit code
INTERRUPTED = 130  # exit code, as shells have it: 128 plus the number of SIGINT
# What the system says of each errno.
LIMITS: Mapping[int | None, str] = {
    errno.EAGAIN: "process limit reached",
    errno.ENOMEM: "out of memory",
    errno.EMFILE: "limit of open files reached",
    errno.ENFILE: "limit of open files reached",
}

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
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Benchmark and reproduce distributed training in PyTorch."""


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
    handle_signals(interrupt)
    arguments_or_help = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        # Not standalone: typer would print errors in its own way and end the process. The result is
        # the code of a `typer.Exit`, None where a command returned.
        code = command_tree()(args=arguments_or_help, prog_name="harness", standalone_mode=False)
        sys.stdout.flush()  # here, where it is noticed if the disk is full
    except HarnessError as error:
        code = _fail(str(error), error.exit_code)
    except TyperException as error:
        message = error.format_message()
        context = getattr(error, "ctx", None)  # only usage errors have one
        command = "harness" if context is None else context.command_path
        hint = usage_hint(message) or f"see {command} --help"
        code = _fail(f"{message} ({hint})", BadInput.exit_code)
    except BrokenPipeError:  # what read our output is gone
        _drop_output()
        code = BROKEN_PIPE
    except OSError as error:
        code = _fail_for_system(error)
    except KeyboardInterrupt:  # before typer was there, which turns it into this exit code
        code = INTERRUPTED
    if code == INTERRUPTED:
        _fail("interrupted; run the same command again to resume", code)
    sys.exit(code)


def _fail_for_system(error: OSError) -> int:
    """Print the line of an error of the disk, of permissions or of a limit, and return the exit code.

    Any other error is raised. An error that names no file is that of what was printed:
    `write_atomically` names its files.
    """
    if error.errno in LIMITS:
        return _fail(f"{LIMITS[error.errno]}: {error.strerror}", HarnessError.exit_code)
    # Of a rename, the second name is the file's own and the first that of a temporary file.
    name = error.filename2 or error.filename
    path = Path(os.fsdecode(name or "."))
    if isinstance(error, PermissionError) and name is not None:
        allowed = "files and folders that you may read and write"
        return _fail(f"{path}: {error.strerror}; allowed: {allowed}", BadInput.exit_code)
    failure = storage_error(error, path)
    if failure is None:
        raise error
    if name is None:
        _drop_output()
        return _fail(f"output: {error.strerror}", failure.exit_code)
    return _fail(str(failure), failure.exit_code)


def _drop_output() -> None:
    """Send what is left of the output nowhere: Python would fail again when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    """Print the one line of an error to stderr and return the exit code.

    Line breaks and control characters are removed: a path or a message of a rank may have any.
    """
    print(f"harness: {one_line(message, MAX_MESSAGE)}", file=sys.stderr)
    return code
