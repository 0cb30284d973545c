"""`harness certify` as its user sees it: a progress bar, and what came out in words."""

from __future__ import annotations

from collections import Counter
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.core.paths import Results
from harness.gate.certify import certify, prepare
from harness.hardware import certificate
from harness.hardware.certificate import MAX_FALSE_ALARMS, Certificate, CertifySettings
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep


def run(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    asked: CertifySettings,
    count: int,
    *,
    anew: bool,
) -> bool:
    """Measure what is missing and print it; whether the certificate holds."""
    console = Console(highlight=False)
    found = prepare(results, profile, asked, anew=anew)
    before = len(found.comparisons)
    if before < count:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task(describe(found), total=count, completed=before)
            found = certify(
                results,
                sweep,
                profile,
                found,
                count,
                lambda one: progress.update(
                    bar, completed=len(one.comparisons), description=describe(one)
                ),
            )
    else:
        console.print(f"[dim]{before} comparisons are there already; --anew makes new ones[/]")
    for line in summary_lines(found):
        console.print(escape(line), soft_wrap=True)
    console.print(
        f"[dim]{escape(str(certificate.certificate_path(results, found.key)))}[/]", soft_wrap=True
    )
    console.print(
        f"[{'green' if found.holds else 'bold red'}]{escape(conclusion(found))}[/]", soft_wrap=True
    )
    return found.holds


def describe(found: Certificate) -> str:
    return f"{found.settings.label} against itself, {found.false_alarms} false alarms"


def summary_lines(found: Certificate) -> list[str]:
    """What was measured, on what, and what came out."""
    asked, words = found.settings, Counter(one.verdict for one in found.comparisons)
    took = median(one.seconds for one in found.comparisons)
    load = median(one.load for one in found.comparisons)
    return [
        f"{asked.label} against itself on {found.key}",
        ", ".join(f"{count} {word}" for word, count in words.most_common())
        + f"; {took:.1f} s of measuring each in the median, {asked.seconds:g} s at most;"
        f" what matters: {asked.min_effect:.1%}; median load {load:.1f}",
        found.description,
    ]


def conclusion(found: Certificate) -> str:
    """What the exit code says."""
    if found.false_alarm_interval[1] <= MAX_FALSE_ALARMS:
        return f"Equal code is told apart no more often than the {MAX_FALSE_ALARMS:.0%} that are allowed for."
    if found.holds:
        return (
            f"Too few comparisons to tell: up to {found.false_alarm_interval[1]:.1%} false alarms are possible, {MAX_FALSE_ALARMS:.0%} are"
            " allowed for."
        )
    return f"Equal code is told apart more often than the {MAX_FALSE_ALARMS:.0%} that are allowed for: no gate holds here."
