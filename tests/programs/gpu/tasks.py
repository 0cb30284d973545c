"""What the parts of a run do: `python -m tests.programs.gpu.tasks FOLDER DEVICE TASK KEYWORDS`.

A task is a function of this module that gets the part's folder, the device and KEYWORDS, a JSON object. It returns
figures, which are left in the folder, and raises or exits where something fails.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from harness.core.paths import TrialFolder
from harness.core.ports import free_port
from harness.core.validation import decode_value
from harness.hardware.machine import Machine
from harness.hardware.measured_peaks import measure
from harness.launch.assemble import assemble
from harness.launch.ranks import how_ended
from harness.records.assignment import Assignment, write_assignment
from harness.records.environment import describe_code, describe_hardware
from harness.records.files import write_record
from harness.records.numbers import RATE, final_name
from harness.records.record import Record
from harness.sweep.axes import Axes
from harness.sweep.cell import Cell, Length, Trial, WorkloadRef
from harness.sweep.cluster import ValidityRules
from harness.training import worker
from harness.training.entry import load_workload
from harness.training.ranks import Ranks, choose_device
from tests.programs.gpu.outcome import FIGURES, Figures
from tests.programs.perf.comparison import format_interval, ratio_of
from tests.programs.perf.loops import Bare, Harness, Loop, Textbook
from tests.programs.perf.race import PLANNED_STEPS, Race
from tests.support.training import SINGLE_RANK

Device = Literal["cpu", "cuda"]
TYPES = ("fp32", "tf32", "bf16", "fp16")
DATA: Mapping[str, Mapping[str, Any]] = {
    "mlp": {"source": "digits"},
    "cnn": {"source": "digits"},
    "distilbert": {"source": "tickets", "rows": 20_000},
}
BATCH_SIZE = 64
# A GPU may add up in another order in each run, which training amplifies from step to step. In the first
# steps, more than this is another training.
TOLERANCE = 1e-2
COMPARED_STEPS = 100
TESTS = ("tests/training/test_determinism.py", "tests/measure/test_telemetry.py")
# Without the project's settings and conftest.py, which need plugins and MLflow.
BARE = ("--noconftest", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider")
MARKS = ("-o", "markers=gpu: needs a GPU")


def describe_machine(folder: Path, device: Device) -> Figures:
    """Return the names and versions of what figures depend on; raise if torch has no such device."""
    hardware = describe_hardware()
    figures = {
        "device": f"{hardware.cpu}, {hardware.usable_cores} cores",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "commit": describe_code().commit or "unknown",
    }
    if device == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(f"device: torch {torch.__version__} found none; allowed: cpu")
        major, minor = torch.cuda.get_device_capability()
        figures["device"] = f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}"
        figures |= {"CUDA": str(torch.version.cuda), "driver": str(hardware.driver)}
        figures["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return figures


def measure_peaks(folder: Path, device: Device) -> Figures:
    """Measure as `harness peak` does; leave `machine.json` for the parts that follow."""
    machine = measure(device, Ranks.from_environment(), lambda now: print(now, flush=True))
    assert machine is not None  # at rank 0
    (folder / "machine.json").write_text(json.dumps(asdict(machine)))
    peaks = {dtype: machine.peak(dtype) for dtype in TYPES}
    return {f"{dtype} TFLOP/s": peak / 1e12 for dtype, peak in peaks.items() if peak is not None}


def read_machine(output: Path) -> dict[str, Machine]:
    """Return the machine that the part `peaks` has measured by its key, none if it has not."""
    path = output / "peaks" / "machine.json"
    if not path.is_file():
        return {}
    machine: Machine = decode_value(Machine, json.loads(path.read_text()))
    return {machine.key: machine}


def make_cell(
    workload: str, steps: int, axes: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> Cell:
    """Return a cell of a built-in workload that is evaluated once, at its end."""
    settings = {f"options.{name}": value for name, value in (options or {}).items()}
    settings.update({f"data.{name}": value for name, value in DATA[workload].items()})
    identity = {"uses": workload, "settings": settings, "files": None}
    return Cell(
        workload=WorkloadRef(label=workload, uses=workload, identity=identity, settings=settings),
        axes=Axes.of(axes),
        length=Length(steps=steps),
        evaluate=Length(steps=steps),
        warmup=min(10, steps // 2),
    )


def train(folder: Path, device: Device, cell: Mapping[str, Any], times: int = 1) -> Figures:
    """Train a cell as a rank does, in this process; raise if equal runs have other parameters."""
    digests = []
    for number in range(times):
        record = train_once(make_cell(**cell), folder / f"trial{number}", device)
        assert record.rank0 is not None
        digests.append(record.rank0.parameter_digest)
    if len(set(digests)) > 1:
        raise RuntimeError(f"parameters: found {digests}; allowed: the same in all runs")
    return figures_of(record)


def train_once(cell: Cell, folder: Path, device: Device) -> Record:
    """Train a cell and return its record, which is in the folder too.

    Raises RuntimeError with the failure of a trial that is not done.
    """
    # One rank finds itself here where its strategy has a process group.
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = str(free_port())
    folder.mkdir(parents=True, exist_ok=True)
    trial_folder = TrialFolder(folder)
    assignment = Assignment(trial=Trial(cell=cell, seed=0), base_folder=str(folder), device=device)
    write_assignment(trial_folder.assignment_path, assignment)
    started = time.time()
    worker.main([str(folder)])
    ended = how_ended(trial_folder, 1, started)
    peaks = read_machine(folder.parent.parent)
    record = assemble("gpu", assignment, ended, ValidityRules(), peaks=peaks)
    write_record(trial_folder.record_path, record)
    if record.failure is not None:
        raise RuntimeError(f"{record.failure.kind}: {record.failure.message}")
    return record


def figures_of(record: Record) -> dict[str, Any]:
    """Return what a record measured, by name and unit; what it did not measure is left out."""
    rank0, numbers = record.rank0, record.numbers
    assert rank0 is not None
    figures: dict[str, Any] = {
        "samples/s": numbers.get(RATE),
        "step ms": numbers.get("step_time_p50_ms"),
        rank0.target.name: numbers.get(final_name(rank0.target.name)),
        "MFU": numbers.get("mfu"),
        "MFU of the measured peak": numbers.get("mfu_measured"),
        "compile s": record.phases.get("compile"),
        "lowest clock MHz": numbers.get("gpu_sm_clock_lowest_mhz"),
        "highest clock MHz": numbers.get("gpu_sm_clock_highest_mhz"),
    }
    for name, amount in record.numbers.items():
        if name.startswith("memory_"):
            figures[name] = amount
    return {name: value for name, value in figures.items() if value is not None}


def race(
    folder: Path, device: Device, workload: str, against: str, axes: Mapping[str, Any], windows: int
) -> Figures:
    """Race the harness's loop against the bare one or the textbook's; raise if losses differ."""
    torch.set_num_threads(1)
    on = choose_device(device, SINGLE_RANK)
    cell = make_cell(workload, PLANNED_STEPS, {"batch_size": BATCH_SIZE, **axes})
    trial = Trial(cell=cell, seed=0)
    trial_folder = folder / "trial0"
    trial_folder.mkdir(exist_ok=True)
    assignment = Assignment(trial=trial, base_folder=str(trial_folder), device=device)
    others: dict[str, Callable[[], Loop]] = {
        "bare": lambda: Bare(trial, load_workload(assignment), SINGLE_RANK, on),
        "textbook": lambda: Textbook(trial, load_workload(assignment), on),
    }
    loops = Race(
        {
            "harness": lambda: Harness(assignment, trial_folder, SINGLE_RANK, on),
            against: others[against],
        }
    )
    steps = loops.run(windows)
    if against == "bare":
        check_same_losses(loops.loops["harness"].losses, loops.loops["bare"].losses)
    seconds = loops.seconds["harness"]
    ratio = ratio_of(seconds, loops.seconds[against])
    return {
        f"harness : {against}": ratio.mean,
        "with its 95% interval": format_interval(ratio),
        "samples/s": steps * BATCH_SIZE / float(np.median(seconds)),
    }


def check_same_losses(losses: list[float], bare_losses: list[float]) -> None:
    """Raise RuntimeError if two loops that should train the same did not."""
    if len(losses) != len(bare_losses):
        raise RuntimeError(f"found {len(losses)} steps, of the bare loop {len(bare_losses)}")
    pairs = zip(losses[:COMPARED_STEPS], bare_losses[:COMPARED_STEPS], strict=True)
    for step, (loss, bare_loss) in enumerate(pairs):
        if not math.isclose(loss, bare_loss, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            raise RuntimeError(f"step {step}: loss {loss}, of the bare loop {bare_loss}")


def run_tests(folder: Path, device: Device) -> Figures:
    """Run the tests that are marked `gpu`, and those of NVML and telemetry; exit as pytest does."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", *BARE, *MARKS, *TESTS]
    exit_code = subprocess.run(command, check=False).returncode
    if exit_code:
        sys.exit(exit_code)
    return {}


def main() -> None:
    """Do a task; leave its figures, and print them."""
    folder, device, task, keywords = sys.argv[1:]
    figures = globals()[task](Path(folder), device, **json.loads(keywords))
    print(json.dumps(figures))
    (Path(folder) / FIGURES).write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
