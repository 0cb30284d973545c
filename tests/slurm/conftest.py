"""A Slurm for each process that runs tests, up in a few seconds: under `--dist loadfile` at most one a file here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.daemons import missing, running


def refuse(reason: str | None) -> None:
    """Skip the test if there is a reason; in CI it fails."""
    if reason is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no Slurm: {reason}")


@pytest.fixture(scope="session")
def shared_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Without accounting, as it is up sooner and not every cluster has it."""
    refuse(missing())
    with running(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a name that is short enough for sockets, however many processes run the tests."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        yield Path(name)


@pytest.fixture
def slurm(shared_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """Two idle nodes n1 and n2, for clients in this process too; what a test leaves is cancelled."""
    for name, value in shared_slurm.environment.items():
        monkeypatch.setenv(name, value)
    yield shared_slurm
    shared_slurm.clear()
