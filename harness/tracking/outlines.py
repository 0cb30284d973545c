"""Keeps the outlines of a sweep's records from one delivery to the next.

A delivery follows each trial of a sweep, which may have ten thousand. So only the records that it
brings are read, and all of them where somebody else may have changed others.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.core.errors import BadInput
from harness.core.paths import SweepFolder
from harness.records.files import read_record
from harness.tracking.contents import TrialOutline, digest_of

Version = tuple[int, int]  # of a file: the time of its modification in nanoseconds, and its size


class SweepOutlines:
    """The outlines of the records in a sweep's folder.

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
            self._read_all()
        else:
            for trial_id in changed:
                self._update(trial_id)
        if not self._by_trial:
            raise BadInput(
                f"{self.folder.path}: found no record of a trial; allowed: a sweep that has run"
            )
        return [self._by_trial[trial_id][1] for trial_id in sorted(self._by_trial)]

    def _read_all(self) -> None:
        """Read all records that are new or changed, and forget those that are gone."""
        recorded_ids = self.folder.recorded_ids()
        for trial_id in self._by_trial.keys() - set(recorded_ids):
            del self._by_trial[trial_id]
        for trial_id in recorded_ids:
            self._update(trial_id)

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
