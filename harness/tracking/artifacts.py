"""Collects the files that go with a trial's run in MLflow, of bounded size.

They are written into a temporary folder, which is then uploaded as a whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from harness.core.logs import open_log, read_tail
from harness.core.paths import TrialFolder
from harness.records.files import copy_record
from harness.records.record import Record
from harness.serving.record import TrialExport

LOG_BYTES = 2**20  # at most, of the end of each log
FILE_BYTES = 2**28  # at most, of each of a profiler's traces and of an exported model's files
RECORD_FILE = "record.json"


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Yield `folder`, new and empty, and remove it when the block ends.

    A system's own temporary folder would be left behind by a process that is killed. This one is
    removed by the next delivery.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def collect_files(record: Record, trial_folder: TrialFolder, target: Path) -> None:
    """Write the files that go with a trial's run into the folder `target`.

    They are the record, the environment, the end of the launcher's log, of
    rank 0's and of that of the rank that failed, and what the profiler left.
    """
    copy_record(trial_folder.record_path, target)
    if record.environment:
        text = json.dumps(asdict(record.environment), indent=1) + "\n"
        (target / "environment.json").write_text(text, encoding="utf-8")
    logs = {trial_folder.launch_log, trial_folder.rank_log(0)}
    if record.failure and record.failure.log:
        logs.add(trial_folder.path / record.failure.log)
    folder = target / "logs"
    folder.mkdir()
    for log in filter(Path.exists, logs):
        (folder / log.name).write_text(tail_of(log, LOG_BYTES), encoding="utf-8")
    traces = trial_folder.trace_folder
    for trace in sorted(traces.glob("rank*")):
        _copy(trace, target / traces.name / trace.name)


def export_metrics(export: TrialExport) -> dict[str, float]:
    """Return the metrics and latencies of exported models.

    Names of latencies end with the batch size and the unit: `export_onnx_b8_p95_ms`.
    """
    metrics: dict[str, float] = {}
    for model in export.models:
        name = f"export_{model.format}"
        if model.parity.largest_difference is not None:
            metrics[f"{name}_largest_difference"] = model.parity.largest_difference
        if export.target in model.parity.exported_metrics:
            metrics[f"{name}_{export.target}"] = model.parity.exported_metrics[export.target]
        for latency in model.latencies:
            metrics[f"{name}_b{latency.batch_size}_p50_ms"] = latency.p50_ms
            metrics[f"{name}_b{latency.batch_size}_p95_ms"] = latency.p95_ms
    return metrics


def collect_export(export: TrialExport, trial_folder: TrialFolder, target: Path) -> None:
    """Write what was exported of a trial's model into the folder `target`, as it is."""
    shutil.copyfile(trial_folder.export_path, target / trial_folder.export_path.name)
    for model in export.models:
        folder = trial_folder.exported_model(model.format)
        for path in filter(Path.is_file, sorted(folder.rglob("*"))):
            _copy(path, target / model.format / path.relative_to(folder))


def _copy(path: Path, destination: Path) -> None:
    """Copy a file, or leave a note instead that says where one is that can't be or is too large."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    left_out = destination.with_name(f"{path.name}.left-out.txt")
    try:
        with open_log(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > FILE_BYTES:
                left_out.write_text(
                    f"{size} bytes are not uploaded; see {path}\n", encoding="utf-8"
                )
                return
            with destination.open("wb") as copy:
                shutil.copyfileobj(file, copy)
    except OSError as error:
        left_out.write_text(f"{path.name} {error.strerror}\n", encoding="utf-8")


def tail_of(log: Path, limit: int = LOG_BYTES) -> str:
    """Return the last `limit` bytes of a log, from the beginning of a line.

    A log that is cut begins with a line that says so. Of one that leads out of the trial's folder
    there is only a line that says that. Bytes that are no UTF-8 are replaced.
    """
    try:
        with open_log(log) as file:
            size = os.fstat(file.fileno()).st_size
            text = read_tail(file, limit)
    except OSError as error:
        return f"[left out: {error.strerror}]\n"
    if size <= limit:
        return text
    whole_lines = text.partition("\n")[2]
    return f"[the last {limit} of {size} bytes]\n{whole_lines}"
