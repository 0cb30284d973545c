"""The runs of one sweep in MLflow: found by their tags, written where they lack something."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.core.paths import SweepFolder, TrialFolder, safe_folder_name
from harness.records.environment import scrub, secrets
from harness.records.record import Record, read_record
from harness.spec.cell import WorkloadRef
from harness.tracking.contents import (
    Contents,
    Outline,
    cell_contents,
    sweep_contents,
    trial_contents,
    verdicts_of,
)
from harness.tracking.figures import MOST, draw_board
from harness.tracking.verdicts import Verdicts, board

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

PAGE = 250  # runs in one answer
BATCH = 900  # metric points in one request; MLflow takes 1,000 entities
LOG_BYTES = 2**20  # of the end of each log
TRACE_BYTES = 2**26  # of a profiler's trace
RECORD = "harness.record"  # the digest of the record that a trial's run shows: in full once it is no longer RUNNING
BOARD = "harness.board"  # the digest of the leader board that is drawn with a run
SPEC = "harness.spec"  # the digest of the sweep.json that lies with a sweep's run


class Runs:
    """Of one sweep from one results folder, in one experiment."""

    def __init__(
        self,
        client: MlflowClient,
        experiment_id: str,
        origin: str,
        sweep: str,
        folder: SweepFolder,
        spec: Mapping[str, Any],
    ) -> None:
        self.client, self.experiment_id, self.folder, self.spec = (
            client,
            experiment_id,
            folder,
            spec,
        )
        self.origin, self.sweep = origin, sweep
        self.found: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
        self.secrets = secrets()

    def find(self, cells: set[str] | None) -> None:
        """Ask for the runs that are there: all, or a single cell's and the sweep's."""
        mine = f"tags.`harness.origin` = '{self.origin}'"
        filters = [mine]
        if cells is not None and len(cells) == 1:
            filters = [
                f"{mine} AND tags.`harness.kind` = 'sweep'",
                f"{mine} AND tags.`harness.cell` = '{min(cells)}'",
            ]
        for filter_string in filters:
            for run in search(self.client, self.experiment_id, filter_string):
                kind = run.data.tags.get("harness.kind", "")
                self.found[kind, run.data.tags.get(f"harness.{kind}", "")].append(run)

    def deliver(
        self, outlines: Sequence[Outline], chosen: Sequence[Outline], known: Mapping[str, Record]
    ) -> tuple[str, int]:
        """Returns the id of the sweep's run and how many trials were written; `known` saves reading records again."""
        verdicts = verdicts_of(self.sweep, self.spec, outlines)
        sweep = self._bring(sweep_contents(self.sweep, self.spec, outlines, verdicts), None)
        self._bring_spec(sweep)
        cells: defaultdict[str, list[Outline]] = defaultdict(list)
        for outline in sorted(outlines, key=lambda outline: outline.started):
            cells[outline.cell_id].append(outline)
        asked, written = {outline.trial for outline in chosen}, 0
        shown: defaultdict[str, list[Run]] = defaultdict(list)  # by workload
        for cell_id in dict.fromkeys(
            outline.cell_id for outline in (outlines if verdicts else chosen)
        ):
            contents = cell_contents(
                cells[cell_id], wanted=self.spec.get("trials", ()), verdicts=verdicts
            )
            cell = self._bring(contents, sweep.info.run_id)
            shown[cells[cell_id][0].cell.workload.label].append(cell)
            for outline in cells[cell_id]:
                whole = self._find_whole(outline, cell)
                if outline.trial in asked:
                    self._delete(
                        [run for run in self.found["trial", outline.trial] if run is not whole]
                    )
                    if whole is None:
                        self._write_trial(outline, cell, known.get(outline.trial))
                        written += 1
        if verdicts:
            self._bring_boards(verdicts, sweep, shown)
        return sweep.info.run_id, written

    def _bring_boards(
        self, verdicts: Verdicts, sweep: Run, shown: Mapping[str, Sequence[Run]]
    ) -> None:
        """The picture of each workload's leader board, with its cells and with the sweep."""
        boards = {label: found for label in shown if (found := board(verdicts, label, MOST))}
        digests = {
            label: hashlib.sha256(found.encode()).hexdigest() for label, found in boards.items()
        }
        together = " ".join(digests.values())
        places = [(label, run, digests[label]) for label in digests for run in shown[label]]
        places += [(label, sweep, together) for label in digests]
        with tempfile.TemporaryDirectory() as aside:
            drawn: dict[str, Path] = {}
            for label, run, digest in places:
                if run.data.tags.get(BOARD) == digest:
                    continue
                if label not in drawn:
                    drawn[label] = Path(aside) / f"{safe_folder_name(label)}.png"
                    draw_board(verdicts, label, drawn[label])
                self.client.log_artifact(run.info.run_id, str(drawn[label]), "figures")
                if run is not sweep or label == list(digests)[-1]:
                    self.client.set_tag(run.info.run_id, BOARD, digest)

    def _bring(self, contents: Contents, parent: str | None) -> Run:
        """Make a cell's or the sweep's run say what it should; nothing is sent that it says already.

        A run that shows a metric which there is no more makes way for a new one: metrics can't be taken back.
        """
        from mlflow.entities import Metric, Param, RunTag

        keys, runs = (
            {point.key for point in contents.points},
            self.found[contents.kind, contents.key],
        )
        run = next((run for run in runs if set(run.data.metrics) <= keys), None) or self._create(
            contents, parent
        )
        self._delete([other for other in runs if other is not run])
        known, run_id = run.data, run.info.run_id
        tags = self._tags(contents, parent)
        self.client.log_batch(
            run_id,
            metrics=[
                Metric(p.key, p.value, p.at, p.step)
                for p in contents.points
                if known.metrics.get(p.key) != p.value
            ],
            params=[
                Param(k, self._clean(v))
                for k, v in contents.params.items()
                if k not in known.params
            ],
            tags=[
                RunTag(key, value) for key, value in tags.items() if known.tags.get(key) != value
            ],
            synchronous=True,
        )
        if run.info.run_name != contents.name:
            self.client.update_run(run_id, name=contents.name)
        if contents.status == "RUNNING":
            if run.info.status != contents.status:
                self.client.update_run(run_id, status=contents.status)
        elif (run.info.status, run.info.end_time) != (contents.status, contents.ended):
            self.client.set_terminated(run_id, contents.status, contents.ended)
        return run

    def _bring_spec(self, sweep: Run) -> None:
        if self.folder.spec_path.exists():
            text = self._clean(self.folder.spec_path.read_text(encoding="utf-8"))
            digest = hashlib.sha256(text.encode()).hexdigest()
            if sweep.data.tags.get(SPEC) != digest:
                self.client.log_text(sweep.info.run_id, text, self.folder.spec_path.name)
                self.client.set_tag(sweep.info.run_id, SPEC, digest)

    def _find_whole(self, outline: Outline, cell: Run) -> Run | None:
        """The run that shows the trial's record in full; it is hung below the trial's cell if it isn't there."""
        for run in self.found["trial", outline.trial]:
            if run.data.tags.get(RECORD) == outline.digest and is_whole(run):
                if run.data.tags.get("mlflow.parentRunId") != cell.info.run_id:
                    self.client.set_tag(run.info.run_id, "mlflow.parentRunId", cell.info.run_id)
                return run
        return None

    def _write_trial(self, outline: Outline, cell: Run, known: Record | None) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        place = self.folder.trial_folder(outline.trial)
        same = known is not None and (known.started, known.ended) == (
            outline.started,
            outline.ended,
        )
        record = known if known and same else read_record(place.record_path)
        contents = trial_contents(record, repeats=self.spec.get("repeats", 1))
        run = self._create(contents, cell.info.run_id, {RECORD: outline.digest})
        run_id = run.info.run_id
        self.client.log_inputs(run_id, datasets(record.trial.cell.workload, self._clean))
        with tempfile.TemporaryDirectory() as aside:
            self._gather(record, place, Path(aside))
            # The client would ask for the run again to learn where its files go.
            files: Any = get_artifact_repository(run.info.artifact_uri, self.client.tracking_uri)
            files.log_artifacts(aside)
        params = [Param(key, self._clean(value)) for key, value in contents.params.items()]
        metrics = [
            Metric(point.key, point.value, point.at, point.step) for point in contents.points
        ]
        for at in range(0, max(1, len(metrics)), BATCH):
            self.client.log_batch(
                run_id, metrics[at : at + BATCH], params if at == 0 else (), synchronous=True
            )
        self.client.set_terminated(run_id, contents.status, contents.ended)

    def _gather(self, record: Record, place: TrialFolder, aside: Path) -> None:
        """The files that go with a trial's run."""
        (aside / "record.json").write_text(
            self._clean(place.record_path.read_text(encoding="utf-8")), encoding="utf-8"
        )
        if record.rank0:
            text = json.dumps(record.rank0.environment, indent=1) + "\n"
            (aside / "environment.json").write_text(self._clean(text), encoding="utf-8")
        for log in sorted(place.path.glob("logs/*.log")):
            (aside / "logs").mkdir(exist_ok=True)
            (aside / "logs" / log.name).write_text(self._clean(tail(log)), encoding="utf-8")

        gather_profile(place, aside, self._clean)

    def _create(
        self, contents: Contents, parent: str | None, more: Mapping[str, str] = MappingProxyType({})
    ) -> Run:
        tags = {**self._tags(contents, parent), **more}
        return self.client.create_run(
            self.experiment_id, start_time=contents.started, tags=tags, run_name=contents.name
        )

    def _tags(self, contents: Contents, parent: str | None) -> dict[str, str]:
        tags = {
            **contents.tags,
            "harness.kind": contents.kind,
            "harness.sweep": self.sweep,
            "harness.origin": self.origin,
            f"harness.{contents.kind}": contents.key,
            "mlflow.user": _user(),
            "mlflow.source.type": "LOCAL",
            "mlflow.source.name": Path(self.spec.get("source", "harness")).name,
        }
        if parent:
            tags["mlflow.parentRunId"] = parent
        return {key: self._clean(value) for key, value in tags.items()}

    def _delete(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self.client.delete_run(run.info.run_id)

    def _clean(self, text: str) -> str:
        return scrub(text, self.secrets)


def search(client: MlflowClient, experiment_id: str, filter_string: str) -> Iterator[Run]:
    """All runs that fit, however many."""
    token = None
    while True:
        answer = client.search_runs(
            [experiment_id], filter_string, max_results=PAGE, page_token=token
        )
        yield from answer
        token = answer.token
        if not token:
            return


def datasets(workload: WorkloadRef, clean: Any) -> list[DatasetInput]:
    """The training and the test set of a workload: the same files, told apart by name."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    settings = json.dumps(dict(workload.data), sort_keys=True)
    digest = workload.identity.get("files") or hashlib.sha256(settings.encode()).hexdigest()
    name = clean(Path(str(workload.data.get("source", workload.label))).name)
    return [
        DatasetInput(
            Dataset(
                name=f"{name} {part}",
                digest=str(digest)[:16],
                source_type="local",
                source=clean(settings),
            ),
            [InputTag("mlflow.data.context", context)],
        )
        for part, context in (("train", "training"), ("test", "evaluation"))
    ]


def gather_profile(place: TrialFolder, aside: Path, clean: Callable[[str], str]) -> None:
    """A profiler's tables, and its traces, which are left out by name where they are too large."""
    for file in sorted(place.trace_folder.glob("rank*")):
        to = aside / place.trace_folder.name / file.name
        to.parent.mkdir(exist_ok=True)
        size = file.stat().st_size
        if file.suffix == ".txt":
            to.write_text(clean(file.read_text(encoding="utf-8")), encoding="utf-8")
        elif size <= TRACE_BYTES:
            shutil.copyfile(file, to)
        else:
            to.with_name(f"{file.name}.left-out.txt").write_text(
                f"{size} bytes, more than the {TRACE_BYTES} that are sent; it lies in {place.path.name}/profile\n",
                encoding="utf-8",
            )


def is_whole(run: Run) -> bool:
    """Whether all of a trial is there: its run is given its last status at the end."""
    ended: bool = run.info.status != "RUNNING"
    return ended


def tail(log: Path) -> str:
    """The last LOG_BYTES of a log, from the beginning of a line."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        content = file.read()
    text = content.decode("utf-8", errors="replace")
    if size <= LOG_BYTES:
        return text
    return f"[the last {LOG_BYTES} of {size} bytes]\n" + text.partition("\n")[2]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
