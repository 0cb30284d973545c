"""Whatever single field of the conditions changes, it alone is named, and as the likeliest cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    torch_build="a" * 64,
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


def with_environment(record: Record, environment: Environment) -> Record:
    return replace(record, environment=environment)


CELL = make_cell(strategy="ddp", world_size=2)
CODE = {"spiral.py": "1" * 64, "layers.py": "2" * 64}
BASE = with_environment(
    replace(make_record(replace(CELL, workload=replace(CELL.workload, code=CODE))), settings=RUN),
    ENVIRONMENT,
)


def environment(**changes: Any) -> Callable[[Record], Record]:
    return lambda record: with_environment(record, replace(ENVIRONMENT, **changes))


def part(name: str, **changes: Any) -> Callable[[Record], Record]:
    """Change one part of the environment."""
    changed = replace(getattr(ENVIRONMENT, name), **changes)
    return environment(**{name: changed})


def variables(**changes: str) -> Callable[[Record], Record]:
    return environment(variables={**ENVIRONMENT.variables, **changes})


def cell(**changes: Any) -> Callable[[Record], Record]:
    def change(record: Record) -> Record:
        trial = record.trial
        return replace(record, trial=replace(trial, cell=replace(trial.cell, **changes)))

    return change


def axes(**changes: Any) -> Callable[[Record], Record]:
    return cell(axes=replace(CELL.axes, **changes))


def workload(**changes: Any) -> Callable[[Record], Record]:
    return cell(workload=replace(BASE.trial.cell.workload, **changes))


def identity(**changes: Any) -> Callable[[Record], Record]:
    return workload(identity={**CELL.workload.identity, **changes})


def seed(record: Record) -> Record:
    return replace(record, trial=replace(record.trial, seed=7))


MUTANTS: Mapping[str, Callable[[Record], Record]] = {
    "seed": seed,
    "axes.precision": axes(precision="bf16"),
    "axes.batch_size": axes(batch_size=128),
    "axes.world_size": axes(world_size=4),
    "axes.num_threads": axes(num_threads=2),
    "axes.ddp.bucket_cap_mb": axes(ddp_bucket_cap_mb=1.0),
    "length": cell(length=Length(epochs=3)),
    "evaluate": cell(evaluate=Length(steps=5)),
    "warmup": cell(warmup=3),
    "options.dropout": identity(
        settings={**CELL.workload.identity["settings"], "options.dropout": 0.3}
    ),
    "data.path": identity(files={"data.path": "9" * 64}),
    "code.files.spiral.py": workload(code={**CODE, "spiral.py": "3" * 64}),
    "software.torch": part("software", torch="2.13.0+cu128"),
    "software.torch_build": part("software", torch_build="b" * 64),
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


@pytest.mark.parametrize("field", MUTANTS)
def test_a_single_changed_field_is_the_difference_and_the_cause(field: str) -> None:
    found = differences(fields_of_record(BASE), fields_of_record(MUTANTS[field](BASE)))
    assert [entry.field for entry in found] == [field]
    cause = most_likely_cause(found, FIRST)
    assert cause is not None
    assert cause.field == field


def test_where_code_lies_is_no_condition() -> None:
    moved = variables(PYTHONPATH="/elsewhere", TORCHELASTIC_RUN_ID="7")(BASE)
    elsewhere = replace(RUN, sweep_file="/x/sweep.yaml", base_folder="/x")
    moved = replace(moved, settings=elsewhere)
    assert differences(fields_of_record(BASE), fields_of_record(moved)) == []


@pytest.mark.parametrize("field", MUTANTS)
def test_only_what_changes_rounding_errors_leaves_the_computation_as_it_is(field: str) -> None:
    entries = differences(fields_of_record(BASE), fields_of_record(MUTANTS[field](BASE)))
    section = field.partition(".")[0]
    of_environment = {"software", "settings", "variables", "hardware", "repository"}
    expected = section in of_environment or field in (
        "harness.commit", "harness.dirty", "installed"
    )  # fmt: skip
    is_read_by_workload = field == "variables.OWN_LR"
    expected = expected and not is_read_by_workload
    assert is_same_computation(entries) is expected


@pytest.mark.parametrize(
    ("field", "decides_kernels"),
    [
        ("software.torch", True),
        ("settings.threads", True),
        ("settings.cpu_capability", True),
        ("hardware.cpu", True),
        ("hardware.cpu_flags", True),
        ("hardware.gpus", True),
        ("variables.ATEN_CPU_CAPABILITY", True),
        ("variables.MKL_NUM_THREADS", True),
        ("variables.MKL_VERBOSE", False),
        ("variables.MALLOC_ARENA_MAX", False),
        ("variables.PYTHONHASHSEED", False),
        ("variables.OWN_LR", False),
        ("software.platform", False),
        ("software.python", False),
        ("software.packages.scipy", False),
        ("hardware.usable_cores", False),
    ],
)
def test_only_fields_that_choose_kernels_let_them_round_otherwise(
    field: str, decides_kernels: bool
) -> None:
    assert has_other_kernels([Difference(field, "a", "b")]) is decides_kernels
