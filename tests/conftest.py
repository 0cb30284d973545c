"""Fixtures that several kinds of test share, and the order in which tests run."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from harness.core.errors import HarnessError
from harness.core.paths import Results, SweepFolder
from harness.core.ports import free_port
from harness.launch import forkserver
from harness.sweep.cluster import SHARED_HOST
from harness.tracking import Follower, Tracker, connect, tracker, ui
from harness.tracking.connect import quiet
from workloads import importing

# Another program on the machine may make any example take long.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

WORKER = "PYTEST_XDIST_WORKER"  # xdist sets it in the processes that it runs tests in
RUN_FOLDER = "HARNESS_TESTS_FOLDER"  # the variable with the path of that folder
REAL_FOLLOWER = Follower.__init__, Follower.__exit__
CREATE_DATABASE = connect._create_database
# Kinds of test by how long they take: the long ones start first, so that no process is left with
# one of them at the end. Of a test with several marks the first one here counts.
LONG_KINDS = ("accuracy", "slurm", "distributed", "browser")
# Files without such a mark that compute for long, or wait for long, by the beginnings of their names.
LONG_FILES = (
    "tests/tracking/test_tracking",
    "tests/tracking/test_ui",
    "tests/training/test_inter",
    "tests/launch/test_forkserver",
)


def pytest_configure() -> None:
    """Make the folder that the processes of this run of pytest share."""
    if WORKER not in os.environ:
        os.environ[RUN_FOLDER] = tempfile.mkdtemp(prefix="harness-tests-")
        share_variables()


def share_variables() -> None:
    """Set variables for all tests that only some need: each set of variables has its own forkserver.

    Shells find the commands of this environment first, and scikit-learn sets the others wherever it
    is loaded.
    """
    commands = Path(sys.executable).parent
    os.environ["PATH"] = f"{commands}{os.pathsep}{os.environ['PATH']}"
    os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "True")
    os.environ.setdefault("KMP_INIT_AT_FORK", "FALSE")


def pytest_unconfigure() -> None:
    """Remove that folder once all processes of pytest have ended."""
    if WORKER not in os.environ:
        shutil.rmtree(run_folder())


def run_folder() -> Path:
    """Return a folder that all processes of this run of pytest share."""
    return Path(os.environ[RUN_FOLDER])


def kind_rank(item: pytest.Item) -> int:
    """Return the position of a test's kind in the order of running."""
    for rank, mark in enumerate(LONG_KINDS):
        if item.get_closest_marker(mark):
            return rank
    return len(LONG_KINDS) + int(not item.nodeid.startswith(LONG_FILES))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests in the order of their kinds.

    Within a kind they stay as they were collected.
    """
    items.sort(key=kind_rank)


@contextmanager
def no_new_variables() -> Iterator[None]:
    """Remove the environment variables that are new after the block: MLflow, Inductor and
    scikit-learn set some when they are loaded.

    Each set of variables has its own forkserver, which takes 7 s of CPU time to start.
    """
    before = set(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - before:
            del os.environ[name]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave the environment as it was by all that is loaded with the tests.

    Nothing of that is garbage, and to look for some takes a fifth of the CPU time.
    """
    gc.disable()
    try:
        with no_new_variables():
            return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of garbage collections.

    A trial in this process collects garbage before it trains, and would traverse all tests each time.
    So would the process as it ends.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.freeze)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Return an empty results folder."""
    results = Results(tmp_path / "results")
    results.path.mkdir()
    return results


@pytest.fixture(scope="session", autouse=True)
def conditions_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set what makes tests quick, lets them run side by side, and keeps them in their folder."""
    folder = tmp_path_factory.getbasetemp()
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as monkeypatch:
        # Each delivery process takes 4 s of CPU time to load MLflow, which this process does once:
        # deliver as a command does whose delivery process has died, at the end and by itself.
        monkeypatch.setattr(Follower, "__init__", prepare_delivery)
        monkeypatch.setattr(Follower, "__exit__", deliver_here)
        monkeypatch.setattr(connect, "_create_database", copy_new_database)
        # Matplotlib takes longer than all writes to MLflow together.
        monkeypatch.setattr(tracker, "render", lambda results, recorded: "a report")
        # No trial is invalid for what runs beside it, and none waits for another.
        monkeypatch.setenv(SHARED_HOST, "1")
        # Each forkserver that ends has to load torch again.
        monkeypatch.setattr(forkserver, "MAX_SERVERS", 12)
        # A gate that fails keeps its logs for its user.
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(scratch))
        share_cache(folder.parent if WORKER in os.environ else folder, monkeypatch)
        yield
    # A shell has set it to be ignored where tests run in the background.
    signal.signal(signal.SIGINT, previous)


def share_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache tokenizers and empty databases in the tests' folder, not in the home of whoever runs them.

    The processes of a run share it. Compiled code outlives the run: without it, the tests would
    compile for minutes.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    compiled = Path(f"/tmp/harness-tests-compiled-{os.geteuid()}")
    compiled.mkdir(mode=0o700, exist_ok=True)
    caches = folder / "cache" / "distributed-training-harness"
    caches.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # another process of the run was faster
        (caches / "compile").symlink_to(compiled)


def prepare_delivery(
    follower: Any, results: Results, folders: Sequence[SweepFolder], uri: str | None
) -> None:
    """Take the place of `Follower.__init__`: start no process."""
    follower.tracker, follower.folders, follower.trouble = Tracker(results, uri), folders, None


def deliver_here(follower: Any, *_: object) -> None:
    """Take the place of `Follower.__exit__`: deliver in this process."""
    for folder in follower.folders:
        try:
            if folder.recorded_ids():
                follower.tracker.deliver(folder)
        except HarnessError as error:
            follower.trouble = str(error)


def copy_new_database(uri: str) -> None:
    """Copy an empty database wherever one is created: MLflow takes more than a second for each."""
    template = run_folder() / "empty.db"
    path = Path(uri.removeprefix(connect.SQLITE_PREFIX))
    is_file = uri.startswith(connect.SQLITE_PREFIX) and "?" not in uri
    if is_file and path.parent.is_dir() and not path.exists():
        CREATE_DATABASE(f"{connect.SQLITE_PREFIX}{template}")
        shutil.copy(template, path)
    CREATE_DATABASE(uri)  # what has not been copied


@pytest.fixture
def delivery_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver by a process, as a command does."""
    begin, end = REAL_FOLLOWER
    monkeypatch.setattr(Follower, "__init__", begin)
    monkeypatch.setattr(Follower, "__exit__", end)


@pytest.fixture(scope="session")
def served_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results folder whose database the MLflow server shows."""
    return Results(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def mlflow_server(served_results: Results) -> Iterator[str]:
    """Return the address of a real MLflow server, which each test has another sweep in.

    It takes 15 s of CPU time to start: of the tests that are not nightly, one file alone uses it.
    """
    with ui.server(Tracker(served_results), port=free_port()) as address:
        yield address


@pytest.fixture(autouse=True)
def no_variable_of_another_test() -> Iterator[None]:
    """Remove what libraries that a test was the first to load have set in the environment."""
    with no_new_variables():
        yield


@pytest.fixture(autouse=True)
def no_module_of_another_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Forget the workloads that a test wrote and imported, which no later trial has to do with."""
    if "tmp_path" not in request.fixturenames:
        yield
        return
    folder: Path = request.getfixturevalue("tmp_path")
    yield
    for entry in list(importing.user_folders):
        if entry.startswith(str(folder)):
            importing.user_folders.remove(entry)
            sys.path.remove(entry)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def libraries_loaded_once() -> None:
    """Load what breaks if it is loaded twice.

    pytester forgets all modules that were loaded during its test, so that the next test would load
    them again, beside parts of them that are still known.
    """
    with quiet():  # MLflow's tables warn while they are declared
        import_module("mlflow.store.tracking.sqlalchemy_store")
    import_module("matplotlib.pyplot")
