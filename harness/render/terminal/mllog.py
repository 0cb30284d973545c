"""Shows `harness results mllog` in the terminal: the logs, and what MLCommons' checker says of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.core.text import counted
from harness.mllog.checker import RULESET, check_logs
from harness.mllog.sweep import WrittenLog


def show_paths(logs: Sequence[WrittenLog]) -> None:
    """Print where the logs are."""
    for log in logs:
        print(log.path)


def show_answers(logs: Sequence[WrittenLog]) -> bool:
    """Print the checker's answer to each log, and return whether it has accepted all of them.

    What it says of a log that it refuses is printed as it is, on stderr. Raises BadInput where the
    checker is not installed.
    """
    benchmarks = sorted({log.benchmark for log in logs})
    answers = check_logs([log.path for log in logs], benchmarks)
    refused = 0
    for log, answer in zip(logs, answers, strict=True):
        print(f"{log.path}: {answer.verdict}")
        if not answer.accepted:
            refused += 1
            print(answer.output, file=sys.stderr)
    summary = f"{counted(len(logs), 'log')} by the rules of training {RULESET}"
    print(f"{summary}: {len(logs) - refused} accepted, {refused} refused")
    return refused == 0
