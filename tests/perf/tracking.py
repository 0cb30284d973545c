"""Measures what delivering a trial to MLflow costs.

Trials are delivered one at a time, as `harness run` does it; the last one brings the verdicts.

python -m tests.perf.tracking
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

from harness.core.paths import Results
from harness.tracking import Tracker
from tests.factories import make_cell, make_record, write_sweep, write_trial

CELLS, SEEDS, STEPS = 8, 3, 1000  # as many points as MLflow gets of a loss curve


def main() -> None:
    cells = [make_cell(batch_size=8 * (number + 1), steps=STEPS) for number in range(CELLS)]
    records = [make_record(cell, seed=seed) for seed, cell in product(range(SEEDS), cells)]
    with tempfile.TemporaryDirectory() as aside:
        results = Results(Path(aside))
        folder = results.sweep_folder("demo")
        write_sweep(folder, records[:1], planned=[record.trial for record in records[1:]])
        tracker = Tracker(results)
        show(
            "the first, with a new database",
            [measure(lambda: tracker.deliver(folder, records[:1]))],
        )
        spent = []
        for record in records[1:]:
            write_trial(folder, record)
            spent.append(measure(partial(tracker.deliver, folder, [record])))
        show(f"each of {len(spent) - 1} more (median)", spent[:-1])
        show(f"the last, with verdicts on {CELLS} cells", spent[-1:])
        show("all again: nothing is written", [measure(lambda: tracker.deliver(folder))])


def measure(action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of wall time and of this process's CPU time that an action takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def show(title: str, spent: list[tuple[float, float]]) -> None:
    wall, cpu = (1000 * median(column) for column in zip(*spent, strict=True))
    print(f"{title:40}{wall:9,.1f} ms wall{cpu:9,.1f} ms CPU")


if __name__ == "__main__":
    main()
