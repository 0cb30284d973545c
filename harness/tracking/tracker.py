"""Delivers records to MLflow and recalls them.

A record is on disk before it is delivered, so that a store that is down costs no trial: the same
delivery can be made later. What was delivered already is asked of MLflow itself.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import msgspec

from harness.analysis.selection import Named
from harness.core.errors import BadInput
from harness.core.locks import lock_file
from harness.core.paths import Results, SweepFolder, safe_folder_name
from harness.records.files import read_record
from harness.records.store import read_spec_content
from harness.tracking.connect import (
    CONNECT_TIMEOUT,
    StoreLocked,
    TrackerDown,
    check_exists,
    check_uri,
    connect,
    errors_in_one_line,
    is_server,
    quiet,
)
from harness.tracking.contents import TrialOutline, digest_of, is_complete
from harness.tracking.pages import VIEW_TAG, description_tags, experiment_tags, page
from harness.tracking.recall import recall_run
from harness.tracking.runs import SweepRuns

# What a delivery imports sooner or later.
LIBRARIES = (
    "mlflow.store.tracking.sqlalchemy_store",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
)
LOCK_TIMEOUT = 120.0  # seconds that another delivery from the same results folder is waited for
# Seconds that a local database is waited for which another program has locked, once no trial waits.
# SQLite itself waits for some 10 s each time. Less than `deliverer.DELIVERY_TIMEOUT`.
LOCKED_TIMEOUT = 240.0
LOCKED_PAUSE = 1.0  # seconds between two tries

MAX_CHARACTERS = 8192  # that are read of the lock file
OLD_FORM = 32  # characters of a lock file that says the id alone

Version = tuple[int, int]  # of a file: the time of its modification in nanoseconds, and its size

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a delivery did, and where to find it."""

    delivered: int  # trials that were written
    already_delivered: int  # trials whose runs were complete before
    experiment_id: str
    run_id: str  # of the sweep's own run
    seconds: float  # that it took, without those for loading MLflow and connecting


class SweepOutlines:
    """The outlines of the records in a sweep's folder, kept from one delivery to the next.

    A delivery follows each trial of a sweep, which may have ten thousand. So only the records that it
    brings are read, and all of them where somebody else may have changed others.

    Records that can't be read are left out, so that one of them holds up no other; the commands that
    deliver name them.
    """

    def __init__(self, folder: SweepFolder) -> None:
        self.folder = folder
        self._by_trial: dict[str, tuple[Version, TrialOutline]] = {}

    def read(self, changed: Iterable[str] | None = None) -> list[TrialOutline]:
        """Return the outline of every record, sorted by trial.

        `changed` are the trials whose records may have changed since the last call, None for any.
        Raises BadInput if there is no record that can be read.
        """
        if changed is None or not self._by_trial:
            changed = self.folder.recorded_ids()
            for trial_id in self._by_trial.keys() - set(changed):  # their records are gone
                del self._by_trial[trial_id]
        for trial_id in changed:
            self._update(trial_id)
        if not self._by_trial:
            raise BadInput(
                f"{self.folder.path}: found no record of a trial; allowed: a sweep that has run"
            )
        return [self._by_trial[trial_id][1] for trial_id in sorted(self._by_trial)]

    def _update(self, trial_id: str) -> None:
        """Read a trial's record unless its file is as it was."""
        path = self.folder.trial_folder(trial_id).record_path
        try:
            stat = path.stat()
            version = (stat.st_mtime_ns, stat.st_size)
            if trial_id in self._by_trial and self._by_trial[trial_id][0] == version:
                return
            outline = TrialOutline.of(read_record(path), digest_of(path.read_bytes()))
        except (BadInput, FileNotFoundError):
            self._by_trial.pop(trial_id, None)
            return
        self._by_trial[trial_id] = (version, outline)


class Tracker:
    """One MLflow store: `uri`, or by default the SQLite database in the results folder."""

    def __init__(self, results: Results, uri: str | None = None) -> None:
        """Raise BadInput for a URI that no store can have. Connects to nothing yet."""
        self.results = results
        self._local_uri = f"sqlite:///{results.database.absolute()}"
        self.uri = uri or self._local_uri
        check_uri(self.uri)
        self._client: MlflowClient | None = None
        self._known: dict[Path, SweepRuns] = {}  # what MLflow has, by the folder of the sweep
        self._outlines: dict[Path, SweepOutlines] = {}  # and what the disk has
        self._last_delivery = 0  # when this process delivered last, as the lock file has it

    def deliver(
        self,
        folder: SweepFolder,
        trials: Iterable[str] | None = None,
        *,
        in_passing: bool = False,
    ) -> Delivery:
        """Bring the runs of some trials up to date, with those of their cells and of the sweep.

        `trials` are their ids; None means all records in the folder, whatever was delivered before.
        Delivering again adds nothing; a delivery that was cut off is completed; a trial that has run
        again replaces its older run.

        A sweep that runs delivers `in_passing`: what cells have come to then follows at a pace that
        costs little time, and at the latest with the next delivery that is not in passing.

        Raises TrackerDown if MLflow does not take the delivery, BadInput for a record that cannot
        be read or a folder without any.
        """
        if trials is None:
            self._known.pop(folder.path, None)
            return self._deliver(folder, None, in_passing=in_passing)
        chosen = set(trials)
        was_known = folder.path in self._known
        try:
            return self._deliver(folder, chosen, in_passing=in_passing)
        except StoreLocked:
            raise
        except TrackerDown:
            if not was_known:
                raise
        # Somebody may have deleted a run that was remembered. Now MLflow is asked again.
        return self._deliver(folder, chosen, in_passing=in_passing)

    def _deliver(
        self, folder: SweepFolder, trials: set[str] | None, *, in_passing: bool
    ) -> Delivery:
        """Deliver, once whoever has locked a local database releases it.

        In passing, trials wait for the delivery, and another one follows: then it is not tried again.
        """
        deadline = time.monotonic() + LOCKED_TIMEOUT
        while True:
            try:
                return self._deliver_once(folder, trials, in_passing=in_passing)
            except StoreLocked as error:
                if in_passing:
                    raise
                if time.monotonic() > deadline:
                    raise StoreLocked(f"{error}; waited {LOCKED_TIMEOUT:g} s") from None
                time.sleep(LOCKED_PAUSE)

    def _deliver_once(
        self, folder: SweepFolder, trials: set[str] | None, *, in_passing: bool
    ) -> Delivery:
        """Deliver by what is remembered of the runs in MLflow, if anything is.

        `trials` are the ids of those to deliver, None for all.
        """
        with self._lock() as origin:
            spec = _read_spec(folder)
            outlines = self._read_outlines(folder, trials, spec.get("trials", ()))
            sweep = spec.get("name") or outlines[0].sweep
            trouble = (
                f"did not take the results; `{self._collect_command(sweep)}` delivers them later"
            )
            with quiet(timeout=CONNECT_TIMEOUT), errors_in_one_line(self.uri, trouble):
                client = self._connect()
                started = time.monotonic()
                experiment, state = self._get_experiment(client, sweep)
            # With a deleted experiment, also those runs come back that others had replaced.
            chosen = outlines
            if trials is not None and state != "deleted":
                chosen = [outline for outline in outlines if outline.trial in trials]
            # It is remembered again at the end only, because a write that fails may undo others.
            runs = self._known.pop(folder.path, None)
            if runs is None or state != "active":
                runs = SweepRuns(client, experiment.experiment_id, origin, sweep, folder)
                runs.knows_all = state == "new"
            with quiet(), errors_in_one_line(self.uri, trouble):
                # One trial changes its own cell only, unless it brings the verdicts on all cells.
                cells: set[str] | None = {outline.cell_id for outline in chosen}
                sweep_is_complete = is_complete(outlines, spec.get("trials", ()))
                if trials is None or state == "deleted" or sweep_is_complete:
                    cells = None
                runs.find_existing(cells)
                run_id, delivered = runs.deliver(spec, outlines, chosen, in_passing=in_passing)
                self._tag_experiment(client, experiment, runs, outlines)
            self._known[folder.path] = runs
        return Delivery(
            delivered=delivered,
            already_delivered=len(chosen) - delivered,
            experiment_id=experiment.experiment_id,
            run_id=run_id,
            seconds=time.monotonic() - started,
        )

    def _read_outlines(
        self, folder: SweepFolder, trials: Iterable[str] | None, planned: Collection[str]
    ) -> list[TrialOutline]:
        """Return the outline of every record in the folder; raises BadInput without any.

        Only the records of `trials` may differ from what is remembered, until the trials that are
        `planned` have all ended: verdicts are on what the disk has.
        """
        outlines = self._outlines.setdefault(folder.path, SweepOutlines(folder))
        if trials is None:
            return outlines.read()
        listed = outlines.read(trials)
        return outlines.read() if is_complete(listed, planned) else listed

    def exists(self) -> bool:
        """Return whether the store is there already; only of the local database is it known."""
        return self.uri == self._local_uri and self.results.database.exists()

    def prepare(self) -> None:
        """Create the store if it does not exist, before a server and a run both try to.

        Raises TrackerDown.
        """
        with (
            self._lock(),
            quiet(timeout=CONNECT_TIMEOUT),
            errors_in_one_line(self.uri, "cannot be opened"),
        ):
            self._connect()

    def pages(self, base: str) -> dict[str, str]:
        """Return the address of each sweep's page below `base`, by the sweep's name.

        Raises TrackerDown.
        """
        with quiet(timeout=CONNECT_TIMEOUT), errors_in_one_line(self.uri, "cannot be opened"):
            experiments = self._connect().search_experiments(
                filter_string=f"tags.`{VIEW_TAG}` LIKE '%'", order_by=["name"]
            )
        addresses = {}
        for experiment in experiments:
            addresses[experiment.name] = page(experiment.experiment_id, base=base)
        return addresses

    def recall(self, run_id: str) -> Named:
        """Return the records that a run was made from.

        For a trial's run its own record, for a cell's or a sweep's run those of all its trials.

        Raises BadInput for a run that has no record of this schema, or that cannot be read.
        """
        check_exists(self.uri)
        with quiet(), errors_in_one_line(self.uri, f"does not give run {run_id}", BadInput):
            return recall_run(self._connect(), run_id)

    def _collect_command(self, sweep: str) -> str:
        """Return the command that delivers a sweep to this store."""
        return self.results.collect_command(
            sweep, None if self.uri == self._local_uri else self.uri
        )

    def _connect(self) -> MlflowClient:
        """Return the client, made once: the first use of a database takes seconds."""
        if self._client is None:
            self._client = connect(self.uri)
        return self._client

    def _get_experiment(
        self, client: MlflowClient, name: str
    ) -> tuple[Experiment, Literal["new", "active", "deleted"]]:
        """Return the sweep's experiment, created or restored if need be, and what it was before.

        An experiment that somebody deleted keeps its name, so that no other can have it: it is
        restored, and all of its runs are then looked at again.
        """
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            # A server decides itself where artifacts are stored; for a database we do.
            location = None
            if not is_server(self.uri):
                location = (self.results.artifacts / safe_folder_name(name)).absolute().as_uri()
            experiment_id = client.create_experiment(name, artifact_location=location)
            return client.get_experiment(experiment_id), "new"
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
            return experiment, "deleted"
        return experiment, "active"

    def _tag_experiment(
        self,
        client: MlflowClient,
        experiment: Experiment,
        runs: SweepRuns,
        outlines: Sequence[TrialOutline],
    ) -> None:
        """Set the tags that decide how MLflow's pages open on the sweep, where they differ.

        They follow from the cells and the verdicts. They are put together again where there are twice
        as many cells, and after new verdicts. A description that somebody has written in MLflow stays.
        """
        has_parity = runs.folder.parity_path.exists()
        cells = {outline.cell_id for outline in outlines}
        basis = (len(cells).bit_length(), has_parity, runs.headline)
        if runs.basis_of_view == basis:
            return
        tags = experiment_tags(outlines, has_parity=has_parity)
        tags |= description_tags(experiment.tags, runs.headline)
        for name, value in tags.items():
            if experiment.tags.get(name) != value:
                client.set_experiment_tag(experiment.experiment_id, name, value)
        runs.basis_of_view = basis

    @contextmanager
    def _lock(self) -> Iterator[str]:
        """Hold the lock on deliveries from this results folder; yield the folder's id.

        The id is stored in the lock file (`Origin`). Runs carry it as a tag, so that two folders can
        share a store. The lock keeps two processes from creating the same run: MLflow has no unique names.
        Raises TrackerDown if another process holds it for too long.
        """
        path = Path(f"{self.results.database}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with os.fdopen(handle, "r+", encoding="utf-8", errors="replace") as file:
            if not lock_file(file, LOCK_TIMEOUT):
                raise TrackerDown(
                    f"MLflow: waited {LOCK_TIMEOUT:g} s for {path}, which another command of this"
                    " results folder holds while it delivers; end that one, or wait for it"
                )
            origin = origin_id(file, path)
            # The lock file has the time of the last delivery. If another process made it, what is
            # remembered of MLflow and of the disk may no longer hold.
            if os.fstat(handle).st_mtime_ns != self._last_delivery:
                self._known.clear()
                self._outlines.clear()
            os.utime(handle)  # to the current time: only the owner of the file could set another
            self._last_delivery = os.fstat(handle).st_mtime_ns
            yield origin


def load_libraries() -> None:
    """Load what deliveries need, which takes seconds; a delivery says what is wrong with it."""
    with suppress(Exception), quiet():
        for name in LIBRARIES:
            import_module(name)


def _read_spec(folder: SweepFolder) -> dict[str, Any]:
    """Return the content of the folder's sweep.json, empty if there is none.

    A folder without it has records that somebody copied there. Raises BadInput if it is no JSON.
    """
    if not folder.spec_path.exists():
        return {}
    stat = folder.spec_path.stat()
    return _read_spec_once(folder.spec_path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _read_spec_once(path: Path, modified: int, size: int) -> dict[str, Any]:
    """Read a sweep.json, once for as long as the file's time and size are the same."""
    return read_spec_content(path)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The content of the lock file: which results folder it is of, and where that is.

    Folders that share a store each have their own runs. The file is copied along with its folder, so
    it also says where it is. One that is moved on its file system keeps its inode, on any host.
    """

    id: str  # which the folder's runs have as a tag
    host: str
    path: str  # of the file
    device: int  # of its file system, which other hosts know by another number
    inode: int


def origin_id(file: TextIO, path: Path) -> str:
    """Return the id of the results folder that has the file at `path`, which is open to be changed.

    An empty file gets a new one, and so does a copy. Raises nothing for a file that is damaged: its
    folder gets a new id too.
    """
    status = os.fstat(file.fileno())
    current = Origin(
        id=uuid.uuid4().hex,
        host=socket.gethostname(),
        path=str(path.resolve()),
        device=status.st_dev,
        inode=status.st_ino,
    )
    file.seek(0)
    text = file.read(MAX_CHARACTERS)
    stored = _decode(text, current)
    if stored is not None and not _is_copy(stored, current):
        current = replace(current, id=stored.id)
    content = json.dumps(asdict(current))
    if text != content:
        file.seek(0)
        file.write(content)
        file.truncate()
        file.flush()
    return current.id


def _decode(text: str, current: Origin) -> Origin | None:
    """Return what a file says, None if it is empty or damaged; one in the old form says no place."""
    if len(text) == OLD_FORM and text.isalnum():
        return replace(current, id=text)
    try:
        return msgspec.json.decode(text, type=Origin)
    except msgspec.MsgspecError:
        return None


def _is_copy(stored: Origin, current: Origin) -> bool:
    """Return whether a file that is here now was copied from where it says that it is.

    One from another host counts as a copy unless hosts share the file: to deliver runs twice does no
    harm, to replace those of another folder does.
    """
    if stored.host != current.host:
        return stored.inode != current.inode
    is_same_file = (stored.device, stored.inode) == (current.device, current.inode)
    if is_same_file or stored.path == current.path:  # or it was restored from a backup
        return False
    return Path(stored.path).exists()  # otherwise it was moved to another file system
