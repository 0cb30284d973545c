"""Compares what the harness measured of a trial of `workloads.timetable` with the times that its
options plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.measure.summary import unpack
from harness.records.record import Record, Summary

TOLERANCE = 0.01  # largest relative error of a quantity that passes
# The median step of the workload's rhythm, in mean steps: four of five steps take 0.75 of one,
# every fifth takes 2.
MEDIAN_OF_RHYTHM = 0.75


@dataclass(frozen=True, kw_only=True)
class QuantityCheck:
    """One quantity of one trial."""

    ranks: int
    quantity: str  # its name, with the unit
    expected: float
    measured: float | None  # None if it was not measured at all

    @property
    def error(self) -> float | None:
        """Return the relative error, None if nothing was measured."""
        if self.measured is None:
            return None
        return self.measured / self.expected - 1

    @property
    def passed(self) -> bool:
        """Whether the quantity was measured and is within the tolerance."""
        return self.error is not None and abs(self.error) <= TOLERANCE


def check_record(record: Record) -> list[QuantityCheck]:
    """Return a check of each quantity that a finished trial of `timetable` must come back with.

    With several ranks, rank 0 is a straggler: all others wait for it in `communication`.
    """
    axes = record.trial.cell.axes
    options = record.trial.cell.workload.options
    summary = record.summary
    assert summary is not None

    def check(quantity: str, expected: float, measured: float | None) -> QuantityCheck:
        return QuantityCheck(
            ranks=axes.world_size, quantity=quantity, expected=expected, measured=measured
        )

    step_seconds = options["step_seconds"]
    checks = [
        check("throughput (samples/s)", axes.batch_size / step_seconds, summary.throughput),
        check("median step (s)", MEDIAN_OF_RHYTHM * step_seconds, summary.step_p50),
        check("measured from step", float(options["slow_steps"]), summary.window_start),
        check("data wait (share)", options["data_wait"], summary.shares.get("data_wait")),
    ]
    if axes.world_size > 1:
        communication = options["communication"]
        share_of_waiting_ranks = (axes.world_size - 1) / axes.world_size
        checks += [
            check(
                "communication (share)",
                communication * share_of_waiting_ranks,
                waiting_share(record),
            ),
            check("straggler's lead (share)", communication, straggler_lead(summary)),
        ]
    return checks


def waiting_share(record: Record) -> float | None:
    """Return the share of the window that ranks wait for the straggler; None if it was not
    measured.

    The straggler's own communication is the sending itself, which all ranks share and which nothing
    plans: it is subtracted.
    """
    summary = record.summary
    if summary is None or "communication" not in summary.shares:
        return None
    straggler = record.ranks[0]
    window = slice(-summary.window_steps, None)
    communication = unpack(straggler.step_phases["communication"])[window].sum()
    total = unpack(straggler.step_seconds)[window].sum()
    return summary.shares["communication"] - float(communication / total)


def straggler_lead(summary: Summary) -> float | None:
    """Return the skew between ranks if rank 0, which is the straggler, is named as its cause."""
    if summary.slowest is None or summary.slowest.rank != 0:
        return None
    return summary.slowest.skew
