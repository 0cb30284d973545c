"""The harness held against the truth: trials whose every phase takes a known time must be measured as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.launch import sweep
from harness.launch.runner import TrialListener
from harness.measure.summary import unpack
from harness.records.record import Record, Summary
from harness.spec import sweep as spec
from harness.spec.cluster import Profile

TOLERANCE = 0.01  # of the truth
TRIES = 5  # another program may disturb some; a wrong measurement is wrong in each


@dataclass(frozen=True, kw_only=True)
class Check:
    """One quantity of one trial."""

    ranks: int
    quantity: str
    expected: float
    measured: float | None  # None: not measured at all

    @property
    def error(self) -> float | None:
        """Relative to the truth."""
        return None if self.measured is None else self.measured / self.expected - 1

    @property
    def passed(self) -> bool:
        return self.error is not None and abs(self.error) <= TOLERANCE


def run(
    results: Results, profile: Profile, ranks: Sequence[int], listener: TrialListener
) -> list[Record]:
    """Trials of the workload `timetable` at these world sizes, anew each time: the first try of each at which all came
    back, or the last. Its ranks sleep, so that more of them than the machine has slots do no harm. Raises BadInput for
    a number of ranks that the sweep does not allow."""
    asked = spec.load_sweep(
        spec.ready_sweeps()["selftest"], [f"world_size={','.join(map(str, ranks))}"]
    )
    if len(asked.cells) != len(ranks):
        raise BadInput(
            f"--ranks: found {','.join(map(str, ranks))}; allowed: numbers of ranks, each once"
        )
    shared, folder = replace(profile, slots=max(ranks)), results.sweep_folder(asked.name)
    found: dict[str, Record] = {}
    pending = asked.cells
    for _ in range(TRIES):
        tried = replace(asked, cells=pending)
        records = sweep.run(tried, shared, folder, listener, redo="all", fail_fast=False)
        found |= {record.trial.cell.id: record for record in records}
        off = {
            one.trial.cell.id
            for one in records
            if one.status == "done" and not all(c.passed for c in check(one))
        }
        pending = [cell for cell in pending if cell.id in off]
        if not pending:
            break
    sweep.write_spec(asked, folder)  # of all, whichever were tried again
    return [found[cell.id] for cell in asked.cells if cell.id in found]


def check(record: Record) -> list[Check]:
    """What a done trial of `timetable` measured, beside the truth that its options tell."""
    options, axes, summary = (
        record.trial.cell.workload.options,
        record.trial.cell.axes,
        record.summary,
    )
    assert summary is not None
    waiting = (
        axes.world_size - 1
    ) / axes.world_size  # the share of ranks that wait for the straggler
    truth = {
        "throughput (samples/s)": (axes.batch_size / options["step_seconds"], summary.throughput),
        "median step (s)": (0.75 * options["step_seconds"], summary.step_p50),
        "measured from step": (float(options["slow_steps"]), summary.window_start),
        "data wait (share)": (options["data_wait"], summary.shares.get("data_wait")),
    }
    if axes.world_size > 1:
        truth |= {
            "communication (share)": (options["communication"] * waiting, _waiting(record)),
            "straggler's lead (share)": (options["communication"], _lead(summary)),
        }
    return [
        Check(ranks=axes.world_size, quantity=quantity, expected=expected, measured=measured)
        for quantity, (expected, measured) in truth.items()
    ]


def _waiting(record: Record) -> float | None:
    """The share of communication beyond the straggler's own, which is for sending, while the others wait for it too."""
    summary, straggler = record.summary, record.ranks[0]
    if summary is None or "communication" not in summary.shares:
        return None
    window = slice(-summary.window_steps, None)
    sending = (
        unpack(straggler.step_phases["communication"])[window].sum()
        / unpack(straggler.step_seconds)[window].sum()
    )
    return summary.shares["communication"] - float(sending)


def _lead(summary: Summary) -> float | None:
    """The skew, if it is put down to rank 0, which is the straggler."""
    return summary.slowest.skew if summary.slowest and summary.slowest.rank == 0 else None
