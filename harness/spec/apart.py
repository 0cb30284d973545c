"""Calls what imports users' code in a process of its own.

Whatever that code changes when it is imported, such as variables or the working directory, is then no
part of any trial, and what it prints does not get between the lines of the command.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from harness.core.errors import BadInput, HarnessError

DEADLINE_SECONDS = 3600.0  # importing a workload may download something

T = TypeVar("T")


def call_apart(function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function returns in a forked process, which ends then; raises BadInput as it does.

    Forked, so that torch need not be loaded again where it is loaded. Raises HarnessError if the
    process ends otherwise, with a traceback in its output.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(sender, function, arguments), daemon=True)
    sys.stdout.flush()
    process.start()
    sender.close()
    try:
        answer = receiver.recv() if receiver.poll(DEADLINE_SECONDS) else None
    except EOFError:
        answer = None
    finally:
        process.kill()
        process.join()
    if answer is None:
        raise HarnessError(
            "importing a workload ended the process that plans: see its output above"
        )
    result, error = answer
    if error is not None:
        raise BadInput(error)
    returned: T = result
    return returned


def _call(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Call a function in this process, which was forked for it, and send what it returns."""
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        sender.send((function(*arguments), None))
    except BadInput as error:
        sender.send((None, str(error)))
    except KeyboardInterrupt:
        pass  # which the command that waits here has got too
