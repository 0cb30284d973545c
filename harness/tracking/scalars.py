"""The single numbers of a trial, under the names that MLflow shows them by."""

from __future__ import annotations

import re

from harness.measure.memory import training_bytes
from harness.records.record import Record
from harness.tracking.efficiency import efficiency
from harness.tracking.telemetry import telemetry_scalars


def scalars(record: Record) -> dict[str, float]:
    """The single numbers of a trial; what was not measured is absent."""
    found: dict[str, float | None] = {}
    if (summary := record.summary) and record.rank0:
        target = metric_name(record.rank0.target.name)
        found = {
            "throughput_samples_per_s": summary.throughput,
            "step_time_p50_ms": _milli(summary.step_p50),
            "step_time_p90_ms": _milli(summary.step_p90),
            "step_time_p99_ms": _milli(summary.step_p99),
            "steady_from_step": summary.window_start,
            "skew": summary.slowest.skew if summary.slowest else None,
            "final_loss": summary.final_loss,
            f"final_{target}": summary.final_metric,
            f"best_{target}": summary.best_metric,
            **{f"{phase}_share": share for phase, share in summary.shares.items()},
        }
    found |= _interrupted(record)
    found |= {f"phase_{name}_s": seconds for name, seconds in record.phases.items()}
    found |= _compiled(record) | _loss_scale(record) | efficiency(record)
    found |= telemetry_scalars(record.ranks, record.trial.cell.axes.batch_size)
    for rank in record.ranks:
        for name, size in {**rank.memory, "training": training_bytes(rank.memory)}.items():
            key = f"memory_{name}_mib"
            if size is not None:
                found[key] = max(found.get(key) or 0.0, size / 2**20)
    return {metric_name(key): float(value) for key, value in found.items() if value is not None}


def _interrupted(record: Record) -> dict[str, float | None]:
    """How often the trial was taken up again and the seconds that it lost thereby; all ranks stop at the same step."""
    taken_up = record.ranks[0].interruptions if record.ranks else ()
    lost = {
        "harness.interruptions": len(taken_up),
        "harness.interruptions_lost_s": sum(one.lost_seconds for one in taken_up),
    }
    return {**lost} if taken_up else {}


def _compiled(record: Record) -> dict[str, float | None]:
    """Of the rank that had most."""
    found = [rank.compiled for rank in record.ranks if rank.compiled]
    if not found:
        return {}
    return {
        "compile_graphs": max(one.graphs for one in found),
        "compile_graph_breaks": max(sum(one.graph_breaks.values()) for one in found),
        "compile_recompiles": max(one.recompiles for one in found),
        "compile_cache_hits": max(one.cache_hits for one in found),
    }


def _loss_scale(record: Record) -> dict[str, float | None]:
    found = [rank.loss_scale for rank in record.ranks if rank.loss_scale]
    return (
        {"loss_scale": found[0].scale, "loss_scale_skipped_steps": found[0].skipped_steps}
        if found
        else {}
    )


def metric_name(name: str) -> str:
    """`name` with what MLflow does not take in the name of a metric replaced."""
    return re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
