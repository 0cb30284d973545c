"""What MLflow is to show of a sweep, as plain data: names, params, tags and metrics, made from records alone."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.cell import Cell
from harness.environment import CREDENTIALS_IN_URL, REDACTED
from harness.measure.memory import training_bytes
from harness.record import Record, Status
from harness.tracking.efficiency import efficiency
from harness.tracking.telemetry import telemetry_scalars

LAYOUT = 2  # counts the ways that runs have been laid out; a new one has every trial delivered again
CURVE = 1000  # points of a loss curve in MLflow; the record keeps all
STATUS: Mapping[Status, str] = {"done": "FINISHED", "invalid": "KILLED", "failed": "FAILED"}  # MLflow's words for ours
VALUE = 5000  # characters of a tag or a param that every MLflow server takes
HEADLINES = ("throughput_samples_per_s", "final_")  # of these a cell shows the smallest and the largest too


@dataclass(frozen=True)
class Point:
    """One value of a metric."""

    key: str
    value: float
    at: int  # milliseconds since the epoch
    step: int


@dataclass(frozen=True, kw_only=True)
class Contents:
    """One MLflow run."""

    name: str
    kind: str  # sweep, cell or trial
    key: str  # tells it from all others of its kind in the sweep
    started: int  # milliseconds since the epoch
    ended: int
    status: str  # MLflow's: RUNNING, FINISHED, KILLED or FAILED
    tags: Mapping[str, str]
    params: Mapping[str, str]
    points: Sequence[Point]


@dataclass(frozen=True, kw_only=True)
class Outline:
    """As much of a trial's record as its cell and its sweep show."""

    sweep: str
    trial: str
    cell: Cell
    cell_id: str
    digest: str
    status: Status
    started: float  # seconds since the epoch
    ended: float
    scalars: Mapping[str, float]

    @staticmethod
    def of(record: Record, digest: str) -> Outline:
        return Outline(
            sweep=record.sweep,
            trial=record.trial.id,
            cell=record.trial.cell,
            cell_id=record.trial.cell.id,
            digest=digest,
            status=record.status,
            started=record.started,
            ended=record.ended,
            scalars=scalars(record),
        )


def digest_of(content: bytes) -> str:
    """Identifies a record file and the way in which it is shown."""
    return hashlib.sha256(b"%d\0" % LAYOUT + content).hexdigest()


def trial_contents(record: Record, *, repeats: int) -> Contents:
    """The run of one trial."""
    trial, cell = record.trial, record.trial.cell
    name = f"{cell.label} seed {trial.seed}" + (f" repeat {trial.repeat}" if repeats > 1 or trial.repeat else "")
    tags = {
        "harness.status": record.status,
        "harness.cell": cell.id,
        "harness.attempt": str(record.attempt),
        "harness.order_digest": record.order_digest,
        "harness.parameter_digest": record.learned.parameter_digest if record.learned else None,
        "harness.error": str(record.failure) if record.failure else None,
        "harness.invalid": "; ".join(record.invalid) or None,
        "harness.settled": record.summary.settled if record.summary else None,
        "harness.slowest_rank": _slowest(record),
        "mlflow.note.content": _note(record),
        "mlflow.source.git.commit": _code(record).get("commit"),
        "mlflow.source.git.dirty": _code(record).get("dirty"),
    }
    return Contents(
        name=name,
        kind="trial",
        key=trial.id,
        started=_ms(record.started),
        ended=_ms(record.ended),
        status=STATUS[record.status],
        tags=_texts(tags),
        params=params(cell) | {"seed": str(trial.seed), "repeat": str(trial.repeat)},
        points=[Point(key, value, _ms(record.ended), 0) for key, value in scalars(record).items()] + curves(record),
    )


def cell_contents(outlines: Sequence[Outline], *, wanted: Iterable[str]) -> Contents:
    """The run of the cell of these trials: the means of what the done ones measured."""
    cell, cell_id = outlines[-1].cell, outlines[-1].cell_id
    done = [outline.scalars for outline in outlines if outline.status == "done"]
    found: dict[str, list[float]] = {}
    for scalar in done:
        for key, value in scalar.items():
            found.setdefault(key, []).append(value)
    metrics: dict[str, float] = {}
    for key, values in found.items():
        metrics[key] = float(np.mean(values))
        if len(values) > 1 and key.startswith(HEADLINES):
            metrics |= {f"{key}_min": min(values), f"{key}_max": max(values)}
    metrics |= _counts(outlines)
    mine = [trial for trial in wanted if trial.startswith(f"{cell_id}-s")]
    return _group("cell", cell_id, cell.label, outlines, mine, metrics, {}, params(cell))


def sweep_contents(name: str, spec: Mapping[str, Any], outlines: Sequence[Outline]) -> Contents:
    """The run of a whole sweep: how many of its trials have ended how, and how long it has taken."""
    wanted = set(spec.get("trials", ()))
    outlines = [outline for outline in outlines if outline.trial in wanted] or outlines
    metrics = _counts(outlines)
    metrics["duration_s"] = max(outline.ended for outline in outlines) - min(outline.started for outline in outlines)
    if spec:
        metrics |= {"cells_planned": len(spec["cells"]), "trials_planned": len(spec["trials"])}
    tags = {"mlflow.note.content": spec.get("description") or None}
    return _group("sweep", name, name, outlines, wanted, metrics, tags, {})


def _group(
    kind: str,
    key: str,
    name: str,
    outlines: Sequence[Outline],
    wanted: Iterable[str],
    metrics: Mapping[str, float],
    tags: Mapping[str, Any],
    settings: Mapping[str, str],
) -> Contents:
    """A run over several trials.

    Its metrics are of the moment, so that MLflow shows the newest, and all of step 0, so that it draws them as bars.
    """
    now, ended = _ms(time.time()), _ms(max(outline.ended for outline in outlines))
    failed = any(outline.status == "failed" for outline in outlines)
    complete = set(wanted) <= {outline.trial for outline in outlines}
    return Contents(
        name=name,
        kind=kind,
        key=key,
        started=_ms(min(outline.started for outline in outlines)),
        ended=ended,
        status="RUNNING" if not complete else "FAILED" if failed else "FINISHED",
        tags=_texts(tags),
        params=settings,
        points=[Point(key, value, now, 0) for key, value in metrics.items()],
    )


def _counts(outlines: Sequence[Outline]) -> dict[str, float]:
    statuses = Counter(outline.status for outline in outlines)
    return {f"trials_{status}": statuses[status] for status in STATUS}


def params(cell: Cell) -> dict[str, str]:
    """What decides a cell's result, each as its own param: `precision`, `options.dropout`, `data.source`."""
    choice = cell.choice
    settings = {"workload": choice.label, "uses": choice.uses, **asdict(cell.axes)}
    settings |= {"length": str(cell.length), "evaluate": f"every {cell.evaluate}", "warmup_steps": cell.warmup}
    settings |= {f"options.{name}": value for name, value in choice.options.items()}
    settings |= {f"data.{name}": value for name, value in choice.data.items()}
    return _texts(settings)


def scalars(record: Record) -> dict[str, float]:
    """The single numbers of a trial; what was not measured is absent."""
    found: dict[str, float | None] = {}
    if (summary := record.summary) and record.learned:
        target = metric_name(record.learned.target.name)
        found = {
            "throughput_samples_per_s": summary.throughput,
            "step_time_p50_ms": _milli(summary.step_p50),
            "step_time_p90_ms": _milli(summary.step_p90),
            "step_time_p99_ms": _milli(summary.step_p99),
            "steady_from_step": summary.window_start,
            "skew": summary.slowest.skew if summary.slowest else None,
            "final_loss": summary.final_loss,
            f"final_{target}": summary.final,
            f"best_{target}": summary.best,
            **{f"{phase}_share": share for phase, share in summary.shares.items()},
        }
    found |= {f"phase_{name}_s": seconds for name, seconds in record.phases.items()}
    found |= _compiled(record) | _loss_scale(record) | efficiency(record)
    found |= telemetry_scalars(record.ranks, record.trial.cell.axes.batch_size)
    for rank in record.ranks:
        for name, size in {**rank.memory, "training": training_bytes(rank.memory)}.items():
            key = f"memory_{name}_mib"
            if size is not None:
                found[key] = max(found.get(key) or 0.0, size / 2**20)
    return {metric_name(key): float(value) for key, value in found.items() if value is not None}


def _compiled(record: Record) -> dict[str, float | None]:
    """Of the rank that had most."""
    found = [rank.compiled for rank in record.ranks if rank.compiled]
    if not found:
        return {}
    return {
        "compile_graphs": max(one.graphs for one in found),
        "compile_graph_breaks": max(sum(one.breaks.values()) for one in found),
        "compile_recompiles": max(one.recompiles for one in found),
        "compile_cache_hits": max(one.cache_hits for one in found),
    }


def _loss_scale(record: Record) -> dict[str, float | None]:
    found = [rank.loss_scale for rank in record.ranks if rank.loss_scale]
    return {"loss_scale": found[0].scale, "loss_scale_skipped_steps": found[0].skipped} if found else {}


def curves(record: Record) -> list[Point]:
    """The loss at every step, thinned to at most CURVE points, and every metric of every evaluation."""
    taken = {"loss", *scalars(record)}
    evaluations = record.learned.evaluations if record.learned else ()
    times = _times(record)
    points = []
    if record.loss is not None:
        loss = record.loss.unpack()
        points = [Point("loss", float(loss[at]), times[at + 1], at + 1) for at in thin(len(loss))]
    for evaluation in evaluations:
        for name, value in evaluation.metrics.items():
            key = metric_name(name)
            points.append(Point(f"test_{key}" if key in taken else key, value, times[evaluation.step], evaluation.step))
    return points


def thin(count: int) -> list[int]:
    """At most CURVE of `count` places, evenly apart, the first and the last among them."""
    places: list[int] = np.unique(np.linspace(0, count - 1, min(count, CURVE)).round().astype(int)).tolist()
    return places


def _times(record: Record) -> list[int]:
    """When each step was done, from step 0, in milliseconds since the epoch: after its training time and all before."""
    evaluations = record.learned.evaluations if record.learned else ()
    steps = max([record.loss.count if record.loss else 0, *(evaluation.step for evaluation in evaluations)])
    first = next((rank.step_seconds for rank in record.ranks if rank.step_seconds), None)
    spent = np.zeros(steps + 1)
    if first is not None:
        spent[1 : first.count + 1] = first.unpack()[:steps]
    for evaluation in evaluations:
        spent[evaluation.step + 1 : evaluation.step + 2] += evaluation.seconds
    spent[0] = record.started + sum(record.phases.get(phase, 0.0) for phase in ("startup", "data", "build"))
    times: list[int] = (np.cumsum(spent) * 1000).round().astype(int).tolist()
    return times


def metric_name(name: str) -> str:
    """`name` with what MLflow does not take in the name of a metric replaced."""
    return re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)


def scrub(text: str, secrets: Iterable[str]) -> str:
    """`text` without credentials in URLs and without any of `secrets`."""
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return CREDENTIALS_IN_URL.sub(f"{REDACTED}@", text)


def _note(record: Record) -> str | None:
    """For the run's page: why it failed or is invalid."""
    failure = record.failure
    if failure is None:
        reasons = "".join(f"\n- {reason}" for reason in record.invalid)
        return f"**invalid, left out of all means**{reasons}" if reasons else None
    trace = f"\n\n```\n{failure.traceback[-VALUE // 2 :]}\n```" if failure.traceback else ""
    return f"**{failure}**{trace}"


def _slowest(record: Record) -> str | None:
    slowest = record.summary.slowest if record.summary else None
    return f"rank {slowest.rank} on {slowest.host}" if slowest else None


def _code(record: Record) -> Mapping[str, Any]:
    code: Mapping[str, Any] = record.learned.environment.get("harness", {}) if record.learned else {}
    return code


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """As MLflow stores them; what is None is left out."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return {metric_name(key): text[:VALUE] for key, text in texts.items() if values[key] is not None}


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
