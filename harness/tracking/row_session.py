"""A SQLAlchemy session that inserts MLflow's rows as rows, for calls that write many of them.

SQLAlchemy follows each object that is added to a session, in case it changes or others refer to it.
MLflow adds params, metrics and tags that neither is true of, a hundred for each trial. They are
inserted at once instead, by SQLAlchemy's own operation for that, and not looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlflow.store.tracking.dbmodels.models import (
    SqlDataset,
    SqlInput,
    SqlInputTag,
    SqlLatestMetric,
    SqlMetric,
    SqlParam,
    SqlTag,
)
from sqlalchemy.orm import Session

# What MLflow's calls add many of: they name their parents by ids, which are in the database before.
ROWS = (SqlParam, SqlMetric, SqlLatestMetric, SqlTag, SqlDataset, SqlInput, SqlInputTag)


class RowSession(Session):
    """A session whose `add_all` inserts rows at once, in the order in which they come.

    A row that is there already raises IntegrityError here, where a session otherwise raises it when it
    is flushed. MLflow's calls expect it from both.
    """

    def add_all(self, instances: Iterable[object]) -> None:
        """Insert rows; add objects of other kinds as any session does."""
        objects = list(instances)
        if all(isinstance(row, ROWS) for row in objects):
            self.bulk_save_objects(objects)
        else:
            super().add_all(objects)
