"""Whatever single field of the conditions changes, it alone is named, and as the likeliest cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.analysis.rungs import RerunDifference
from harness.records.differences import Difference, differences
from harness.records.environment import (
    Code,
    Environment,
    Hardware,
    Repository,
    Software,
    TorchSettings,
)
from harness.records.record import Record, RunSettings
from harness.reproduce.conditions import (
    fields_of_record,
    has_other_kernels,
    is_same_computation,
    most_likely_cause,
)
from harness.sweep.cell import Length
from tests.factories import make_cell, make_record

SOFTWARE = Software(
    python="3.11.7",
    torch="2.13.0+cpu",
    platform="Linux-6.1",
    packages={"numpy": "2.1.0", "scikit-learn": "1.7.0"},
)
SETTINGS = TorchSettings(
    threads=1,
    interop_threads=1,
    float32_matmul_precision="highest",
    deterministic_algorithms=False,
    cpu_capability="AVX2",
    mkldnn=True,
)
ENVIRONMENT = Environment(
    software=SOFTWARE,
    hardware=Hardware(cpu="Xeon", cpu_version="6.1.2", usable_cores=2, cpu_flags="avx2 fma"),
    settings=SETTINGS,
    variables={"OMP_NUM_THREADS": "1", "MKL_CBWR": "AVX2"},
    code=Code(version="0.1.0", commit="c" * 40, dirty=False, training="d" * 64),
    repository=Repository(commit="e" * 40, dirty=False),
    installed="f" * 64,
)
RUN = RunSettings(
    sweep_file="/repo/sweep.yaml", base_folder="/repo", checkpoint="none", timeout=60.0,
    launcher="torchrun", device="auto", forkserver=True, saves_at_intervals=False, environment={}, slurm={},
)  # fmt: skip


CELL = make_cell(strategy="ddp", world_size=2)
CODE = {"spiral.py": "1" * 64, "layers.py": "2" * 64}
BASE = replace(
    make_record(replace(CELL, workload=replace(CELL.workload, code=CODE))),
    settings=RUN,
    environment=ENVIRONMENT,
)


def environment(**changes: Any) -> Record:
    return replace(BASE, environment=replace(ENVIRONMENT, **changes))


def part(name: str, **changes: Any) -> Record:
    """Change one part of the environment."""
    return environment(**{name: replace(getattr(ENVIRONMENT, name), **changes)})


def variables(**changes: str) -> Record:
    return environment(variables={**ENVIRONMENT.variables, **changes})


def trial(**changes: Any) -> Record:
    return replace(BASE, trial=replace(BASE.trial, **changes))


def cell(**changes: Any) -> Record:
    return trial(cell=replace(BASE.trial.cell, **changes))


def axes(**changes: Any) -> Record:
    return cell(axes=replace(CELL.axes, **changes))


def workload(**changes: Any) -> Record:
    return cell(workload=replace(BASE.trial.cell.workload, **changes))


def identity(**changes: Any) -> Record:
    return workload(identity={**CELL.workload.identity, **changes})


MUTANTS: dict[str, Record] = {
    "seed": trial(seed=7),
    "axes.precision": axes(precision="bf16"),
    "axes.batch_size": axes(batch_size=128),
    "axes.world_size": axes(world_size=4),
    "axes.num_threads": axes(num_threads=2),
    "axes.ddp.bucket_cap_mb": axes(ddp_bucket_cap_mb=1.0),
    "length": cell(length=Length(epochs=3)),
    "evaluate": cell(evaluate=Length(steps=5)),
    "warmup": cell(warmup=3),
    "options.dropout": identity(settings={**CELL.workload.identity["settings"], "options.dropout": 0.3}),
    "data.path": identity(files={"data.path": "9" * 64}),
    "code.files.spiral.py": workload(code={**CODE, "spiral.py": "3" * 64}),
    "software.torch": part("software", torch="2.13.0+cu128"),
    "software.python": part("software", python="3.12.1"),
    "software.packages.numpy": part("software", packages={**SOFTWARE.packages, "numpy": "2.2.0"}),
    "software.packages.scikit-learn": part("software", packages={"numpy": "2.1.0"}),
    "settings.threads": part("settings", threads=2),
    "settings.interop_threads": part("settings", interop_threads=2),
    "settings.cpu_capability": part("settings", cpu_capability="DEFAULT"),
    "settings.mkldnn": part("settings", mkldnn=False),
    "settings.deterministic_algorithms": part("settings", deterministic_algorithms=True),
    "variables.ATEN_CPU_CAPABILITY": variables(ATEN_CPU_CAPABILITY="default"),
    "variables.MKL_CBWR": variables(MKL_CBWR="COMPATIBLE"),
    "variables.ONEDNN_MAX_CPU_ISA": variables(ONEDNN_MAX_CPU_ISA="SSE41"),
    "variables.CUBLAS_WORKSPACE_CONFIG": variables(CUBLAS_WORKSPACE_CONFIG=":4096:8"),
    "variables.NCCL_ALGO": variables(NCCL_ALGO="Ring"),
    "variables.OWN_LR": variables(OWN_LR="0.2"),
    "hardware.cpu": part("hardware", cpu="EPYC"),
    "hardware.cpu_version": part("hardware", cpu_version="25.1.1"),
    "hardware.cpu_flags": part("hardware", cpu_flags="avx2"),
    "hardware.usable_cores": part("hardware", usable_cores=1),
    "hardware.gpus": part("hardware", gpus=["H100"]),
    "harness.commit": part("code", commit="0" * 40),
    "harness.dirty": part("code", dirty=True),
    "harness.training": part("code", training="5" * 64),
    "repository.commit": part("repository", commit="1" * 40),
    "repository.diff": part("repository", diff="2" * 64),
    "installed": environment(installed="0" * 64),
    "code.files.late.py": environment(dynamic_files={"late.py": "7" * 64}),
}  # fmt: skip
FIRST = RerunDifference(subject="loss of rank 0", step=3, recorded="0.25", again="0.5")


# Of these sections, a change makes other rounding errors at most, if the workload does not read it.
ROUNDING = {"software", "settings", "variables", "hardware", "repository", "installed"}
SAME_COMPUTATION = {"harness.commit", "harness.dirty"}


@pytest.mark.parametrize("field", MUTANTS)
def test_a_single_changed_field_is_the_difference_and_the_cause(field: str) -> None:
    found = differences(fields_of_record(BASE), fields_of_record(MUTANTS[field]))
    assert [entry.field for entry in found] == [field]
    assert most_likely_cause(found, FIRST) == found[0]
    rounds = field.partition(".")[0] in ROUNDING and field != "variables.OWN_LR"
    assert is_same_computation(found) is (rounds or field in SAME_COMPUTATION)


def test_where_code_lies_is_no_condition() -> None:
    moved = variables(PYTHONPATH="/elsewhere", TORCHELASTIC_RUN_ID="7")
    elsewhere = replace(RUN, sweep_file="/x/sweep.yaml", base_folder="/x")
    moved = replace(moved, settings=elsewhere)
    assert differences(fields_of_record(BASE), fields_of_record(moved)) == []


KERNELS = [
    "software.torch", "settings.threads", "settings.cpu_capability", "hardware.cpu", "hardware.cpu_flags",
    "hardware.gpus", "variables.ATEN_CPU_CAPABILITY", "variables.MKL_NUM_THREADS",
]  # fmt: skip
NO_KERNELS = [
    "variables.MKL_VERBOSE", "variables.MALLOC_ARENA_MAX", "variables.PYTHONHASHSEED", "variables.OWN_LR",
    "software.platform", "software.python", "software.packages.scipy", "hardware.usable_cores",
]  # fmt: skip


@pytest.mark.parametrize("field", [*KERNELS, *NO_KERNELS])
def test_only_fields_that_choose_kernels_let_them_round_otherwise(field: str) -> None:
    assert has_other_kernels([Difference(field, "a", "b")]) is (field in KERNELS)
