"""Traces two trials, and finds the first step and tensor at which they diverge.

The first run of each trial records one mark a moment, for all steps. The second run goes up to the
first step that differs, and records a mark for each tensor and the tensors. So two runs of each
trial are enough for any number of steps. If one has tensors that the other lacks, such as one of
another name, two more runs leave these out, so that all other tensors are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core.progress import report_progress
from harness.core.scratch import run_folder
from harness.launch.tasks import run_task
from harness.records.trace import Mark, Recording, read_traces, values_path, write_recording
from harness.reproduce.divergence import TraceComparison, Traces, compare, tensors_of
from harness.reproduce.values import TensorDifference, difference
from harness.sweep.cell import Cell, Trial
from harness.sweep.cluster import Profile

LAST_STEP = 1 << 30  # more steps than a trial has


@dataclass(frozen=True, kw_only=True)
class TracedTrial:
    """A trial to trace, with the folder of its code and data."""

    trial: Trial
    base_folder: Path  # that the paths of its workload are relative to


@dataclass(frozen=True, kw_only=True)
class TracedRun:
    """A traced run of a cell."""

    trial: Trial
    folder: Path
    traces: Traces

    @property
    def cell(self) -> Cell:
        """Return the trial's cell."""
        return self.trial.cell


@dataclass(frozen=True, kw_only=True)
class TraceDiff:
    """Where two traced trials diverge."""

    steps: TraceComparison  # of all steps, with one mark a moment
    tensors: TraceComparison | None = None  # of the first step that differs, with a mark a tensor
    differences: tuple[TensorDifference, ...] = ()  # of the tensors that differ first
    # Tensors that only one of them has, named as in `Mark.tensor`.
    only_a: Sequence[str]
    only_b: Sequence[str]
    # The first of these that is a gradient, of a parameter that both have.
    first_unmatched: Mark | None = None

    @property
    def is_same(self) -> bool:
        """Return whether both have the same tensors, with the same bits."""
        return self.steps.is_same and not self.only_a and not self.only_b


class Tracer:
    """Runs trials on this machine, one after the other, and reads their traces."""

    def __init__(self, folder: Path, profile: Profile, timeout: float) -> None:
        """Work in `folder`; a trial may take `timeout` seconds."""
        self._folder = folder
        self._profile = profile
        self._timeout = timeout

    def trace(self, name: str, traced: TracedTrial, recording: Recording) -> TracedRun:
        """Run a trial; return its run with the traces of its ranks.

        Raises HarnessError with a rank's own message if one fails; the log that it names stays.
        """
        report_progress(f"tracing {name}: {traced.trial.cell.label}")
        cell = traced.trial.cell
        folder = run_task(
            "trace",
            traced.trial,
            traced.base_folder,
            self._profile,
            self._timeout,
            self._folder,
            lambda folder: write_recording(folder.path, recording),
        )
        traces = read_traces(folder.path, cell.axes.world_size)
        return TracedRun(trial=traced.trial, folder=folder.path, traces=traces)


def diff_trials(
    a: TracedTrial,
    b: TracedTrial,
    profile: Profile,
    timeout: float,
) -> TraceDiff:
    """Run two trials on this machine, and return where they diverge.

    A trial may take `timeout` seconds. Raises HarnessError if a rank fails; the log that it names stays.
    """
    with run_folder("diff") as folder:
        tracer = Tracer(folder, profile, timeout)
        return diff_traced(tracer, a, b)


def diff_traced(tracer: Tracer, a: TracedTrial, b: TracedTrial) -> TraceDiff:
    """Trace two trials, and return where they diverge; raises HarnessError if a rank fails."""
    overview = Recording(last_step=LAST_STEP, all_steps=True, tensors=False)
    _, steps = _trace_both(tracer, a, b, overview)
    only_a: Sequence[str] = ()
    only_b: Sequence[str] = ()
    first_unmatched: Mark | None = None
    unmatched = [*steps.other_tensors_a, *steps.other_tensors_b]
    if unmatched:
        first_step = min(mark.step for mark in unmatched)
        by_name = Recording(last_step=first_step)
        _, named = _trace_both(tracer, a, b, by_name)
        only_a = tensors_of(named.other_tensors_a)
        only_b = tensors_of(named.other_tensors_b)
        lone = _lone_gradients([*named.other_tensors_a, *named.other_tensors_b])
        first_unmatched = min(lone, key=lambda mark: mark.moment, default=None)
        common = replace(overview, left_out=[*only_a, *only_b])
        _, steps = _trace_both(tracer, a, b, common)
    diff = TraceDiff(
        steps=steps,
        only_a=only_a,
        only_b=only_b,
        first_unmatched=first_unmatched,
    )
    if steps.divergence is None:
        return diff
    first_differing = steps.divergence.earliest.mark.step
    detail = Recording(last_step=first_differing, values=True)
    (run_a, run_b), tensors = _trace_both(tracer, a, b, detail)
    differences = []
    if tensors.divergence is not None:
        for entry in tensors.divergence.together:
            path_a = values_path(run_a.folder, entry.rank)
            path_b = values_path(run_b.folder, entry.rank)
            differences.append(difference(path_a, path_b, entry))
    return replace(diff, tensors=tensors, differences=tuple(differences))


def _lone_gradients(marks: Sequence[Mark]) -> list[Mark]:
    """Return the marks of gradients that only one trial has, of parameters that both have."""
    renamed = {mark.name for mark in marks if mark.phase == "parameters"}
    gradients = [mark for mark in marks if mark.phase in ("backward", "all-reduce")]
    return [mark for mark in gradients if mark.name not in renamed]


def _trace_both(
    tracer: Tracer, a: TracedTrial, b: TracedTrial, recording: Recording
) -> tuple[tuple[TracedRun, TracedRun], TraceComparison]:
    """Run two trials, and return their runs and the comparison of these."""
    run_a = tracer.trace("a", a, recording)
    run_b = tracer.trace("b", b, recording)
    return (run_a, run_b), compare(run_a.traces, run_b.traces)
