"""What a trial's run in MLflow shows of its exports: metrics, and the files that go with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from harness.core.paths import TrialFolder
from harness.records.seal import clean_text
from harness.render.serving import latency_table
from harness.render.trial_table import as_csv
from harness.serving.record import TrialExport
from harness.serving.summary import summarize_groups

MODEL_BYTES = 2**28  # at most, of the files of a model that is uploaded
TEXT_FILES = (".json", ".txt")


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
        if model.bytes <= MODEL_BYTES:
            _copy_model(folder, target / model.format, clean)
        else:
            note = f"{model.bytes} bytes, more than the {MODEL_BYTES} that are uploaded; see {folder}\n"
            (target / f"{model.format}.left-out.txt").write_text(clean(note), encoding="utf-8")


def _copy_model(folder: Path, target: Path, clean: Callable[[str], str]) -> None:
    """Copy the files of a model; secrets are removed from texts."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        copy = target / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in TEXT_FILES:
            copy.write_text(clean(path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(path, copy)
