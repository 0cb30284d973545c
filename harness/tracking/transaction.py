"""Makes many calls of MLflow one transaction of its local SQLite database.

MLflow commits several times in a call, and each commit waits for the disk. A transaction over many
calls waits once, and whoever looks on sees a trial's run with all that it shows, or no run.

New runs are inserted as rows (`run_rows`). All other calls stay MLflow's own. Their sessions join a
transaction that was begun before, each as a savepoint, which is SQLAlchemy's recipe for code that
commits and rolls back by itself (docs.sqlalchemy.org, "Joining a Session into an External
Transaction").
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING

from harness.tracking.new_run import ClientRun, NewRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy.orm import Session

MAX_SECONDS = 1.0  # of a transaction, during which no other process can write
BUSY_TIMEOUT = 20_000  # milliseconds to wait for another process, as in MLflow's own sessions


class Transaction:
    """The writes to a store that has no transactions, such as a server: each counts at once."""

    def __init__(self, client: MlflowClient) -> None:
        self.client = client

    def create_run(
        self, experiment_id: str, *, name: str, started: int, tags: Mapping[str, str]
    ) -> NewRun:
        """Return a new run, which the caller completes; `started` in milliseconds since the epoch."""
        return ClientRun(self.client, experiment_id, name=name, started=started, tags=tags)

    def checkpoint(self) -> None:
        """Make what was written so far durable and visible, if it is time to."""


class LocalTransaction(Transaction):
    """A sequence of transactions of a SQLite store, each of MAX_SECONDS and one call more at most.

    In the block, all sessions of the store join it. What was written since the last checkpoint is
    undone if the block raises, or the process ends.
    """

    def __init__(self, client: MlflowClient) -> None:
        # Only now, because it imports MLflow.
        from harness.tracking.run_rows import RunRows

        super().__init__(client)
        # MLflow's client has no other way to its store.
        store: SqlAlchemyStore = client._tracking_client.store
        self.store = store
        self.connection = store.engine.connect()
        self.begun = 0.0  # on the monotonic clock
        self._rows = RunRows(store, self.connection)
        self._session: Session | None = None  # of the call that is under way
        # Whenever it creates a run, MLflow reads the experiment with its tags.
        self._get_experiment = lru_cache(maxsize=1)(store.get_experiment)

    def __enter__(self) -> LocalTransaction:
        """Begin the first transaction, and have the store's sessions join it."""
        # In a transaction, this setting would have no effect.
        self.connection.exec_driver_sql("PRAGMA foreign_keys = ON")
        self.connection.exec_driver_sql("PRAGMA case_sensitive_like = true")
        self.connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_TIMEOUT}")
        self.connection.commit()
        self._begin()
        self._replaced = self.store.ManagedSessionMaker
        self.store.ManagedSessionMaker = self._join
        vars(self.store)["get_experiment"] = self._get_experiment  # before the class's own
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Commit, or undo what was written since the last checkpoint if the block has raised."""
        self.store.ManagedSessionMaker = self._replaced
        del vars(self.store)["get_experiment"]
        with self.connection:
            if kind is None:  # otherwise closing the connection rolls back
                self.connection.commit()

    def create_run(
        self, experiment_id: str, *, name: str, started: int, tags: Mapping[str, str]
    ) -> NewRun:
        """Return a new run that is inserted when it is complete."""
        from harness.tracking.run_rows import RowRun

        return RowRun(self._rows, experiment_id, name=name, started=started, tags=tags)

    def checkpoint(self) -> None:
        """Commit a transaction that has taken MAX_SECONDS, and begin the next one."""
        if time.monotonic() - self.begun > MAX_SECONDS:
            self.connection.commit()
            self._get_experiment.cache_clear()  # others may have changed it
            self._rows.forget()
            self._begin()

    def _begin(self) -> None:
        """Begin a transaction that writes, by hand: sqlite3 would not begin one for a savepoint."""
        self.connection.exec_driver_sql("BEGIN IMMEDIATE")
        self.begun = time.monotonic()

    @contextmanager
    def _join(self, read_only: bool = True) -> Iterator[Session]:
        """Yield a session for one call of the store, in place of `store.ManagedSessionMaker`.

        A call of which this one is a part shares its session, so that runs are not read again.
        """
        from sqlalchemy.orm import Session  # only now, as it takes long to load

        if self._session is not None:
            yield self._session
            self._session.flush()
            return
        session = Session(
            self.connection, join_transaction_mode="create_savepoint", expire_on_commit=False
        )
        with session:
            self._session = session
            try:
                yield session
                session.commit()
            finally:
                self._session = None


def transaction(client: MlflowClient) -> AbstractContextManager[Transaction]:
    """Return a context in which a client's writes to a local SQLite database are transactions.

    For every other store, each write is one by itself.
    """
    if not client.tracking_uri.startswith("sqlite:"):
        return nullcontext(Transaction(client))
    return LocalTransaction(client)
