"""Runs the self-test: trials whose every phase takes a planned time, until they are measured as
planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.launch import sweep as sweeps
from harness.launch.runner import TrialListener
from harness.measure.selftest import check_record
from harness.records.record import Record
from harness.records.store import write_spec
from harness.spec import sweep as spec
from harness.spec.cluster import Profile

# Another program may disturb some attempts; a wrong measurement is wrong in each of them.
MAX_ATTEMPTS = 5


def run(
    results: Results,
    profile: Profile,
    ranks: Sequence[int],
    listener: TrialListener,
    *,
    wait: bool = True,
) -> list[Record]:
    """Run the ready sweep `selftest` at these world sizes and return a record of each.

    A trial that was not measured as planned runs again, `MAX_ATTEMPTS` times in all; the record is
    that of its last attempt. Nothing that earlier runs left is reused. Ranks sleep, so more of them
    than the machine has slots do no harm. Raises BadInput for a number of ranks that the sweep does
    not allow, and without `wait` if another command measures on this machine.
    """
    numbers = ",".join(str(number) for number in ranks)
    sweep = spec.load_sweep(spec.ready_sweeps()["selftest"], [f"world_size={numbers}"])
    if len(sweep.cells) != len(ranks):
        batch_size = sweep.cells[0].axes.batch_size
        raise BadInput(
            f"--ranks: found {numbers}; allowed: divisors of the batch size, {batch_size}, each once"
        )
    profile = replace(profile, slots=max(ranks))
    folder = results.sweep_folder(sweep.name)
    records: dict[str, Record] = {}  # by the id of the cell
    pending = sweep.cells
    for _ in range(MAX_ATTEMPTS):
        attempted = replace(sweep, cells=pending)
        for record in sweeps.run(
            attempted, profile, folder, listener, redo="all", fail_fast=False, wait=wait
        ):
            records[record.trial.cell.id] = record
        wrong = []  # cells whose trial finished and was not measured as planned
        for cell in pending:
            last_record = records.get(cell.id)
            if last_record is None or last_record.status != "done":
                continue
            if any(not check.passed for check in check_record(last_record)):
                wrong.append(cell)
        pending = wrong
        if not pending:
            break
    write_spec(sweep, folder)  # of all cells, whichever were attempted last
    return [records[cell.id] for cell in sweep.cells if cell.id in records]
