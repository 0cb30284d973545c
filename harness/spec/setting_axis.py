"""The names of axes that set an option or a data setting of a workload, or a user's own axis.

A worker reads them too, so this module loads nothing that reads sweep files.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

CUSTOM = "custom"  # the axes that users have written
SOURCE = "source"  # the data setting that decides which others there are
# Of what a cell's workload is trained with; the first two are keys of its entry in a sweep file.
SECTIONS = ("options", "data", CUSTOM)
MAX_AXES = 2**12  # whose settings are kept: to compare many cells asks for them again and again


class Setting(NamedTuple):
    """A key of a workload's entry."""

    section: str  # of SECTIONS
    name: str


@lru_cache(MAX_AXES)
def setting_of(axis: str) -> Setting | None:
    """Return the setting that an axis decides, None of other axes."""
    section, dot, name = axis.partition(".")
    if section in SECTIONS and dot:
        return Setting(section, name)
    return None
