"""Every field that may explain another result is compared, the likeliest cause first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.records.code import Code, Repository
from harness.records.differences import (
    Difference,
    Value,
    differences,
    environment_fields,
    record_fields,
    trial_fields,
)
from harness.records.environment import Gpu, Hardware, Software, TorchSettings
from harness.records.record import Record
from harness.sweep.cell import Length
from tests.factories import ENVIRONMENT, make_record

SOFTWARE = Software(python="3.11.7", torch="2.13.0", packages={"numpy": "2.1.0"})
SETTINGS = TorchSettings(
    threads=1,
    interop_threads=1,
    float32_matmul_precision="highest",
    deterministic_algorithms=False,
    cpu_capability="AVX2",
)
BASE = replace(ENVIRONMENT, software=SOFTWARE, settings=SETTINGS, installed="a" * 64)


@pytest.mark.parametrize(
    ("changes", "field", "a", "b"),
    [
        ({"software": replace(SOFTWARE, packages={"numpy": "2.2.0"})},
         "software.packages.numpy", "2.1.0", "2.2.0"),
        ({"software": replace(SOFTWARE, packages={})}, "software.packages.numpy", "2.1.0", None),
        ({"software": replace(SOFTWARE, torch="2.12.0")}, "software.torch", "2.13.0", "2.12.0"),
        ({"settings": replace(SETTINGS, threads=2)}, "settings.threads", 1, 2),
        ({"settings": replace(SETTINGS, cpu_capability="DEFAULT")},
         "settings.cpu_capability", "AVX2", "DEFAULT"),
        ({"settings": replace(SETTINGS, deterministic_algorithms=True)},
         "settings.deterministic_algorithms", False, True),
        ({"variables": {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"}},
         "variables.ATEN_CPU_CAPABILITY", None, "default"),
        ({"hardware": replace(ENVIRONMENT.hardware, cpu="Other")}, "hardware.cpu", "Test CPU", "Other"),
        ({"hardware": replace(ENVIRONMENT.hardware, gpus=[Gpu(name="H100"), Gpu(name="H100")])},
         "hardware.gpus", None, "H100, H100"),
        ({"code": Code(version="0.1.0", commit="c0ffee" * 6 + "c0ff", dirty=True)},
         "harness.dirty", False, True),
        ({"repository": Repository(commit="d00d", dirty=None)}, "repository.commit", None, "d00d"),
        ({"installed": "b" * 64}, "installed", "a" * 64, "b" * 64),
        ({"dynamic_files": {"late.py": "c" * 64}}, "code.files.late.py", None, "c" * 64),
    ],
)  # fmt: skip
def test_a_changed_field_of_the_environment_is_the_difference(
    changes: dict[str, Any], field: str, a: Value, b: Value
) -> None:
    assert differences(environment_fields(BASE), environment_fields(replace(BASE, **changes))) == [
        Difference(field, a, b)
    ]


def test_what_differs_at_every_trial_is_no_difference() -> None:
    job = {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "x", "TORCHINDUCTOR_CACHE_DIR": "/tmp/1"}
    other = replace(BASE, variables={**BASE.variables, **job})
    assert differences(environment_fields(BASE), environment_fields(other)) == []


def with_cell(record: Record, **changes: Any) -> Record:
    cell = replace(record.trial.cell, **changes)
    return replace(record, trial=replace(record.trial, cell=cell))


def test_what_a_trial_was_to_compute_is_compared() -> None:
    record = make_record()
    cell = record.trial.cell
    ran = {"spiral.py": "a" * 64, "layers.py": "b" * 64}
    edited = {"spiral.py": "c" * 64, "layers.py": "b" * 64}
    identity = {
        **cell.workload.identity,
        "files": {"data.path": "d" * 64},
        "settings": {**cell.workload.identity["settings"], "options.dropout": 0.5},
    }
    a = with_cell(record, workload=replace(cell.workload, code=ran))
    b = with_cell(
        record,
        workload=replace(cell.workload, code=edited, identity=identity),
        axes=replace(cell.axes, precision="bf16"),
        length=Length(epochs=1),
    )
    b = replace(b, trial=replace(b.trial, seed=3))
    assert [
        difference.field for difference in differences(trial_fields(a.trial), trial_fields(b.trial))
    ] == [
        "seed",
        "code.files.spiral.py",
        "data.path",
        "options.dropout",
        "length",
        "axes.precision",
    ]
    assert differences(record_fields(a), record_fields(a)) == []
    code = differences(record_fields(a), record_fields(b))[1]
    assert str(code) == f"code.files.spiral.py: {'a' * 12} and {'c' * 12}"


def test_likely_causes_come_before_what_seldom_matters() -> None:
    other = replace(
        BASE,
        software=replace(SOFTWARE, python="3.12.1", torch="2.12.0", packages={"numpy": "2.2.0"}),
        hardware=Hardware(cpu="Other", cores=2, usable_cores=2),
        variables={"OMP_NUM_THREADS": "1", "MKL_CBWR": "AVX2"},
        mlflow="3.2.0",
    )
    assert [
        difference.field
        for difference in differences(environment_fields(BASE), environment_fields(other))
    ] == [
        "software.torch",
        "variables.MKL_CBWR",
        "hardware.cpu",
        "mlflow",
        "software.packages.numpy",
        "software.python",
    ]
