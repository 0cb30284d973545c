"""Fixtures that several kinds of test share, and how tests share the machine."""

from __future__ import annotations

import fcntl
import shutil
import socket
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.tracking import Tracker
from harness.tracking.ui import server

# What takes long starts early, what measures time waits; of a test with several marks the first one here counts.
KINDS = ("alone", "accuracy", "slurm", "distributed", "browser", "")


def kind(item: pytest.Item) -> str:
    return next((word for word in KINDS if word and item.get_closest_marker(word)), "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (kind(item) == "alone", KINDS.index(kind(item))))


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked `alone` waits until no other process is in a test, and the others wait for its end."""
    with Path(__file__).open("rb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX if kind(item) == "alone" else fcntl.LOCK_SH)
        try:
            return (yield)
        finally:
            fcntl.flock(turn, fcntl.LOCK_UN)  # whatever a test has forked holds the file too


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with nothing in it, because making one takes seconds."""
    results = Results(tmp_path_factory.mktemp("empty"))
    Tracker(results).prepare()
    return results.database


@pytest.fixture
def results(tmp_path: Path, empty_store: Path) -> Results:
    """A results folder with an MLflow store in it."""
    place = Results(tmp_path / "results")
    place.path.mkdir()
    shutil.copy(empty_store, place.database)
    return place


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[str]:
    """The address of a real MLflow server; nothing of it is left when the tests have ended."""
    place = Results(tmp_path_factory.mktemp("server"))
    shutil.copy(empty_store, place.database)
    with server(Tracker(place), port=free_port()) as base:
        yield base


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tokenizers are cached here, not in the home of whoever runs the tests."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
