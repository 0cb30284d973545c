"""Collects the files that go with a trial's run in MLflow, without secrets and of bounded size, and
what it shows of exported models.

They are written into a temporary folder, which is then uploaded as a whole: secrets have to be
removed from texts on the way, and the files of the trial stay as they are.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from harness.core.logs import open_log, read_tail
from harness.core.paths import TrialFolder
from harness.records.files import copy_record
from harness.records.record import Record
from harness.serving.record import TrialExport

LOG_BYTES = 2**20  # at most, of the end of each log
# Of a trial with more logs, most are in an archive, because MLflow takes files one by one.
MOST_LOGS = 65
ARCHIVE = "ranks.zip"
TRACE_BYTES = 2**26  # at most, of each of a profiler's traces
MODEL_BYTES = 2**28  # at most, of the files of a model that is uploaded
TEXT_FILES = (".json", ".txt")
RECORD_FILE = "record.json"
ENVIRONMENT_FILE = "environment.json"


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


def collect_files(
    record: Record, trial_folder: TrialFolder, target: Path, clean: Callable[[str], str]
) -> None:
    """Write the files that go with a trial's run into the folder `target`.

    They are the record (`recall` reads it back), the environment, the end of each log, tables of the
    classes, the log in MLPerf's format, and what the profiler left. `clean` removes secrets from a
    text. A trial that failed early lacks some of them.
    """
    copy_record(trial_folder.record_path, target, clean)
    if record.environment:
        text = json.dumps(asdict(record.environment), indent=1) + "\n"
        (target / ENVIRONMENT_FILE).write_text(clean(text), encoding="utf-8")
    _collect_logs(record, trial_folder, target, clean)
    _collect_profile(trial_folder, target, clean)


def _collect_logs(
    record: Record, trial_folder: TrialFolder, target: Path, clean: Callable[[str], str]
) -> None:
    """Write the end of each log.

    Of many ranks, that is the launcher's, rank 0's, and that of the rank that failed; all of them are
    in an archive, of as many bytes together as the most logs outside of one.
    """
    logs = sorted(trial_folder.log_folder.glob("*.log"))
    if not logs:
        return
    folder = target / "logs"
    folder.mkdir()
    shown = logs
    if len(logs) > MOST_LOGS:
        of_failure = record.failure.log if record.failure else None
        names = {trial_folder.launch_log.name, trial_folder.rank_log(0).name}
        names.add(Path(of_failure or "").name)
        shown = [log for log in logs if log.name in names]
        limit = MOST_LOGS * LOG_BYTES // len(logs)
        with ZipFile(folder / ARCHIVE, "w", ZIP_DEFLATED) as archive:
            for log in logs:
                archive.writestr(log.name, clean(tail_of(log, limit)))
    for log in shown:
        (folder / log.name).write_text(clean(tail_of(log)), encoding="utf-8")


def _collect_profile(trial_folder: TrialFolder, target: Path, clean: Callable[[str], str]) -> None:
    """Copy a profiler's tables and traces, which only trials with `--profile` have.

    A trace that is too large is replaced by a note that says where it is.
    """
    for path in sorted(trial_folder.trace_folder.glob("rank*")):
        destination = target / trial_folder.trace_folder.name / path.name
        destination.parent.mkdir(exist_ok=True)
        left_out = destination.with_name(f"{path.name}.left-out.txt")
        try:
            file = open_log(path)
        except OSError as error:
            left_out.write_text(f"{path.name} {error.strerror}\n", encoding="utf-8")
            continue
        with file:
            size = os.fstat(file.fileno()).st_size
            if size > TRACE_BYTES:
                left_out.write_text(
                    f"{path.name} has {size} bytes, more than the {TRACE_BYTES} that are uploaded;"
                    f" it is in {trial_folder.path.name}/{trial_folder.trace_folder.name}\n",
                    encoding="utf-8",
                )
            elif path.suffix == ".txt":
                text = file.read().decode("utf-8", errors="replace")
                destination.write_text(clean(text), encoding="utf-8")
            else:
                with destination.open("wb") as copy:
                    shutil.copyfileobj(file, copy)


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
    """Copy the files of a trial's exports into the folder `target`, as they are.

    A model that is too large is replaced by a note that says where it is.
    """
    shutil.copyfile(trial_folder.export_path, target / trial_folder.export_path.name)
    for model in export.models:
        folder = trial_folder.exported_model(model.format)
        if model.bytes > MODEL_BYTES:
            note = f"{model.bytes} bytes, more than the {MODEL_BYTES} that are uploaded; see {folder}\n"
            (target / f"{model.format}.left-out.txt").write_text(note, encoding="utf-8")
            continue
        shutil.copytree(folder, target / model.format)
