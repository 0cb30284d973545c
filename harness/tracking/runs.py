"""The runs of one sweep in MLflow: found by their tags, and brought up to date where they differ.

MLflow itself is asked what it has, as nothing about deliveries is stored elsewhere. Every write can
be the last one before the process dies. So each run carries tags that say what it shows, written
after what they speak of, and the next delivery completes whatever an earlier one left unfinished.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.parity import read_parity, with_seeds
from harness.analysis.result import join
from harness.analysis.scalars import is_scalar, metric_name
from harness.analysis.sweep_result import SweepResult
from harness.core.paths import SweepFolder, write_atomically
from harness.core.redaction import redact_text, secret_values
from harness.preflight.rates import RateSearch, read_search
from harness.records.files import read_record
from harness.records.seal import clean_text
from harness.records.store import read_spec
from harness.render.chart import png_bytes
from harness.render.format import cell_names
from harness.render.preflight import draw_rates
from harness.serving.record import read_export
from harness.spec.cell import Cell, WorkloadRef
from harness.tracking.artifacts import collect_export, collect_files, export_metrics, staging
from harness.tracking.contents import (
    VALUE_LENGTH,
    RunContents,
    TrialOutline,
    cell_contents,
    result_of,
    sweep_contents,
    text_digest,
    trial_contents,
    trials_csv,
)
from harness.tracking.figures import BOARD_FOLDER, MAX_CELLS, board_path, draw_board
from harness.tracking.markdown import headline, leader_board, picture
from harness.tracking.pace import pace_of_cells
from harness.tracking.verdicts import error_bars

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Metric, Param, Run, RunTag

PAGE_SIZE = 250  # runs in one answer to a search
BATCH_SIZE = 900  # metric points in one request; MLflow takes 1,000 entities
RECORD_TAG = "harness.record"  # on a trial's run: the digest of the record that it shows
EXPORT_TAG = "harness.export"  # on a trial's run: when the exports were written that it shows
BOARD_TAG = "harness.board"  # on a sweep's run: the digest of its leader boards
RATES_TAG = "harness.rates"  # on a cell's run: when the search was made that its picture shows
TABLE_TAG = "harness.trials_table"  # on a sweep's run: the digest of the table stored with it
TABLE_FILE = "trials.csv"
UNFINISHED = "The sweep is not complete. Verdicts appear once all of its trials have ended."
SPEC_TAG = "harness.spec"  # on a sweep's run: the digest of the sweep.json stored with it
# On a trial's run: the command that runs it again wherever this MLflow can be reached.
REPRODUCE_TAG = "harness.reproduce"
PARENT_TAG = "mlflow.parentRunId"
TRIAL_TAGS = (RECORD_TAG, EXPORT_TAG, PARENT_TAG)  # those of a trial's run that are remembered
# Those that say which files are stored with a run: they do not come from its contents.
STORED_TAGS = (BOARD_TAG, EXPORT_TAG, RATES_TAG, RECORD_TAG, SPEC_TAG, TABLE_TAG)
NUMBER = re.compile(r"seed \d+ (repeat \d+ )?")  # what a trial's name begins with
MAX_QUERIES = 100  # cells that are asked for one by one, before all runs are asked for at once


@dataclass(kw_only=True)
class KnownRun:
    """What is remembered of a run in MLflow: all that tells which of its contents it lacks.

    A sweep has many more runs of trials than others, and those are written once: of them it is
    little.
    """

    id: str
    name: str
    status: str  # MLflow's
    ended: int | None  # milliseconds since the epoch
    tags: dict[str, str]
    params: set[str]  # their names, as a param never changes
    metrics: dict[str, float]

    @staticmethod
    def of(run: Run) -> KnownRun:
        """Return what is remembered of a run as MLflow returns it."""
        known = KnownRun(
            id=run.info.run_id,
            name=run.info.run_name,
            status=run.info.status,
            ended=run.info.end_time,
            tags=dict(run.data.tags),
            params=set(run.data.params),
            metrics=dict(run.data.metrics),
        )
        if known.tags.get("harness.kind") == "trial":
            known.forget_contents()
        return known

    def forget_contents(self) -> None:
        """Keep of a trial's run only what tells whether it is complete."""
        self.tags = {name: self.tags[name] for name in TRIAL_TAGS if name in self.tags}
        self.params = set()
        self.metrics = {}


class SweepRuns:
    """The runs of one sweep from one results folder, in one experiment.

    Runs are found by tags: `harness.origin` for the results folder, `harness.kind` for what a run
    is of, and `harness.sweep`, `harness.cell` or `harness.trial` for which one. They are asked for
    once, so that the next delivery of the same process costs no more in a large sweep. It holds as
    long as nobody else delivers from this folder, and no write has failed.
    """

    def __init__(
        self,
        client: MlflowClient,
        experiment_id: str,
        origin: str,
        sweep: str,
        folder: SweepFolder,
    ) -> None:
        """Connect to nothing yet.

        `origin` is the id of the results folder, which tells its runs from those of another folder
        in the same experiment.
        """
        self.client = client
        self.experiment_id = experiment_id
        self.origin = origin
        self.sweep = sweep
        self.folder = folder
        self.spec: Mapping[str, Any] = {}  # the content of sweep.json, empty if there is none
        self.names: Mapping[str, str] = {}  # the short names of cells by their ids
        # The time, the size and the inode of the sweep.json that MLflow has, once that is known.
        self.stored_spec: tuple[int, int, int] | None = None
        self.secrets = secret_values()
        # The runs that MLflow has, by kind (sweep, cell, trial) and key within the kind. There are
        # several for one key where a delivery died or somebody copied a run.
        self.existing: defaultdict[tuple[str, str], list[KnownRun]] = defaultdict(list)
        self.basis_of_view: tuple[int, bool, str] | None = None  # what the experiment's tags show
        self.headline = UNFINISHED  # the description of the experiment
        self.knows_all = False  # whether `existing` has the runs of all cells
        self.knows_sweep = False  # otherwise, whether it has those of the sweep,
        self.known_cells: set[str] = set()  # and the cells whose runs it has
        # Cells whose runs lack what their last trials have brought, in that order.
        self.stale_cells: dict[str, None] = {}
        self.pace_of_cells = pace_of_cells()

    def find_existing(self, cells: set[str] | None) -> None:
        """Ask MLflow for the runs that it has: of all cells (None), or at least of `cells`.

        A run of a sweep delivers while it runs, and a large sweep has thousands of runs. So for a
        few cells only their own runs and the sweep's are asked for.
        """
        if self.knows_all:
            return
        mine = f"tags.`harness.origin` = '{self.origin}'"
        if cells is None or len(cells - self.known_cells) > MAX_QUERIES:
            self.existing.clear()
            self._remember(mine)
            self.knows_all = True
            return
        if not self.knows_sweep:
            self._remember(f"{mine} AND tags.`harness.kind` = 'sweep'")
            self.knows_sweep = True
        for cell_id in sorted(cells - self.known_cells):
            self._remember(f"{mine} AND tags.`harness.cell` = '{cell_id}'")
        self.known_cells |= cells

    def _remember(self, filter_string: str) -> None:
        """Ask for the runs that match an MLflow filter, and remember them."""
        for run in search(self.client, self.experiment_id, filter_string):
            kind = run.data.tags.get("harness.kind", "")
            key = run.data.tags.get(f"harness.{kind}", "")
            self.existing[kind, key].append(KnownRun.of(run))

    def deliver(
        self,
        spec: Mapping[str, Any],
        outlines: Sequence[TrialOutline],
        chosen: Sequence[TrialOutline],
        *,
        in_passing: bool,
    ) -> tuple[str, int]:
        """Bring the runs of the chosen trials, of their cells and of the sweep up to date.

        `spec` is the content of sweep.json. `outlines` are those of all trials on disk. A delivery
        that is made `in_passing` leaves cells as they are that MLflow has already, until their pace
        allows it. Returns the id of the sweep's run, and how many trials were written.

        The order matters to whoever looks on: a parent is there before its children.
        """
        if spec != self.spec or not self.names:
            self.spec = spec
            self.names = _cell_names(self.folder, outlines)
        result = result_of(self.sweep, spec, outlines)
        contents = sweep_contents(self.sweep, spec, outlines, result)
        sweep_run = self._update(contents, None)
        self._update_spec(sweep_run)
        self.headline = UNFINISHED
        if result is not None:
            self.headline = self._clean(headline(result, sweep_run.id, VALUE_LENGTH))
        # The last trial of a sweep brings the verdicts on all cells.
        changed = outlines if result else chosen
        changed_cells = dict.fromkeys(outline.cell_id for outline in changed)
        self.stale_cells |= changed_cells
        updates_cells = not in_passing or result is not None or self.pace_of_cells.is_due()
        by_cell = _by_cell(outlines, self.stale_cells if updates_cells else changed_cells)
        self.find_existing(set(by_cell))
        self._update_cells(by_cell, outlines, result, sweep_run, spec, only_new=not updates_cells)
        chosen_trials = {outline.trial for outline in chosen}
        written = 0
        for cell_outlines in by_cell.values():
            written += self._update_trials(cell_outlines, chosen_trials)
        if result is not None:
            self._update_boards(result, sweep_run)
            # Only now: else every trial would send the whole table again.
            table = self._clean(trials_csv(outlines))
            self._store_text(sweep_run, TABLE_TAG, TABLE_FILE, table)
        return sweep_run.id, written

    def _update_cells(
        self,
        by_cell: Mapping[str, Sequence[TrialOutline]],
        outlines: Sequence[TrialOutline],
        result: SweepResult | None,
        sweep_run: KnownRun,
        spec: Mapping[str, Any],
        *,
        only_new: bool,
    ) -> None:
        """Bring the runs of cells up to date, or only create those that MLflow has not (`only_new`).

        A run that is created so has its name and tags, below which those of trials can hang.
        `by_cell` are the outlines of their trials, `outlines` those of all trials. `spec` has those
        trials that are needed.
        """
        updated = by_cell
        if only_new:
            updated = {id_: by_cell[id_] for id_ in by_cell if len(self.existing["cell", id_]) != 1}
        if not updated:
            return
        began = time.monotonic()
        parity = read_parity(self.folder)
        if parity is not None:
            parity = with_seeds(parity, join([outline.result for outline in outlines]))
        search = read_search(self.folder)
        bars: dict[str, str] = {}  # by cell; those of a workload share a scale
        for cell_results in result.workloads.values() if result else ():
            bars |= error_bars(cell_results)
        planned_by_cell = _planned_by_cell(spec.get("trials", ()))
        for cell_id, cell_outlines in updated.items():
            cell = cell_outlines[0].cell
            contents = cell_contents(
                cell_outlines,
                cell_name=self._name(cell),
                planned=planned_by_cell[cell_id],
                result=result,
                parity=parity,
                search=search,
                error_bar=bars.get(cell_id),
                picture=picture(cell.workload.label, sweep_run.id),
            )
            if only_new:
                self._only_run(contents, self._tags(contents, sweep_run.id))
                continue
            cell_run = self._update(contents, sweep_run.id)
            self._update_rates(search, cell, cell_run)
            self.stale_cells.pop(cell_id, None)
        if not only_new:
            self.pace_of_cells.add(time.monotonic() - began)

    def _update_boards(self, result: SweepResult, sweep_run: KnownRun) -> None:
        """Attach the picture of each workload's leader board to the sweep's run.

        It has one copy, however many cells there are, to which descriptions refer.
        """
        boards = {}
        for label in result.workloads:
            text = leader_board(result, label, MAX_CELLS)
            if text:
                boards[label] = text

        def draw(folder: Path) -> None:
            for label in boards:
                draw_board(result, label, folder / Path(board_path(label)).name)

        if boards:
            digest = text_digest("\0".join(boards.values()))
            self._store(sweep_run, BOARD_TAG, digest, draw, BOARD_FOLDER)

    def _update_rates(self, search: RateSearch | None, cell: Cell, run: KnownRun) -> None:
        """Attach the picture of the cell's learning rates."""
        rates = None if search is None else search.of(cell)
        if search is None or rates is None:
            return

        def draw(folder: Path) -> None:
            write_atomically(folder / "learning-rate.png", png_bytes(draw_rates(rates, 6.0, 4.0)))

        self._store(run, RATES_TAG, str(search.at), draw, "figures")

    def _update_export(self, trial: str) -> None:
        """Bring a trial's exports to its run, unless that shows them already."""
        from mlflow.entities import Metric

        trial_folder = self.folder.trial_folder(trial)
        export = read_export(trial_folder)
        (run,) = self.existing["trial", trial]
        if export is None or run.tags.get(EXPORT_TAG) == str(export.at):
            return
        at = round(export.at * 1000)
        metrics = []
        for name, value in export_metrics(export).items():
            metrics.append(Metric(metric_name(name), value, at, 0))
        log_batches(self.client, run.id, metrics)

        def collect(folder: Path) -> None:
            collect_export(export, trial_folder, folder)

        self._store(run, EXPORT_TAG, str(export.at), collect, trial_folder.export_folder.name)

    def _store(
        self,
        run: KnownRun,
        tag: str,
        version: str,
        write: Callable[[Path], None],
        folder: str | None = None,
    ) -> None:
        """Store files with a run, in a folder of its artifacts, unless `tag` has this version of them.

        `write` writes them into the folder that it is given. The tag is set after they are stored.
        """
        if run.tags.get(tag) == version:
            return
        with staging(self.folder.delivery_folder) as aside:
            write(aside)
            self.client.log_artifacts(run.id, str(aside), folder)
        self._set_tag(run, tag, version)

    def _update_trials(self, outlines: Sequence[TrialOutline], chosen_trials: set[str]) -> int:
        """Write those of a cell's chosen trials that have no complete run; return how many.

        Their exports are brought up to date too. `outlines` are those of all trials of the cell.
        """
        (cell_run,) = self.existing["cell", outlines[0].cell_id]
        incomplete = self._find_incomplete(outlines, cell_run, chosen_trials)
        for outline in incomplete:
            self._write_trial(outline, cell_run)
        for outline in outlines:
            if outline.trial in chosen_trials:
                self._update_export(outline.trial)
        return len(incomplete)

    def _name(self, cell: Cell) -> str:
        """Return a cell's short name, the label of one that the sweep no longer plans."""
        return self.names.get(cell.id, cell.label)

    def _set_tag(self, run: KnownRun, name: str, value: str) -> None:
        """Set a tag of a run."""
        self.client.set_tag(run.id, name, value)
        run.tags[name] = value

    def _update(self, contents: RunContents, parent: str | None) -> KnownRun:
        """Make a cell's or the sweep's run show its contents; send only what it lacks."""
        tags = self._tags(contents, parent)
        run = self._only_run(contents, tags)
        self._send_difference(run, contents, tags)
        if run.name != contents.name:
            self.client.update_run(run.id, name=contents.name)
            run.name = contents.name
        self._update_status(run, contents)
        return run

    def _only_run(self, contents: RunContents, tags: Mapping[str, str]) -> KnownRun:
        """Return the run that is to show these contents, created if there is none; delete others.

        Metrics cannot be deleted in MLflow. So a run that shows a metric of ours which no longer holds
        is deleted and a new one takes its place. Any other metric may be somebody else's.
        """
        names = {metric.key for metric in contents.metrics}
        run = None
        for candidate in self.existing[contents.kind, contents.key]:
            others = candidate.metrics.keys() - names
            if not any(name.startswith("harness.") or is_scalar(name) for name in others):
                run = candidate
                break
        if run is None:
            run = self._create_empty(contents, tags)
        self._delete_all_but(run, contents.kind, contents.key)
        return run

    def _send_difference(
        self, run: KnownRun, contents: RunContents, tags: Mapping[str, str]
    ) -> None:
        """Send the metrics, params and tags that the run lacks or that have changed, at once.

        A param cannot be changed in MLflow, and need not be: params follow from the cell's id. Tags of
        ours that no longer hold are deleted.
        """
        from mlflow.entities import Param, RunTag

        metrics = []
        for metric in contents.metrics:
            if run.metrics.get(metric.key) != metric.value:
                metrics.append(metric)
        params = []
        for name, value in contents.params.items():
            if name not in run.params:
                params.append(Param(name, self._clean(value)))
        changed_tags = []
        for name, value in tags.items():
            if run.tags.get(name) != value:
                changed_tags.append(RunTag(name, value))
        log_batches(self.client, run.id, metrics, params, changed_tags)
        for name in _stale_tags(run.tags, tags):
            self.client.delete_tag(run.id, name)
            del run.tags[name]
        run.metrics.update((metric.key, metric.value) for metric in metrics)
        run.params.update(param.key for param in params)
        run.tags.update(tags)

    def _update_status(self, run: KnownRun, contents: RunContents) -> None:
        """Give a run its status, and its time of ending unless it is still running."""
        if contents.status == "RUNNING":
            if run.status != "RUNNING":
                self.client.update_run(run.id, status="RUNNING")
                run.status = "RUNNING"
            return
        if (run.status, run.ended) != (contents.status, contents.ended):
            self.client.set_terminated(run.id, contents.status, contents.ended)
            run.status, run.ended = contents.status, contents.ended

    def _update_spec(self, sweep_run: KnownRun) -> None:
        """Store sweep.json with the sweep's run."""
        path = self.folder.spec_path
        if not path.exists():
            return
        stat = path.stat()
        version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if version == self.stored_spec and SPEC_TAG in sweep_run.tags:
            return
        text = clean_text(path.read_text(encoding="utf-8"), self._clean)
        self._store_text(sweep_run, SPEC_TAG, path.name, text)
        self.stored_spec = version

    def _store_text(self, run: KnownRun, tag: str, name: str, text: str) -> None:
        """Store a text with a run, unless `tag` has its digest."""

        def write(folder: Path) -> None:
            (folder / name).write_text(text, encoding="utf-8")

        self._store(run, tag, text_digest(text), write)

    def _find_incomplete(
        self, outlines: Sequence[TrialOutline], cell_run: KnownRun, chosen_trials: set[str]
    ) -> list[TrialOutline]:
        """Return the chosen ones among a cell's trials that have no complete run.

        Incomplete runs of the chosen trials are deleted.
        """
        incomplete = []
        for outline in outlines:
            complete_run = self._find_complete(outline, cell_run)
            if outline.trial not in chosen_trials:
                continue
            self._delete_all_but(complete_run, "trial", outline.trial)
            if complete_run is None:
                incomplete.append(outline)
        return incomplete

    def _find_complete(self, outline: TrialOutline, cell_run: KnownRun) -> KnownRun | None:
        """Return the run that shows all of a trial's record, None if there is none.

        A run that hangs below another cell's run is moved below `cell_run`, and one that has an earlier
        name of its cell is renamed.
        """
        for run in self.existing["trial", outline.trial]:
            if run.tags.get(RECORD_TAG) == outline.digest and run.status != "RUNNING":
                if run.tags.get(PARENT_TAG) != cell_run.id:
                    self._set_tag(run, PARENT_TAG, cell_run.id)
                number = NUMBER.match(run.name)
                name = f"{number[0] if number else ''}{cell_run.name}"
                if run.name != name:
                    self.client.update_run(run.id, name=name)
                    run.name = name
                return run
        return None

    def _write_trial(self, outline: TrialOutline, cell_run: KnownRun) -> None:
        """Create the run of a trial with all that it shows.

        It gets its final status last: then it is complete (`is_complete_run`).
        """
        trial_folder = self.folder.trial_folder(outline.trial)
        record = read_record(trial_folder.record_path)
        contents = trial_contents(
            record,
            cell_name=self._name(record.trial.cell),
            repeats=self.spec.get("repeats", 1),
        )
        tags = {**self._tags(contents, cell_run.id), RECORD_TAG: outline.digest}
        run = self._create_empty(contents, tags)
        with staging(self.folder.delivery_folder) as aside:
            collect_files(record, trial_folder, aside, self._clean)
            self.client.log_artifacts(run.id, str(aside))
        self.client.log_inputs(run.id, datasets(record.trial.cell.workload, self._clean))
        tags[REPRODUCE_TAG] = f"harness reproduce mlflow:{run.id}"
        self._send_difference(run, contents, tags)
        self._update_status(run, contents)
        run.forget_contents()

    def _create_empty(self, contents: RunContents, tags: Mapping[str, str]) -> KnownRun:
        """Create and remember a run that has its name and tags, but shows nothing else yet."""
        created = self.client.create_run(
            self.experiment_id,
            start_time=contents.started,
            tags=dict(tags),
            run_name=contents.name,
        )
        run = KnownRun(
            id=created.info.run_id,
            name=contents.name,
            status="RUNNING",
            ended=None,
            tags=dict(tags),
            params=set(),
            metrics={},
        )
        self.existing[contents.kind, contents.key].append(run)
        return run

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

    def _delete_all_but(self, kept_run: KnownRun | None, kind: str, key: str) -> None:
        """Delete runs that another run replaces. MLflow only marks them, so that they can return."""
        for run in self.existing[kind, key]:
            if run is not kept_run:
                self.client.delete_run(run.id)
        self.existing[kind, key] = [] if kept_run is None else [kept_run]

    def _clean(self, text: str) -> str:
        """Return the text without the values of secret variables and without passwords in URLs."""
        return redact_text(text, self.secrets)


def _stale_tags(present: Collection[str], tags: Mapping[str, str]) -> list[str]:
    """Return the names of our tags that a run has and should no longer have."""
    return [
        name
        for name in present
        if name.startswith("harness.") and name not in tags and name not in STORED_TAGS
    ]


def _cell_names(folder: SweepFolder, outlines: Sequence[TrialOutline]) -> dict[str, str]:
    """Return the short names of a sweep's cells by their ids, those without a record included.

    Of a folder that holds no sweep.json, `outlines` have the cells.
    """
    if folder.spec_path.exists():
        return cell_names(read_spec(folder).cells, with_workload=True)
    cells = {outline.cell_id: outline.cell for outline in outlines}
    return cell_names(cells.values(), with_workload=True)


def _by_cell(
    outlines: Iterable[TrialOutline], cell_ids: Iterable[str]
) -> Mapping[str, list[TrialOutline]]:
    """Return the outlines of each of some cells by the cell's id, the earliest trial first.

    A cell without any is left out.
    """
    by_cell: dict[str, list[TrialOutline]] = {cell_id: [] for cell_id in cell_ids}
    for outline in outlines:
        if outline.cell_id in by_cell:
            by_cell[outline.cell_id].append(outline)
    for of_cell in by_cell.values():
        of_cell.sort(key=lambda outline: outline.started)
    return {cell_id: of_cell for cell_id, of_cell in by_cell.items() if of_cell}


def _planned_by_cell(trials: Sequence[str]) -> defaultdict[str, list[str]]:
    """Return the ids of trials by their cell's: `mlp-45dbdb38d5` of `mlp-45dbdb38d5-s0-r1`."""
    by_cell: defaultdict[str, list[str]] = defaultdict(list)
    for trial in trials:
        by_cell[trial.rpartition("-s")[0]].append(trial)
    return by_cell


def log_batches(
    client: MlflowClient,
    run_id: str,
    metrics: Sequence[Metric],
    params: Sequence[Param] = (),
    tags: Sequence[RunTag] = (),
) -> None:
    """Send metrics, params and tags to a run, in as few requests as MLflow allows."""
    if params or tags:
        client.log_batch(run_id, metrics[:BATCH_SIZE], params, tags, synchronous=True)
        metrics = metrics[BATCH_SIZE:]
    for start in range(0, len(metrics), BATCH_SIZE):
        client.log_batch(run_id, metrics[start : start + BATCH_SIZE], synchronous=True)


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
    files = {
        axis: digest for axis, digest in workload.file_digests.items() if axis.startswith("data.")
    }
    digest = text_digest(json.dumps(files, sort_keys=True) if files else settings)
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


def _user() -> str:
    """Return the name of the user, or the user's id where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in a container; Python 3.13 raises OSError
        return str(os.getuid())
