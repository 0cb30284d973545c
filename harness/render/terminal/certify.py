"""Shows `harness gate certify`: a progress bar, then how often comparing equal code raised an alarm.

The progress bar is on stderr and disappears at the end; the summary on stdout stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.core.text import counted
from harness.hardware.certificate import (
    MAX_FALSE_ALARMS,
    Certificate,
)
from harness.render.terminal.console import TerminalConsole


@contextmanager
def certify_progress(count: int) -> Iterator[Callable[[Certificate], None]]:
    """Show a progress bar of `count` comparisons; yield a function that brings it up to date."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=TerminalConsole(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=count)
        yield lambda certificate: progress.update(
            bar,
            completed=len(certificate.comparisons),
            description=describe(certificate),
        )


def show_certificate(certificate: Certificate, path: Path, new_comparisons: int) -> None:
    """Print what was measured, and what it says of this machine; `path` is that of the certificate."""
    console = TerminalConsole()
    if not new_comparisons:
        count = counted(len(certificate.comparisons), "comparison")
        console.print(f"[dim]{count} there already; --anew makes new ones[/]")
    for line in summary_lines(certificate):
        console.print(escape(line), soft_wrap=True)
    console.print(f"[dim]{escape(str(path))}[/]", soft_wrap=True)
    style = "green" if certificate.holds else "bold red"
    console.print(f"[{style}]{escape(conclusion(certificate))}[/]", soft_wrap=True)


def describe(certificate: Certificate) -> str:
    """Return what is compared and how many false alarms there are so far, for the progress bar."""
    return f"{certificate.settings.label} against itself, {certificate.false_alarms} false alarms"


def summary_lines(certificate: Certificate) -> list[str]:
    """Return what was measured, on what, and with which verdicts.

    Seconds and load are medians over the comparisons: a busy minute among them does not count much.
    The last line is the one that later verdicts cite.
    """
    settings = certificate.settings
    comparisons = certificate.comparisons
    verdicts = Counter(comparison.verdict for comparison in comparisons)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    seconds = median(comparison.seconds for comparison in comparisons)
    load = median(comparison.load for comparison in comparisons)
    return [
        f"{settings.label} against itself on {certificate.key}",
        f"{counts}; median of {seconds:.1f} s of measuring, {settings.seconds:g} s at most;"
        f" smallest change that matters: {settings.min_effect:.1%}; median load {load:.1f}",
        certificate.description,
    ]


def conclusion(certificate: Certificate) -> str:
    """Return what the exit code says.

    The interval of the rate of false alarms is below the limit, contains it, or is above it. If it contains
    the limit, the certificate holds, and more comparisons would narrow the interval.
    """
    _, upper_bound = certificate.false_alarm_interval
    if upper_bound <= MAX_FALSE_ALARMS:
        return (
            f"False alarms are no more frequent than the {MAX_FALSE_ALARMS:.0%} that are allowed."
        )
    if certificate.holds:
        return (
            f"Too few comparisons: the rate of false alarms may be up to {upper_bound:.1%},"
            f" {MAX_FALSE_ALARMS:.0%} are allowed."
        )
    return (
        f"False alarms are more frequent than the {MAX_FALSE_ALARMS:.0%} that are allowed:"
        " a gate on this machine can't be trusted."
    )
