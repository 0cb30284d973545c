"""MLflow as a view of the records: filled from them, at any time, as often as one likes."""

from harness.tracking.connect import TrackerDown
from harness.tracking.pages import page
from harness.tracking.tracker import Delivery, Tracker

__all__ = ["Delivery", "Tracker", "TrackerDown", "page"]
