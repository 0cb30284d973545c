"""Measures what delivering a trial to MLflow costs, beside as many trials as were recorded before.

Trials are delivered one at a time, as `harness run` delivers those that take longer than a second, and
20 at once, as it delivers short ones. The last trial brings the verdicts.

python -m tests.perf.tracking [RECORDED]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from harness.core.paths import Results
from harness.records.record import Record
from harness.tracking import Tracker
from tests.factories import make_cell, make_record, write_sweep, write_trial

CELLS, STEPS = 100, 20
SINGLE, BATCH = 10, 20  # trials that are delivered one by one, and then at once


def main() -> None:
    recorded = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    records = make_records(recorded + 1 + SINGLE + BATCH + 1)
    done, later = records[: recorded + 1], records[recorded + 1 :]
    with tempfile.TemporaryDirectory() as aside:
        results = Results(Path(aside))
        folder = results.sweep_folder("demo")
        write_sweep(folder, done, planned=[record.trial for record in later])
        tracker = Tracker(results)
        deliver = partial(tracker.deliver, folder)
        show("the first, with a new database", [measure(partial(deliver, done[-1:]))])
        single = []
        for record in later[:SINGLE]:
            write_trial(folder, record)
            single.append(measure(partial(deliver, [record])))
        show(f"each of {SINGLE} more (median)", single)
        batch = later[SINGLE:-1]
        for record in batch:
            write_trial(folder, record)
        wall, cpu = measure(partial(deliver, batch))
        show(f"each of {BATCH} at once", [(wall / BATCH, cpu / BATCH)])
        write_trial(folder, later[-1])
        show("the last and all before it, with verdicts", [measure(deliver)])
        show("all again: nothing is written", [measure(deliver)])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(records):,} trials of {CELLS} cells; at most {peak:,.0f} MiB")


def make_records(count: int) -> list[Record]:
    """Return records of trials that follow each other, a seed of each cell after the other."""
    templates: list[Record] = []
    for number in range(CELLS):
        templates.append(make_record(make_cell(batch_size=8 * (number + 1), steps=STEPS)))
    records = []
    for number in range(count):
        template = templates[number % CELLS]
        trial = replace(template.trial, seed=number // CELLS)
        records.append(replace(template, trial=trial, started=template.started + number))
    return records


def measure(action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of wall time and of this process's CPU time that an action takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def show(title: str, spent: Sequence[tuple[float, float]]) -> None:
    wall, cpu = (1000 * median(column) for column in zip(*spent, strict=True))
    print(f"{title:45}{wall:10,.1f} ms wall{cpu:10,.1f} ms CPU")


if __name__ == "__main__":
    main()
