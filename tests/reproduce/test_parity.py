"""The parity of cells that train in this process, on one rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.analysis.parity import CellParity, SweepParity
from harness.core.errors import BadInput, HarnessError
from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment
from harness.records.trace import Recording, read_traces
from harness.reproduce.parity import measure_parity, plan_parity
from harness.reproduce.snapshot import SnapshotRecorder
from harness.reproduce.tracing import TracedRun, TracedTrial
from harness.sweep.sweep import Sweep, load_sweep
from harness.training.build import TrialParts
from harness.training.state import TrainingState
from harness.training.train import Trainer
from tests.support.line import LineFit, Options
from tests.support.running import line_sweep
from tests.support.sweeps import load
from tests.support.training import SINGLE_RANK
from workloads.settings import Settings


@dataclass
class InProcessTracer:
    """Trains in this process instead of starting ranks."""

    folder: Path
    runs: int = 0
    noise: float = 0.0  # by which each run begins with other parameters than the one before
    validation: int = 0  # samples of the validation set
    steps: dict[str, int] = field(default_factory=dict)  # of the last run of each name

    def trace(
        self, name: str, traced: TracedTrial, recording: Recording, *, continued: object = None
    ) -> TracedRun:
        """Train, and return the folder of the trial and its trace."""
        self.runs += 1
        cell = traced.trial.cell
        if cell.axes.input == "resident":
            raise HarnessError("rank 0: out of memory; log: rank0.log")
        folder = TrialFolder(self.folder / str(self.runs))
        folder.path.mkdir()
        state = TrainingState()
        assignment = Assignment(trial=traced.trial, base_folder="")
        # A cell of two threads stands for one with a defect, and one of three differs in its state only.
        dropout = 0.2 if cell.axes.num_threads == 2 else 0.1
        average = 0.25 if cell.axes.num_threads == 3 else 0.5
        options = Options(dropout=dropout, samples=64, average=average, validation=self.validation)
        workload = LineFit(options, Settings())
        parts = TrialParts(assignment, workload, folder, SINGLE_RANK, state)
        if self.noise:
            with torch.no_grad():
                next(parts.model.parameters()).add_(self.noise * self.runs)
        with SnapshotRecorder(parts, state, recording) as recorder:
            Trainer(parts, state, recorder).run()
        self.steps[name] = state.step
        traces = read_traces(folder.path, 1)
        return TracedRun(trial=traced.trial, folder=folder.path, traces=traces)


def line(folder: Path, *cells: dict[str, Any], **more: Any) -> Sweep:
    """Return a sweep of one-rank cells: the plain one, and those with other settings."""
    keys = {"include": [{"strategy": "single"}, *cells], "length": {"steps": 8}, **more}
    return load_sweep(line_sweep(folder, {"line": {"axes": {"batch_size": 32}}}, **keys))


def measure(sweep: Sweep, tracer: InProcessTracer) -> SweepParity:
    """Return the parity of a sweep."""
    plan = plan_parity(sweep, "")
    return measure_parity(sweep, plan, tracer, seed=0, margin=0.01, on_cell=lambda cell: None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellParity]:
    """The parity of cells by what they differ in."""
    folder = tmp_path_factory.mktemp("parity")
    cells: dict[str, dict[str, Any]] = {
        "workers": {"loader.persistent_workers": False, "num_workers": 1},
        "optimizer": {"optimizer_impl": "fused"},
        "bf16": {"precision": "bf16"},
        "defect": {"num_threads": 2},
        "state": {"num_threads": 3},
        "fails": {"input": "resident"},
        "batch": {"batch_size": 16},
    }
    measured = measure(line(folder, *cells.values()), InProcessTracer(folder))
    (reference,) = measured.references
    assert (reference.control, reference.fp64_problem) == (None, None)
    assert list(reference.steps) == [1, 2, 3, 5, 8]
    assert not list(folder.glob("[0-9]*/snapshot*"))  # all that was kept is gone
    return dict(zip(cells, measured.cells, strict=True))


def test_loader_workers_change_no_bit(parity: dict[str, CellParity]) -> None:
    cell = parity["workers"]
    assert (cell.tensor_rung, cell.first_difference, cell.worst) == ("bitwise", None, None)
    assert cell.compared > 50


def test_another_optimizer_implementation_stays_within_rounding(
    parity: dict[str, CellParity],
) -> None:
    cell = parity["optimizer"]
    assert (cell.tensor_rung, list(cell.differing)) == ("rounding", ["optimizer_impl"])
    assert cell.first_difference is not None
    assert cell.first_difference.phase in ("optimizer state", "optimizer")


@pytest.mark.parametrize(
    ("name", "step", "phase", "differing"),
    [
        ("bf16", 1, "forward", "precision"),
        ("defect", 1, "forward", "num_threads"),
        ("state", 2, "workload state", "num_threads"),
    ],
)
def test_a_lower_precision_and_a_defect_are_beyond_the_fp64_rule(
    parity: dict[str, CellParity], name: str, step: int, phase: str, differing: str
) -> None:
    cell = parity[name]
    assert (cell.tensor_rung, list(cell.differing)) == (None, [differing])
    assert cell.first_difference is not None
    assert (cell.first_difference.step, cell.first_difference.phase) == (step, phase)
    assert cell.worst is not None
    assert (cell.worst.excess or 0) > 10
    assert name != "state" or cell.worst.name.startswith("workload state average")


def test_a_cell_that_fails_and_one_that_is_meant_to_differ(parity: dict[str, CellParity]) -> None:
    assert parity["fails"].failure == "rank 0: out of memory; log: rank0.log"
    assert parity["batch"].by_design == ["batch_size"]


UNREPEATABLE = "run twice in fp64, it differs by more than rounding errors"


@pytest.mark.parametrize(
    ("noise", "problem", "rung"), [(1e-3, UNREPEATABLE, None), (1e-9, None, "rounding")]
)
def test_a_reference_that_does_not_repeat_is_named(
    tmp_path: Path, noise: float, problem: str | None, rung: str | None
) -> None:
    """In fp64 its runs are as far apart, so nothing passes for rounding errors but what is."""
    sweep = line(tmp_path, {"optimizer_impl": "fused"})
    measured = measure(sweep, InProcessTracer(tmp_path, noise=noise))
    (reference,) = measured.references
    assert reference.control is not None
    assert reference.control.phase == "parameters"
    assert (reference.fp64_problem, measured.cells[0].tensor_rung) == (problem, rung)


def test_the_run_in_fp64_goes_on_where_the_reference_stops(tmp_path: Path) -> None:
    early = {"stop": {"goal": 1e9}, "evaluate": {"steps": 2}}
    tracer = InProcessTracer(tmp_path, validation=32)
    measured = measure(line(tmp_path, {"optimizer_impl": "fused"}, **early), tracer)
    assert tracer.steps == {"reference": 2, "control": 2, "fp64": 8, "cell": 2}
    assert measured.references[0].fp64_problem is None
    assert measured.cells[0].tensor_rung in ("bitwise", "rounding")


def test_cells_of_another_recipe_have_a_reference_of_their_own(tmp_path: Path) -> None:
    sweep = load(tmp_path, matrix={"batch_size": [32, 64], "num_threads": [1, 2]})
    plan = plan_parity(sweep, "")
    assert [group.reference.axes.batch_size for group in plan.groups] == [32, 64]
    assert [[cell.axes.num_threads for cell in group.cells] for group in plan.groups] == [[2], [2]]
    plan = plan_parity(sweep, "num_threads=2, batch_size=64")
    assert [group.reference.axes.num_threads for group in plan.groups] == [2]
    assert [list(cell.by_design) for cell in plan.by_design] == [["batch_size"]] * 2
    # And cells of other options are not meant to agree.
    sweep = load(tmp_path, matrix={"options.dropout": [0.0, 0.5], "num_threads": [1, 2]})
    plan = plan_parity(sweep, "")
    assert [group.reference.level("options.dropout") for group in plan.groups] == [0.0, 0.5]
    plan = plan_parity(sweep, "options.dropout=0.5")
    assert [list(cell.by_design) for cell in plan.by_design] == [["options.dropout"]] * 2


@pytest.mark.parametrize(
    ("matrix", "reference", "message"),
    [
        ({"num_threads": [1, 2]}, "num_threads=3", "--reference 'num_threads=3': found '3'"),
        ({"batch_size": [32, 64]}, "", "found no two cells that are meant to train the same"),
    ],
)
def test_nothing_to_compare_is_one_line(
    tmp_path: Path, matrix: dict[str, Any], reference: str, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        plan_parity(load(tmp_path, matrix=matrix), reference)
