"""MLflow as a view of the records: filled from them at any time, as often as one likes.

The records on disk are the truth; MLflow shows them. A sweep is an experiment, with one run for the
sweep, below it one for each cell, and below each cell one for each of its trials.

`tracker`   brings a sweep's runs up to date (`Tracker.deliver`).
`runs`      finds the runs of a sweep in MLflow and writes what differs, files too.
`contents`  decides what a run shows, as plain data; its numbers are those of `records.numbers`.
`pages`     makes MLflow's own pages open on the cells, with the columns that matter.
`connect`   keeps MLflow quick and quiet; `ui` serves its pages on this machine.
`follow`    delivers from a separate process while a sweep runs or jobs are watched.
"""

from harness.tracking.connect import TrackerDown
from harness.tracking.follow import Follower
from harness.tracking.pages import page
from harness.tracking.tracker import Delivery, Tracker

__all__ = ["Delivery", "Follower", "Tracker", "TrackerDown", "page"]
