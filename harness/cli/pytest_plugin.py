"""The pytest plugin: `pytest --harness-sweep SWEEP --harness-baseline DIR`, one benchmark a cell, no test file needed.

pytest loads this at every start, so what it needs is imported where it is needed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

TRIALS = ("all", "missing", "recorded")
SWEEP = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("harness", "training benchmarks held against a baseline")
    group.addoption(
        "--harness-sweep",
        metavar="SWEEP",
        help="A sweep file, or a ready sweep: one benchmark a cell.",
    )
    group.addoption(
        "--harness-baseline",
        metavar="DIR",
        help="What harness baseline save wrote: results/baselines, or one hardware's folder in it.",
    )
    group.addoption(
        "--harness-gate",
        metavar="FILE",
        help="What is let through; gate.yaml beside the baselines if there is one.",
    )
    group.addoption(
        "--harness-trials",
        choices=TRIALS,
        default="all",  # a record doesn't tell what a user's own code was when it was made
        help="Which trials run: all anew, those without a record, or none (what is recorded counts).",
    )
    group.addoption(
        "--harness-set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="As harness run --set.",
    )
    group.addoption(
        "--harness-data", metavar="PATH", action="append", default=[], help="As harness run --data."
    )
    group.addoption("--harness-cluster", metavar="PROFILE", default="local", help="Where to run.")
    group.addoption(
        "--harness-results", metavar="DIR", default="results", help="The folder for records."
    )


def pytest_configure(config: pytest.Config) -> None:
    """The sweep is what is collected; paths beside it are collected too if they are given. Raises UsageError where
    benchmarks would come to nothing."""
    sweep, baseline = config.getoption("harness_sweep"), config.getoption("harness_baseline")
    if sweep is None:
        if baseline is not None:
            raise pytest.UsageError(
                "--harness-baseline: found without --harness-sweep; allowed: both"
            )
        return
    if baseline is None:
        raise pytest.UsageError(
            "--harness-sweep: found without --harness-baseline DIR; harness baseline save makes one"
        )
    if why := _disabled(config):
        raise pytest.UsageError(
            f"--harness-sweep: found with {why}, which turns benchmarks off; allowed: without it"
        )
    file = _file(str(sweep))
    given = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
    config.args = [*given, str(file)]
    config.stash[SWEEP] = file


def _disabled(config: pytest.Config) -> str | None:
    if not config.pluginmanager.hasplugin("benchmark"):
        return "-p no:benchmark"
    # As pytest-benchmark asks: the controller knows the option, workers the variable, and what they start inherits it.
    if config.getoption("dist", "no") != "no" or "PYTEST_XDIST_WORKER" in os.environ:
        return "pytest-xdist"
    for option in ("--benchmark-disable", "--benchmark-skip"):
        if config.getoption(option) and not (
            option.endswith("disable") and config.getoption("--benchmark-enable")
        ):
            return option
    return None


def _file(sweep: str) -> Path:
    from harness.core.errors import BadInput
    from harness.spec import sweep as spec

    try:
        return spec.find_sweep_file(sweep).absolute()
    except BadInput as error:
        raise pytest.UsageError(f"--harness-sweep {error}") from None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Any:
    if parent.config.stash.get(SWEEP, None) != file_path:
        return None
    from harness.cli.pytest_cells import SweepFile

    return SweepFile.from_parent(parent, path=file_path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Trials run before the first test does, so that no test's time-out is theirs."""
    if (
        SWEEP not in session.config.stash
        or session.config.option.collectonly
        or session.testsfailed
    ):
        return
    from harness.cli.pytest_cells import SweepFile
    from harness.core.errors import HarnessError

    for file in {item.parent for item in session.items if isinstance(item.parent, SweepFile)}:
        try:
            file.measure()
            file.tell_certificate()
        except HarnessError as error:
            raise pytest.UsageError(str(error)) from None
