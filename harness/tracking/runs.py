"""The runs of one sweep in MLflow: found by their tags, and brought up to date where they differ.

MLflow itself is asked what it has, as nothing about deliveries is stored elsewhere. Every write can
be the last one before the process dies. So each run carries tags that say what it shows, written
after what they speak of, and the next delivery completes whatever an earlier one left unfinished.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.analysis.parity import read_parity, with_seeds
from harness.analysis.result import join
from harness.analysis.sweep_result import SweepResult
from harness.core.paths import SweepFolder, safe_folder_name
from harness.core.redaction import redact_text, secret_values
from harness.preflight.rates import RateSearch, read_search
from harness.records.files import read_record
from harness.records.record import Record
from harness.records.seal import clean_text
from harness.render.chart import save_png
from harness.render.rates import draw_rates
from harness.spec.cell import Cell, WorkloadRef
from harness.tracking.artifacts import collect_files, staging
from harness.tracking.contents import (
    RunContents,
    TrialOutline,
    cell_contents,
    result_of,
    sweep_contents,
    trial_contents,
    trials_csv,
)
from harness.tracking.figures import MAX_CELLS, draw_board
from harness.tracking.markdown import leader_board
from harness.tracking.transaction import Transaction

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

PAGE_SIZE = 250  # runs in one answer to a search
BATCH_SIZE = 900  # metric points in one request; MLflow takes 1,000 entities
RECORD_TAG = "harness.record"  # on a trial's run: the digest of the record that it shows
BOARD_TAG = "harness.board"  # on a cell's or the sweep's run: the digest of its leader board
RATES_TAG = "harness.rates"  # on a cell's run: when the search was made that its picture shows
TABLE_TAG = "harness.trials_table"  # on a sweep's run: the digest of the table stored with it
TABLE_FILE = "trials.csv"
SPEC_TAG = "harness.spec"  # on a sweep's run: the digest of the sweep.json stored with it
# On a trial's run: the command that runs it again wherever this MLflow can be reached.
REPRODUCE_TAG = "harness.reproduce"
PARENT_TAG = "mlflow.parentRunId"
NO_TAGS: Mapping[str, str] = MappingProxyType({})


class SweepRuns:
    """The runs of one sweep from one results folder, in one experiment.

    Runs are found by tags: `harness.origin` for the results folder, `harness.kind` for what a run
    is of, and `harness.sweep`, `harness.cell` or `harness.trial` for which one.
    """

    def __init__(
        self,
        client: MlflowClient,
        experiment_id: str,
        origin: str,
        sweep: str,
        folder: SweepFolder,
        spec: Mapping[str, Any],
    ) -> None:
        """Connect to nothing yet.

        `origin` is the id of the results folder, which tells its runs from those of another folder
        in the same experiment. `spec` is the content of sweep.json, empty if there is none.
        """
        self.client = client
        self.experiment_id = experiment_id
        self.origin = origin
        self.sweep = sweep
        self.folder = folder
        self.spec = spec
        self.secrets = secret_values()
        # The runs that MLflow has, by kind (sweep, cell, trial) and key within the kind. There are
        # several for one key where a delivery died or somebody copied a run.
        self.existing: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)

    def find_existing(self, cells: set[str] | None) -> None:
        """Ask MLflow for the runs that it has: of all cells (None), or at least of `cells`.

        A run of a sweep delivers after each trial, and a large sweep has thousands of runs. So for
        a single cell only its own runs and the sweep's are asked for.
        """
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
                key = run.data.tags.get(f"harness.{kind}", "")
                self.existing[kind, key].append(run)

    def deliver(
        self,
        outlines: Sequence[TrialOutline],
        chosen: Sequence[TrialOutline],
        records: Mapping[str, Record],
        writes: Transaction,
    ) -> tuple[str, int]:
        """Bring the runs of the chosen trials, of their cells and of the sweep up to date.

        `outlines` are those of all trials on disk. `records` are records by trial that need not be
        read again. What is done may be made durable at each checkpoint of `writes`. Returns the id
        of the sweep's run, and how many trials were written.

        The order matters to whoever looks on: a parent is there before its children.
        """
        result = result_of(self.sweep, self.spec, outlines)
        sweep_run = self._update(sweep_contents(self.sweep, self.spec, outlines, result), None)
        self._update_spec(sweep_run)
        parity = read_parity(self.folder)
        if parity is not None:
            parity = with_seeds(parity, join([outline.result for outline in outlines]))
        search = read_search(self.folder)
        by_cell: defaultdict[str, list[TrialOutline]] = defaultdict(list)
        for outline in sorted(outlines, key=lambda outline: outline.started):
            by_cell[outline.cell_id].append(outline)
        # The last trial of a sweep brings the verdicts on all cells.
        changed = outlines if result else chosen
        chosen_trials = {outline.trial for outline in chosen}
        written = 0
        cell_runs: defaultdict[str, list[Run]] = defaultdict(list)  # by workload
        for cell_id in dict.fromkeys(outline.cell_id for outline in changed):
            cell_outlines = by_cell[cell_id]
            contents = cell_contents(
                cell_outlines,
                planned=self.spec.get("trials", ()),
                result=result,
                parity=parity,
                search=search,
            )
            cell_run = self._update(contents, sweep_run.info.run_id)
            cell_runs[cell_outlines[0].cell.workload.label].append(cell_run)
            self._update_rates(search, cell_outlines[0].cell, cell_run)
            writes.checkpoint()
            for outline in cell_outlines:
                complete_run = self._find_complete(outline, cell_run)
                if outline.trial not in chosen_trials:
                    continue
                self._delete_all_but(complete_run, self.existing["trial", outline.trial])
                if complete_run is None:
                    self._write_trial(outline, cell_run, records.get(outline.trial))
                    written += 1
                    writes.checkpoint()
        if result is not None:
            self._update_boards(result, sweep_run, cell_runs)
            self._update_table(outlines, sweep_run)
        return sweep_run.info.run_id, written

    def _update_boards(
        self, result: SweepResult, sweep_run: Run, cell_runs: Mapping[str, Sequence[Run]]
    ) -> None:
        """Attach the picture of each workload's leader board to its cells' runs and the sweep's.

        A picture is drawn only where a run does not have it yet, as its tag says. The sweep's run
        has the pictures of all workloads, and the digests of all as its tag.
        """
        digests: dict[str, str] = {}  # by workload
        for label in cell_runs:
            text = leader_board(result, label, MAX_CELLS)
            if text:
                digests[label] = _digest(text)
        sweep_digest = " ".join(digests.values())
        with staging(self.folder.delivery_folder) as aside:
            pictures = Pictures(result, aside)
            for label, digest in digests.items():
                for run in cell_runs[label]:
                    if run.data.tags.get(BOARD_TAG) != digest:
                        self._log_figure(run, pictures.path(label))
                        self.client.set_tag(run.info.run_id, BOARD_TAG, digest)
            if digests and sweep_run.data.tags.get(BOARD_TAG) != sweep_digest:
                for label in digests:
                    self._log_figure(sweep_run, pictures.path(label))
                self.client.set_tag(sweep_run.info.run_id, BOARD_TAG, sweep_digest)

    def _update_rates(self, search: RateSearch | None, cell: Cell, run: Run) -> None:
        """Attach the picture of the cell's learning rates, unless its run has it already."""
        rates = None if search is None else search.of(cell)
        if search is None or rates is None or run.data.tags.get(RATES_TAG) == str(search.at):
            return
        with staging(self.folder.delivery_folder) as aside:
            path = aside / "learning-rate.png"
            save_png(draw_rates(rates, 6.0, 4.0), path)
            self._log_figure(run, path)
        self.client.set_tag(run.info.run_id, RATES_TAG, str(search.at))

    def _log_figure(self, run: Run, path: Path) -> None:
        """Store a picture with a run; MLflow replaces an older one of the same name."""
        self.client.log_artifact(run.info.run_id, str(path), "figures")

    def _update(self, contents: RunContents, parent: str | None) -> Run:
        """Make a cell's or the sweep's run show its contents; send only what it lacks.

        Metrics cannot be deleted in MLflow. So a run that shows a metric which no longer holds is
        deleted and a new one takes its place.
        """
        names = {point.name for point in contents.points}
        existing = self.existing[contents.kind, contents.key]
        run = None
        for candidate in existing:
            if set(candidate.data.metrics) <= names:
                run = candidate
                break
        if run is None:
            run = self._create(contents, parent)
        self._delete_all_but(run, existing)
        self._send_difference(run, contents, self._tags(contents, parent))
        if run.info.run_name != contents.name:
            self.client.update_run(run.info.run_id, name=contents.name)
        self._update_status(run, contents)
        return run

    def _send_difference(self, run: Run, contents: RunContents, tags: Mapping[str, str]) -> None:
        """Send the metrics, params and tags that the run lacks or that have changed, at once.

        A param cannot be changed in MLflow, and need not be: params follow from the cell's id.
        """
        from mlflow.entities import Metric, Param, RunTag

        metrics = []
        for point in contents.points:
            if run.data.metrics.get(point.name) != point.value:
                metrics.append(Metric(point.name, point.value, point.at, point.step))
        params = []
        for name, value in contents.params.items():
            if name not in run.data.params:
                params.append(Param(name, self._clean(value)))
        changed_tags = []
        for name, value in tags.items():
            if run.data.tags.get(name) != value:
                changed_tags.append(RunTag(name, value))
        self.client.log_batch(
            run.info.run_id, metrics=metrics, params=params, tags=changed_tags, synchronous=True
        )

    def _update_status(self, run: Run, contents: RunContents) -> None:
        """Give a run its status, and its time of ending unless it is still running."""
        if contents.status == "RUNNING":
            if run.info.status != "RUNNING":
                self.client.update_run(run.info.run_id, status="RUNNING")
            return
        if (run.info.status, run.info.end_time) != (contents.status, contents.ended):
            self.client.set_terminated(run.info.run_id, contents.status, contents.ended)

    def _update_spec(self, sweep_run: Run) -> None:
        """Store sweep.json with the sweep's run, unless that has it already."""
        if not self.folder.spec_path.exists():
            return
        text = clean_text(self.folder.spec_path.read_text(encoding="utf-8"), self._clean)
        digest = _digest(text)
        if sweep_run.data.tags.get(SPEC_TAG) != digest:
            with staging(self.folder.delivery_folder) as aside:
                path = aside / self.folder.spec_path.name
                path.write_text(text, encoding="utf-8")
                self.client.log_artifact(sweep_run.info.run_id, str(path))
            self.client.set_tag(sweep_run.info.run_id, SPEC_TAG, digest)

    def _update_table(self, outlines: Sequence[TrialOutline], sweep_run: Run) -> None:
        """Store the table of all trials with the sweep's run, unless that has it already.

        Only once the sweep is complete: else every trial would send the whole table again.
        """
        text = self._clean(trials_csv(outlines))
        digest = _digest(text)
        if sweep_run.data.tags.get(TABLE_TAG) == digest:
            return
        with staging(self.folder.delivery_folder) as aside:
            path = aside / TABLE_FILE
            path.write_text(text, encoding="utf-8")
            self.client.log_artifact(sweep_run.info.run_id, str(path))
        self.client.set_tag(sweep_run.info.run_id, TABLE_TAG, digest)

    def _find_complete(self, outline: TrialOutline, cell_run: Run) -> Run | None:
        """Return the run that shows all of a trial's record, None if there is none.

        A run that hangs below another cell's run is moved below `cell_run`.
        """
        for run in self.existing["trial", outline.trial]:
            if run.data.tags.get(RECORD_TAG) == outline.digest and is_complete_run(run):
                if run.data.tags.get(PARENT_TAG) != cell_run.info.run_id:
                    self.client.set_tag(run.info.run_id, PARENT_TAG, cell_run.info.run_id)
                return run
        return None

    def _write_trial(
        self, outline: TrialOutline, cell_run: Run, delivered_record: Record | None
    ) -> None:
        """Create the run of a trial with all that it shows.

        It gets its final status last: then it is complete (`is_complete_run`). The record that was
        delivered is used if it is the one on disk, which may have been replaced meanwhile.
        """
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        trial_folder = self.folder.trial_folder(outline.trial)
        record = delivered_record
        if record is None or (record.started, record.ended) != (outline.started, outline.ended):
            record = read_record(trial_folder.record_path)
        contents = trial_contents(record, repeats=self.spec.get("repeats", 1))
        run = self._create(contents, cell_run.info.run_id, {RECORD_TAG: outline.digest})
        run_id = run.info.run_id
        self.client.log_inputs(run_id, datasets(record.trial.cell.workload, self._clean))
        with staging(self.folder.delivery_folder) as aside:
            collect_files(record, trial_folder, aside, self._clean)
            # client.log_artifacts would ask for the run again to learn where its files belong.
            files: Any = get_artifact_repository(run.info.artifact_uri, self.client.tracking_uri)
            files.log_artifacts(str(aside))
        params = []
        for name, value in contents.params.items():
            params.append(Param(name, self._clean(value)))
        metrics = []
        for point in contents.points:
            metrics.append(Metric(point.name, point.value, point.at, point.step))
        tags = [RunTag(REPRODUCE_TAG, f"harness reproduce mlflow:{run_id}")]
        self.client.log_batch(run_id, metrics[:BATCH_SIZE], params, tags, synchronous=True)
        for start in range(BATCH_SIZE, len(metrics), BATCH_SIZE):
            self.client.log_batch(run_id, metrics[start : start + BATCH_SIZE], synchronous=True)
        self.client.set_terminated(run_id, contents.status, contents.ended)

    def _create(
        self, contents: RunContents, parent: str | None, more_tags: Mapping[str, str] = NO_TAGS
    ) -> Run:
        """Create a run with its tags and return it; `parent` is the id of its parent's run."""
        tags = {**self._tags(contents, parent), **more_tags}
        return self.client.create_run(
            self.experiment_id, start_time=contents.started, tags=tags, run_name=contents.name
        )

    def _tags(self, contents: RunContents, parent: str | None) -> dict[str, str]:
        """Return a run's tags: those of its contents, and those by which it is found again."""
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
            tags[PARENT_TAG] = parent
        return {name: self._clean(value) for name, value in tags.items()}

    def _delete_all_but(self, kept_run: Run | None, runs: Sequence[Run]) -> None:
        """Delete runs that another run replaces. MLflow only marks them, so that they can return."""
        for run in runs:
            if run is not kept_run:
                self.client.delete_run(run.info.run_id)

    def _clean(self, text: str) -> str:
        """Return the text without the values of secret variables and without passwords in URLs."""
        return redact_text(text, self.secrets)


class Pictures:
    """Draws a workload's leader board when it is first asked for; drawing takes 0.2 s each."""

    def __init__(self, result: SweepResult, folder: Path) -> None:
        self.result = result
        self.folder = folder

    def path(self, label: str) -> Path:
        """Return the path of a workload's picture, drawn if it is not there."""
        path = self.folder / f"{safe_folder_name(label)}.png"
        if not path.exists():
            draw_board(self.result, label, path)
        return path


def search(client: MlflowClient, experiment_id: str, filter_string: str) -> Iterator[Run]:
    """Yield all runs that match an MLflow filter, however many there are."""
    token = None
    while True:
        answer = client.search_runs(
            [experiment_id], filter_string, max_results=PAGE_SIZE, page_token=token
        )
        yield from answer
        token = answer.token
        if not token:
            return


def datasets(workload: WorkloadRef, clean: Callable[[str], str]) -> list[DatasetInput]:
    """Return the training set and the test set of a workload as MLflow describes them.

    Both come from the same files, so that they share a digest and differ in their names. The digest
    is that of the files, or of the settings where a data set needs no files.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    settings = json.dumps(dict(workload.data), sort_keys=True)
    digest = str(workload.identity.get("files") or _digest(settings))
    name = clean(Path(str(workload.data.get("source", workload.label))).name)
    inputs = []
    for part, context in (("train", "training"), ("test", "evaluation")):
        dataset = Dataset(
            name=f"{name} {part}",
            digest=digest[:16],
            source_type="local",
            source=clean(settings),
        )
        inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", context)]))
    return inputs


def is_complete_run(run: Run) -> bool:
    """Return whether a trial's run shows all of its record: its final status is written last.

    A run that a dead delivery left behind is still running.
    """
    has_ended: bool = run.info.status != "RUNNING"
    return has_ended


def _digest(text: str) -> str:
    """Return the SHA-256 of a text, by which MLflow is asked whether it has the text already."""
    return hashlib.sha256(text.encode()).hexdigest()


def _user() -> str:
    """Return the name of the user, or the user's id where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in a container; Python 3.13 raises OSError
        return str(os.getuid())
