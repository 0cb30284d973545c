"""Collects the files that go with a trial's run in MLflow, without secrets and of bounded size, and
what it shows of exported models.

They are written into a temporary folder, which is then uploaded as a whole: secrets have to be
removed from texts on the way, and the files of the trial stay as they are.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from harness.analysis.classes import ClassScore, Mistake, class_scores, mistakes
from harness.core.logs import open_log, read_tail
from harness.core.paths import TrialFolder
from harness.records.files import copy_record
from harness.records.record import Record
from harness.records.seal import clean_text
from harness.render.serving import latency_table
from harness.render.trial_table import as_csv
from harness.serving.record import TrialExport
from harness.serving.summary import summarize_groups

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
    _collect_classes(record, target, clean)
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


def _collect_classes(record: Record, target: Path, clean: Callable[[str], str]) -> None:
    """Write a classifier's scores by class and its mistakes as CSV, which MLflow shows as tables.

    A record lists a bounded number of mistakes, the most frequent.
    """
    confusions = None if record.rank0 is None else record.rank0.confusions
    if confusions is None:
        return
    folder = target / "classes"
    folder.mkdir()
    scores = [asdict(score) for score in class_scores(confusions)]
    (folder / "scores.csv").write_text(clean(_as_csv(ClassScore, scores)), encoding="utf-8")
    rows = [asdict(mistake) for mistake in mistakes(confusions)]
    (folder / "mistakes.csv").write_text(clean(_as_csv(Mistake, rows)), encoding="utf-8")


def _as_csv(kind: type[ClassScore | Mistake], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a column for each field of their kind; what is None is empty."""
    text = io.StringIO()
    columns = [column.name for column in fields(kind)]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


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
    """Return the metrics of exported models, and the latencies of all ways to run the model.

    Names end with the batch size, the number of threads and the unit: `export_onnx_b8_t1_p95_ms`.
    """
    metrics: dict[str, float] = {}
    for model in export.models:
        name = f"export_{model.format}"
        metrics[f"{name}_bytes"] = model.bytes
        if model.parity.largest_difference is not None:
            metrics[f"{name}_largest_difference"] = model.parity.largest_difference
        if export.target in model.parity.exported_metrics:
            metrics[f"{name}_{export.target}"] = model.parity.exported_metrics[export.target]
    for latency in summarize_groups(export.latency):
        name = f"export_{latency.arm}_b{latency.batch_size}_t{latency.threads}"
        for quantile_name, quantile in latency.quantiles.items():
            metrics[f"{name}_{quantile_name}_ms"] = quantile.value * 1e3
        if latency.speedup is not None:
            metrics[f"{name}_speedup"] = latency.speedup.value
    return metrics


def collect_export(
    export: TrialExport, trial_folder: TrialFolder, target: Path, clean: Callable[[str], str]
) -> None:
    """Write the files of a trial's exports into the folder `target`, without secrets.

    They are the parity and the latencies, the latter as a table too, and the models. A model that
    is too large is replaced by a note that says where it is.
    """
    record = trial_folder.export_path
    text = clean_text(record.read_text(encoding="utf-8"), clean)
    (target / record.name).write_text(text, encoding="utf-8")
    table = as_csv(latency_table([export]))
    (target / "latency.csv").write_text(clean(table), encoding="utf-8")
    for model in export.models:
        folder = trial_folder.exported_model(model.format)
        if model.bytes > MODEL_BYTES:
            note = f"{model.bytes} bytes, more than the {MODEL_BYTES} that are uploaded; see {folder}\n"
            (target / f"{model.format}.left-out.txt").write_text(clean(note), encoding="utf-8")
            continue
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in files:
            copy = target / model.format / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix in TEXT_FILES:
                copy.write_text(clean(path.read_text(encoding="utf-8")), encoding="utf-8")
            else:
                shutil.copyfile(path, copy)
