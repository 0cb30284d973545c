"""What MLflow is to show of a sweep, as plain data: names, params, tags and metrics, made from records alone."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.analysis.result import CellResult, join, of_trial, rounded
from harness.records.record import Record, Status
from harness.spec.cell import Cell
from harness.tracking.scalars import metric_name, scalars
from harness.tracking.verdicts import (
    Verdicts,
    describe,
    interval_metrics,
    verdict_metrics,
    verdict_tags,
)

LAYOUT = (
    3  # counts the ways that runs have been laid out; a new one has every trial delivered again
)
CURVE = 1000  # points of a loss curve in MLflow; the record keeps all
# MLflow's words for ours
STATUS: Mapping[Status, str] = {
    "done": "FINISHED",
    "invalid": "KILLED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
VALUE = 5000  # characters of a tag or a param that every MLflow server takes
RATE = "throughput_samples_per_s"
HEADLINES = (RATE, "final_")  # of these a cell shows the min_effect and the largest too
SUMMED = "harness.interruptions"  # of these a cell shows the sum over its trials


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
    result: CellResult

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
            result=of_trial(record),
        )


def digest_of(content: bytes) -> str:
    """Identifies a record file and the way in which it is shown."""
    return hashlib.sha256(b"%d\0" % LAYOUT + content).hexdigest()


def trial_contents(record: Record, *, repeats: int) -> Contents:
    """The run of one trial."""
    trial, cell = record.trial, record.trial.cell
    name = f"{cell.label} seed {trial.seed}" + (
        f" repeat {trial.repeat}" if repeats > 1 or trial.repeat else ""
    )
    tags = {
        "harness.status": record.status,
        "harness.cell": cell.id,
        "harness.attempt": str(record.attempt),
        "harness.order_digest": record.order_digest,
        "harness.parameter_digest": record.rank0.parameter_digest if record.rank0 else None,
        "harness.error": str(record.failure) if record.failure else None,
        "harness.invalid": "; ".join(record.violations) or None,
        "harness.settled": record.summary.settled if record.summary else None,
        "harness.slowest_rank": _slowest(record),
        "harness.interruptions": "; ".join(_interruptions(record)) or None,
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
        points=[Point(key, value, _ms(record.ended), 0) for key, value in scalars(record).items()]
        + curves(record),
    )


def cell_contents(
    outlines: Sequence[Outline], *, wanted: Iterable[str], verdicts: Verdicts | None = None
) -> Contents:
    """The run of the cell of these trials: the means of what the done ones measured, and what the verdicts say of it,
    if its sweep has any yet."""
    cell, cell_id = outlines[-1].cell, outlines[-1].cell_id
    done = [outline.scalars for outline in outlines if outline.status == "done"]
    found: dict[str, list[float]] = {}
    for scalar in done:
        for key, value in scalar.items():
            found.setdefault(key, []).append(value)
    metrics = (
        {RATE: float(np.mean(found[RATE]))} if RATE in found else {}
    )  # first, as MLflow's pages begin with that
    metrics |= interval_metrics(join([outline.result for outline in outlines])[0])
    if verdicts:
        metrics |= verdict_metrics(verdicts, cell_id)
    for key, values in found.items():
        metrics[key] = float(np.sum(values) if key.startswith(SUMMED) else np.mean(values))
        if len(values) > 1 and key.startswith(HEADLINES):
            metrics |= {f"{key}_min": min(values), f"{key}_max": max(values)}
    metrics = {key: rounded(value) for key, value in metrics.items()} | _counts(outlines)
    tags = verdict_tags(verdicts, cell_id) if verdicts else {}
    mine = [trial for trial in wanted if trial.startswith(f"{cell_id}-s")]
    return _group("cell", cell_id, cell.label, outlines, mine, metrics, tags, params(cell))


def sweep_contents(
    name: str,
    spec: Mapping[str, Any],
    outlines: Sequence[Outline],
    verdicts: Verdicts | None = None,
) -> Contents:
    """The run of a whole sweep: how many of its trials have ended how, and how long it has taken; in its description
    what the verdicts come to."""
    wanted = set(spec.get("trials", ()))
    outlines = [outline for outline in outlines if outline.trial in wanted] or outlines
    metrics = _counts(outlines)
    metrics["duration_s"] = max(outline.ended for outline in outlines) - min(
        outline.started for outline in outlines
    )
    if spec:
        metrics |= {"cells_planned": len(spec["cells"]), "trials_planned": len(spec["trials"])}
    description = spec.get("description") or ""
    tags = {
        "mlflow.note.content": (describe(description, verdicts, VALUE) if verdicts else description)
        or None
    }
    return _group("sweep", name, name, outlines, wanted, metrics, tags, {})


def is_complete(outlines: Sequence[Outline], wanted: Iterable[str]) -> bool:
    """Whether all trials that are asked for are over."""
    return set(wanted) <= {outline.trial for outline in outlines if outline.status != "interrupted"}


def verdicts_of(name: str, spec: Mapping[str, Any], outlines: Sequence[Outline]) -> Verdicts | None:
    """Once a sweep is complete: before that every trial could change the verdicts on all cells."""
    wanted: Mapping[str, int] = {trial: place for place, trial in enumerate(spec.get("trials", ()))}
    if not is_complete(outlines, wanted):
        return None
    ordered = sorted(
        outlines, key=lambda outline: (wanted.get(outline.trial, len(wanted)), outline.started)
    )
    return Verdicts.of(
        name, join([outline.result for outline in ordered if not wanted or outline.trial in wanted])
    )


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
    return Contents(
        name=name,
        kind=kind,
        key=key,
        started=_ms(min(outline.started for outline in outlines)),
        ended=ended,
        status="RUNNING"
        if not is_complete(outlines, wanted)
        else "FAILED"
        if failed
        else "FINISHED",
        tags=_texts(tags),
        params=settings,
        points=[Point(key, value, now, 0) for key, value in metrics.items()],
    )


def _counts(outlines: Sequence[Outline]) -> dict[str, float]:
    statuses = Counter(outline.status for outline in outlines)
    return {f"trials_{status}": statuses[status] for status in STATUS}


def params(cell: Cell) -> dict[str, str]:
    """What decides a cell's result, each as its own param: `precision`, `options.dropout`, `data.source`."""
    choice = cell.workload
    settings = {"workload": choice.label, "uses": choice.uses, **asdict(cell.axes)}
    settings |= {
        "length": str(cell.length),
        "evaluate": f"every {cell.evaluate}",
        "warmup_steps": cell.warmup,
    }
    settings |= {f"options.{name}": value for name, value in choice.options.items()}
    settings |= {f"data.{name}": value for name, value in choice.data.items()}
    return _texts(settings)


def curves(record: Record) -> list[Point]:
    """The loss at every step, thinned to at most CURVE points, and every metric of every evaluation."""
    taken = {"loss", *scalars(record)}
    evaluations = record.rank0.evaluations if record.rank0 else ()
    times = _times(record)
    points = []
    if record.loss is not None:
        loss = record.loss.unpack()
        points = [Point("loss", float(loss[at]), times[at + 1], at + 1) for at in thin(len(loss))]
    for evaluation in evaluations:
        for name, value in evaluation.metrics.items():
            key = metric_name(name)
            points.append(
                Point(
                    f"test_{key}" if key in taken else key,
                    value,
                    times[evaluation.step],
                    evaluation.step,
                )
            )
    return points


def thin(count: int) -> list[int]:
    """At most CURVE of `count` places, evenly apart, the first and the last among them."""
    places: list[int] = np.unique(
        np.linspace(0, count - 1, min(count, CURVE)).round().astype(int)
    ).tolist()
    return places


def _times(record: Record) -> list[int]:
    """When each step was done, from step 0, in milliseconds since the epoch: after its training time and all before."""
    evaluations = record.rank0.evaluations if record.rank0 else ()
    steps = max(
        [record.loss.count if record.loss else 0, *(evaluation.step for evaluation in evaluations)]
    )
    first = next((rank.step_seconds for rank in record.ranks if rank.step_seconds), None)
    spent = np.zeros(steps + 1)
    if first is not None:
        spent[1 : first.count + 1] = first.unpack()[:steps]
    for evaluation in evaluations:
        spent[evaluation.step + 1 : evaluation.step + 2] += evaluation.seconds
    spent[0] = record.started + sum(
        record.phases.get(phase, 0.0) for phase in ("startup", "data", "build")
    )
    times: list[int] = (np.cumsum(spent) * 1000).round().astype(int).tolist()
    return times


def _note(record: Record) -> str | None:
    """For the run's page: why it failed or is invalid, and where it was interrupted."""
    parts = [_listed("invalid, left out of all means", record.violations)]
    if failure := record.failure:
        trace = f"\n\n```\n{failure.traceback[-VALUE // 2 :]}\n```" if failure.traceback else ""
        parts = [f"**{failure}**{trace}"]
    parts.append(_listed("taken up again", _interruptions(record)))
    return "\n\n".join(part for part in parts if part) or None


def _listed(head: str, words: Sequence[str]) -> str:
    return f"**{head}**" + "".join(f"\n- {one}" for one in words) if words else ""


def _interruptions(record: Record) -> list[str]:
    """In words: where it was interrupted, by what, and what that took."""
    taken_up = record.ranks[0].interruptions if record.ranks else ()
    return [
        f"interrupted by {one.signal or 'its end'} after step {one.step}: {one.lost_seconds:.1f} s lost"
        for one in taken_up
    ]


def _slowest(record: Record) -> str | None:
    slowest = record.summary.slowest if record.summary else None
    return f"rank {slowest.rank} on {slowest.host}" if slowest else None


def _code(record: Record) -> Mapping[str, Any]:
    code: Mapping[str, Any] = record.rank0.environment.get("harness", {}) if record.rank0 else {}
    return code


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """As MLflow stores them; what is None is left out."""
    texts = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()
    }
    return {
        metric_name(key): text[:VALUE] for key, text in texts.items() if values[key] is not None
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
