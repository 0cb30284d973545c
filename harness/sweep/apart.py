"""Calls what imports users' code in a process of its own.

Whatever that code changes when it is imported, such as variables or the working directory, is then no
part of any trial, and what it prints does not get between the lines of the command.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from harness.core.errors import HarnessError
from harness.core.processes import die_with_parent

DEADLINE_SECONDS = 3600  # importing a workload may download something

T = TypeVar("T")


def call_apart(function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function returns in a forked process, which ends then; raises what it raises.

    Forked, so that torch need not be loaded again where it is loaded. Raises HarnessError if the
    process ends otherwise.
    """
    sys.stdout.flush()
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(1, context, _prepare, (os.getpid(),)) as processes:
            return processes.submit(function, *arguments).result()
    except BrokenProcessPool:
        raise HarnessError(
            "importing a workload ended the process that plans: see its output above"
        ) from None


def _prepare(parent: int) -> None:
    """Have this process, which was forked, print to stderr and end at the deadline or with its parent."""
    die_with_parent(parent=parent)
    signal.alarm(DEADLINE_SECONDS)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
