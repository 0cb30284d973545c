"""Shows `harness diff` of recorded trials: by their records, and by running them again if need be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.render.terminal.console import TerminalConsole
from harness.render.terminal.divergence import (
    description,
    entry_to_json,
    heading,
    listed,
    moment,
    moment_line,
    other_tensors_lines,
    print_lines,
    save_plot,
    show_differences,
    to_json,
)
from harness.reproduce.divergence import Divergence, tensors_of
from harness.reproduce.recorded import PARAMETERS, Bounds, RecordedTrial, find_bounds, unlike_record
from harness.reproduce.tracing import LAST_STEP, Parting, TracedTrial, Tracer, find_parting
from harness.spec.cluster import Profile


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What is known of two recorded trials."""

    a: RecordedTrial
    b: RecordedTrial
    bounds: Bounds  # by their records
    again: Parting | None  # by running them again, None where the records were enough

    @property
    def is_same(self) -> bool:
        """Return whether nothing differs, in the records and when run again."""
        if not self.bounds.comparison.is_same:
            return False
        return self.again is None or self.again.is_same


def run(
    a: RecordedTrial,
    b: RecordedTrial,
    folder: Path,
    profile: Profile,
    *,
    as_json: bool,
    plot: Path | None,
) -> bool:
    """Compare two recorded trials, print where they part, and return whether they are the same.

    They are run again, in `folder`, if their records do not name the step, and for a plot. Raises
    BadFile for damaged fingerprints, and HarnessError if a rank fails.
    """
    bounds = find_bounds(a, b)
    is_too_coarse = bounds.first_differing is not None and not bounds.is_exact
    again = None
    if plot is not None or is_too_coarse:
        again = _run_again(a, b, bounds, folder, profile, plot)
    findings = Findings(a=a, b=b, bounds=bounds, again=again)
    if as_json:
        print(json.dumps(_to_json(findings), indent=1))
    else:
        _show(findings)
    return findings.is_same


def _run_again(
    a: RecordedTrial,
    b: RecordedTrial,
    bounds: Bounds,
    folder: Path,
    profile: Profile,
    plot: Path | None,
) -> Parting:
    """Run both trials, up to the first step that is known to differ; for a plot, to their end."""
    last_step = LAST_STEP
    if plot is None and bounds.first_differing is not None:
        last_step = bounds.first_differing
    timeout = max(_timeout(a), _timeout(b))
    with TerminalConsole(stderr=True).status("") as status:
        tracer = Tracer(folder, profile, timeout, status.update)
        parting = find_parting(
            tracer, _traced(a), _traced(b), last_step=last_step, snapshots=plot is not None
        )
    if plot is not None:
        save_plot(a.record.trial, b.record.trial, parting, plot)
    return parting


def _timeout(trial: RecordedTrial) -> float:
    """Return how many seconds a trial could take when it was recorded, an hour if that is unknown."""
    return 3600.0 if trial.record.settings is None else trial.record.settings.timeout


def _traced(trial: RecordedTrial) -> TracedTrial:
    """Return a recorded trial as one to be traced, with the code and the data that are here now."""
    settings = trial.record.settings
    base_folder = Path() if settings is None else Path(settings.base_folder)
    return TracedTrial(trial=trial.record.trial, base_folder=base_folder)


def _show(findings: Findings) -> None:
    """Print what is known of two recorded trials."""
    console = TerminalConsole()
    trials = (findings.a.record.trial, findings.b.record.trial)
    print_lines(console, [*heading(*trials), *_record_lines(findings)])
    again = findings.again
    if again is None:
        return
    print_lines(console, _rerun_lines(findings, again))
    show_differences(console, again.differences)


def _record_lines(findings: Findings) -> list[str]:
    """Return what the records say, as lines."""
    bounds = findings.bounds
    compared = bounds.comparison.compared
    divergence = bounds.comparison.divergence
    lines = other_tensors_lines(
        tensors_of(bounds.comparison.other_tensors_a), tensors_of(bounds.comparison.other_tensors_b)
    )
    if divergence is None:
        extent = "of losses, evaluations and the parameters at the end"
        if bounds.fingerprinted:
            extent = (
                f"of losses, evaluations and the fingerprints of {len(bounds.fingerprinted)} steps"
            )
        return [*lines, f"same in their records: {compared} digests {extent}"]
    if bounds.is_exact:
        trials = (findings.a.record.trial, findings.b.record.trial)
        return [*lines, moment_line(*trials, divergence), f"tensors: {_tensors(divergence)}"]
    earlier = "nothing is known of the steps before"
    if bounds.equal_up_to:
        earlier = f"everything is the same up to step {bounds.equal_up_to}"
    mark = divergence.earliest.mark
    where = f"in {PARAMETERS}" if mark.name == PARAMETERS else f"at {moment(mark)}"
    return [*lines, f"by their records, they differ {where}; {earlier}"]


def _tensors(divergence: Divergence) -> str:
    """Return the names of the tensors that differ first, each once."""
    return listed(list(dict.fromkeys(entry.mark.name for entry in divergence.together)))


def _rerun_lines(findings: Findings, again: Parting) -> list[str]:
    """Return what running both again has shown, as lines."""
    lines = []
    for name, unlike in _unlike_records(findings, again).items():
        if unlike is not None:
            step, phase = unlike
            trial = findings.a if name == "A" else findings.b
            lines.append(
                f"{name} did not compute again what it has recorded, first in step {step}, {phase};"
                f" harness reproduce {trial.record.trial.id} names what is other here"
            )
    trials = (findings.a.record.trial, findings.b.record.trial)
    if again.is_same and findings.bounds.comparison.divergence is not None:
        lines.append(
            "run again, both compute the same bits: what parted them is not in their settings"
        )
        return lines
    lines += [f"run again: {line}" for line in description(*trials, again)]
    return lines


def _unlike_records(findings: Findings, again: Parting) -> dict[str, tuple[int, str] | None]:
    """Return for A and B the first fingerprint that the new run did not repeat, None for none."""
    run_a, run_b = again.overviews
    return {
        "A": unlike_record(findings.a, run_a.traces),
        "B": unlike_record(findings.b, run_b.traces),
    }


def _to_json(findings: Findings) -> dict[str, Any]:
    """Return what is known of two recorded trials as JSON can hold it."""
    trial_a, trial_b = findings.a.record.trial, findings.b.record.trial
    bounds, again = findings.bounds, findings.again
    divergence = bounds.comparison.divergence
    together = () if divergence is None else divergence.together
    recorded = {
        "compared": bounds.comparison.compared,
        "equal_up_to": bounds.equal_up_to,
        "is_exact": bounds.is_exact,
        "first": None if divergence is None else entry_to_json(divergence.earliest),
        "tensors": [entry_to_json(entry) for entry in together],
    }
    content: dict[str, Any] = {
        "a": {"trial": trial_a.id},
        "b": {"trial": trial_b.id},
        "same": findings.is_same,
        "recorded": recorded,
        "again": None,
    }
    if again is not None:
        content["again"] = to_json(trial_a, trial_b, again)
        content["unlike_record"] = _unlike_records(findings, again)
    return content
