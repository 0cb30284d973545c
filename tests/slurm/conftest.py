"""A Slurm that the tests of one process share. It is up in a few seconds, and a test that breaks it
leaves it whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.daemons import missing, running
from tests.slurm.sweeps import Undisturbed, computed_here


@contextmanager
def slurm_in(folder: Path, **options: Any) -> Iterator[Slurm]:
    """Run a Slurm that clients in this process ask. Tests are skipped where none can run; in CI they fail."""
    reason = missing()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no Slurm: {reason}")
    with running(folder, **options) as slurm, pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in slurm.environment.items():
            monkeypatch.setenv(name, value)
        yield slurm


@pytest.fixture(scope="module")
def shared_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes, n1 and n2."""
    with slurm_in(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture
def slurm(shared_slurm: Slurm) -> Iterator[Slurm]:
    """The nodes of the module's Slurm, idle; restored after the test."""
    yield shared_slurm
    shared_slurm.restore()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """What the trials of the tests compute on this machine, each of which runs once in a run of the
    tests, when a test first needs it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # each worker of pytest-xdist has a folder of its own below it
    return partial(computed_here, folder / "undisturbed")
