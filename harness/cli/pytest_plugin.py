"""Defines the pytest plugin: `pytest --harness-sweep SWEEP --harness-baseline DIR`.

Every cell of the sweep is a benchmark and a test; no test file is needed. A cell fails if the gate
says so, is reported with a warning where the gate only warns, and its step times go to
pytest-benchmark either way.

pytest loads this module at every start, in any project of an environment that has the harness, and
so it imports everything else only where it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

SWEEP = pytest.StashKey[Path]()  # where the session keeps the absolute path of the sweep's file


# The options, which begin with --harness-; those that a command has too take the same texts.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "sweep": {"metavar": "SWEEP", "help": "A sweep file, or a ready sweep: one benchmark a cell."},
    "baseline": {"metavar": "DIR", "help": "results/baselines, or one hardware's folder in it."},
    "trials": {
        "choices": ("all", "missing", "recorded"),
        "default": "all",  # a record does not name the user's code that it was made with
        "help": "Which trials to run: all again, those that are not done, or none.",
    },
    "set": {"action": "append", "default": [], "help": "As harness run --set."},
    "data": {"action": "append", "default": [], "help": "As harness run --data."},
    "cluster": {"metavar": "PROFILE", "default": "local", "help": "As harness run --cluster."},
    "results": {"metavar": "DIR", "default": "results", "help": "The folder of records."},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("harness", "training benchmarks compared with a baseline")
    for name, option in OPTIONS.items():
        group.addoption(f"--harness-{name}", **option)


def pytest_configure(config: pytest.Config) -> None:
    """Add the sweep to what pytest collects, next to the paths that its user named.

    Raises UsageError for options that would let benchmarks pass without having been compared.
    """
    sweep = config.getoption("harness_sweep")
    baseline = config.getoption("harness_baseline")
    if sweep is None and baseline is None:
        return
    if sweep is None or baseline is None:
        raise pytest.UsageError(
            "--harness-sweep SWEEP and --harness-baseline DIR: found one without the other; allowed:"
            " both; harness baseline makes a baseline"
        )
    cause = _cause_of_disabled_benchmarks(config)
    if cause is not None:
        raise pytest.UsageError(
            f"--harness-sweep: found with {cause}, which turns benchmarks off; allowed: without it"
        )
    from harness.core.errors import BadInput

    try:
        # Fails where the project's tests have a package called `workloads`.
        from harness.sweep.sweep import find_sweep_file

        sweep_path = find_sweep_file(sweep)
    except BadInput as error:
        raise pytest.UsageError(f"--harness-sweep {error}") from None
    # Absolute and without `..`, as the paths that pytest gives `pytest_collect_file`.
    path = Path(os.path.abspath(sweep_path))  # noqa: PTH100
    # Without paths on its command line pytest collects `testpaths`, or all tests below the current
    # folder: whoever asks for the sweep alone does not mean to run these.
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
    config.args = [*config.args, str(path)]
    config.stash[SWEEP] = path


def _cause_of_disabled_benchmarks(config: pytest.Config) -> str | None:
    """Return the option or plugin that turns pytest-benchmark off, None if it is on."""
    if not config.pluginmanager.hasplugin("benchmark"):
        return "-p no:benchmark"
    # As pytest-benchmark decides: xdist's controller knows the option, and its workers, with all
    # that they start, have the variable.
    is_xdist_controller = config.getoption("dist", "no") != "no"
    is_xdist_worker = "PYTEST_XDIST_WORKER" in os.environ
    if is_xdist_controller or is_xdist_worker:
        return "pytest-xdist"
    if config.getoption("--benchmark-skip"):
        return "--benchmark-skip"
    if config.getoption("--benchmark-disable") and not config.getoption("--benchmark-enable"):
        return "--benchmark-disable"
    return None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Any:
    """Collect the sweep's file, and no other.

    pytest calls this for every file it comes across, other YAML files included.
    """
    if parent.config.stash.get(SWEEP, None) != file_path:
        return None
    from harness.cli.pytest_cells import SweepFile

    return SweepFile.from_parent(parent, path=file_path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Run the trials before the first test starts, so that no test's time-out includes them.

    Comes before pytest's own loop, and returns None so that the loop still runs. Raises UsageError
    where the trials can't run at all; a trial that fails is its cell's failure.
    """
    config = session.config
    if SWEEP not in config.stash or config.option.collectonly:
        return
    if session.testsfailed:  # by errors of the collection, as no test has run yet
        return
    from harness.cli.pytest_cells import SweepFile
    from harness.core.errors import HarnessError

    sweep_files: set[SweepFile] = set()
    for item in session.items:
        if isinstance(item.parent, SweepFile):
            sweep_files.add(item.parent)
    for sweep_file in sweep_files:
        try:
            sweep_file.measure()
        except HarnessError as error:
            raise pytest.UsageError(str(error)) from None
