"""Loads what deliveries need, for the forkserver that processes which deliver are forked from."""

from __future__ import annotations

from importlib import import_module

from harness.core import own_process
from harness.tracking.tracker import load_libraries

# What a delivery imports besides, sooner or later.
MODULES = (
    "harness.tracking.run_rows",
    "scipy.special",  # for verdicts, with the last one
)


def load() -> None:
    """Import all of it, without what MLflow can do without."""
    own_process.claim()  # what is forked is a command's own process too
    load_libraries()
    for name in MODULES:
        import_module(name)


load()
