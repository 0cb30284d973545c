"""Shows `harness diff` of recorded trials: by their records, and by running them again if need be."""

from __future__ import annotations

import json
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
    show_differences,
    to_json,
)
from harness.reproduce.divergence import tensors_of
from harness.reproduce.recorded import PARAMETERS, RecordedDiff, unlike_record
from harness.reproduce.tracing import TraceDiff


def show_recorded_diff(diff: RecordedDiff, *, as_json: bool) -> None:
    """Print where two recorded trials part."""
    if as_json:
        print(json.dumps(_to_json(diff), indent=1))
    else:
        _show(diff)


def _show(diff: RecordedDiff) -> None:
    """Print what is known of two recorded trials."""
    console = TerminalConsole()
    trials = (diff.a.record.trial, diff.b.record.trial)
    print_lines(console, [*heading(*trials), *_record_lines(diff)])
    again = diff.again
    if again is None:
        return
    print_lines(console, _rerun_lines(diff, again))
    show_differences(console, again.differences)


def _record_lines(diff: RecordedDiff) -> list[str]:
    """Return what the records say, as lines."""
    bounds = diff.bounds
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
        trials = (diff.a.record.trial, diff.b.record.trial)
        names = list(dict.fromkeys(entry.mark.name for entry in divergence.together))
        return [*lines, moment_line(*trials, divergence), f"tensors: {listed(names)}"]
    earlier = "nothing is known of the steps before"
    if bounds.equal_up_to:
        earlier = f"everything is the same up to step {bounds.equal_up_to}"
    mark = divergence.earliest.mark
    where = f"in {PARAMETERS}" if mark.name == PARAMETERS else f"at {moment(mark)}"
    return [*lines, f"by their records, they differ {where}; {earlier}"]


def _rerun_lines(diff: RecordedDiff, again: TraceDiff) -> list[str]:
    """Return what running both again has shown, as lines."""
    lines = []
    for name, unlike in _unlike_records(diff, again).items():
        if unlike is not None:
            step, phase = unlike
            trial = diff.a if name == "A" else diff.b
            lines.append(
                f"{name} did not compute again what it has recorded, first in step {step}, {phase};"
                f" harness reproduce {trial.record.trial.id} names what is other here"
            )
    trials = (diff.a.record.trial, diff.b.record.trial)
    if again.is_same and diff.bounds.comparison.divergence is not None:
        lines.append(
            "run again, both compute the same bits: what parted them is not in their settings"
        )
        return lines
    lines += [f"run again: {line}" for line in description(*trials, again)]
    return lines


def _unlike_records(diff: RecordedDiff, again: TraceDiff) -> dict[str, tuple[int, str] | None]:
    """Return for A and B the first fingerprint that the new run did not repeat, None for none."""
    run_a, run_b = again.overviews
    return {
        "A": unlike_record(diff.a, run_a.traces),
        "B": unlike_record(diff.b, run_b.traces),
    }


def _to_json(diff: RecordedDiff) -> dict[str, Any]:
    """Return what is known of two recorded trials as JSON can hold it."""
    trial_a, trial_b = diff.a.record.trial, diff.b.record.trial
    bounds, again = diff.bounds, diff.again
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
        "same": diff.is_same,
        "recorded": recorded,
        "again": None,
    }
    if again is not None:
        content["again"] = to_json(trial_a, trial_b, again)
        content["unlike_record"] = _unlike_records(diff, again)
    return content
