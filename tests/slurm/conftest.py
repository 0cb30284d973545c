"""A Slurm that the tests of one process share. It is up in a few seconds, and a test that breaks it
leaves it whole.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.daemons import missing, running
from tests.slurm.sweeps import LocalOutcomes, Outcomes


def skip_if(reason: str | None) -> None:
    """Skip the test if there is a reason why it can't run; in CI, where nothing may be missing, it
    fails.
    """
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"no Slurm: {reason}")
    pytest.skip(f"no Slurm: {reason}")


@pytest.fixture(scope="session")
def shared_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Without accounting, because not every cluster has it, and it starts sooner."""
    skip_if(missing())
    with running(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, however many processes run the tests."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        yield Path(name)


def set_client_environment(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients of Slurm in this process ask this one."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def slurm(shared_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """Two idle nodes, n1 and n2, for clients in this process too; restored after the test."""
    set_client_environment(shared_slurm, monkeypatch)
    yield shared_slurm
    shared_slurm.restore()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What the trials of the tests compute on this machine, each of which runs once in a run of the
    tests, when a test first needs it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # each worker of pytest-xdist has a folder of its own below it
    return LocalOutcomes(folder / "undisturbed")
