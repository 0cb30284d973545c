"""Shows what a machine can be trusted with: `harness doctor`, `certify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from rich.markup import escape

from harness.gate.certify import MAX_FALSE_ALARMS, Certificate
from harness.render.console import TerminalConsole, print_json, styled
from harness.slurm.doctor import Check


def show_certificate(certificate: Certificate, path: Path) -> None:
    """Print what was measured, and what it says of this machine; `path` is that of the certificate."""
    console = TerminalConsole()
    for line in summary_lines(certificate):
        console.print_text(line)
    console.print_text(str(path), "quiet")
    style = "green" if certificate.holds else "bold red"
    console.print_markup(f"[{style}]{escape(conclusion(certificate))}[/]")


def summary_lines(certificate: Certificate) -> list[str]:
    """Return what was measured, on what, and with which verdicts.

    Seconds and load are medians over the comparisons: a busy minute among them does not count much.
    """
    settings = certificate.settings
    comparisons = certificate.comparisons
    verdicts = Counter(comparison.verdict for comparison in comparisons)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    seconds = median(comparison.seconds for comparison in comparisons)
    load = median(comparison.load for comparison in comparisons)
    count = len(comparisons)
    low, high = certificate.false_alarm_interval
    return [
        f"{settings.label} against itself on {certificate.key}",
        f"{counts}; median of {seconds:.1f} s of measuring, {settings.seconds:g} s at most;"
        f" smallest change that matters: {settings.min_effect:.1%}; median load {load:.1f}",
        f"{certificate.false_alarms} of {count} false alarms"
        f" ({certificate.false_alarms / count:.1%}, {low:.1%} to {high:.1%}), noise floor"
        f" {certificate.noise_floor:.1%} within {settings.seconds:g} s",
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


TICKS: Mapping[bool, str] = {  # by `Check.passed`
    True: styled("✓", "better"),
    False: styled("✗", "failed"),
}


def show_checks(cluster: str, checks: Sequence[Check], *, passed: bool, as_json: bool) -> None:
    """Print a line for each check: whether it passed, its name, and its detail.

    The order is that of the examination: what failed first may be the reason for what follows.
    `cluster` is the name of the profile.
    """
    if as_json:
        print_json({"cluster": cluster, "passed": passed, "checks": checks})
        return
    console = TerminalConsole()
    width = max(len(check.name) for check in checks)
    for check in checks:
        name = f"{escape(check.name):{width}}"
        console.print_markup(f"{TICKS[check.passed]} {name}  {escape(check.detail)}")
