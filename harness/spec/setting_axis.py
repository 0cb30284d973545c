"""The names of axes that set an option or a data setting of a workload, or a user's own axis.

A worker reads them too, so this module loads nothing that reads sweep files.
"""

from __future__ import annotations

from typing import NamedTuple

CUSTOM = "custom"  # the axes that users have written
# Of what a cell's workload is trained with; the first two are keys of its entry in a sweep file.
SECTIONS = ("options", "data", CUSTOM)


class Setting(NamedTuple):
    """A key of a workload's entry."""

    section: str  # of SECTIONS
    name: str


def setting_of(axis: str) -> Setting | None:
    """Return the setting that an axis decides, None of other axes."""
    section, dot, name = axis.partition(".")
    if section in SECTIONS and dot:
        return Setting(section, name)
    return None
