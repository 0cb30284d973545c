"""Environment variables as axes: where they may stand, what they decide, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.sweep import cluster
from harness.sweep.cell import axis_names
from harness.sweep.cluster import Profile
from harness.sweep.sweep import load_sweep
from tests.support.sweeps import load

ALGORITHM = "env.NCCL_ALGO"


def test_variables_combine_as_other_axes_do(tmp_path: Path) -> None:
    sweep = load(
        tmp_path,
        matrix={ALGORITHM: ["Ring", "Tree"], "num_threads": [1, 2]},
        zip=[{"env.OMP_PROC_BIND": ["close", None], "max_grad_norm": [1.0, None]}],
        exclude=[{ALGORITHM: "Tree", "num_threads": 2}],
        include=[{"env.MALLOC_ARENA_MAX": 1}],
    )
    levels = []
    for cell in sweep.cells:
        levels.append(
            (cell.level(ALGORITHM), cell.level("env.OMP_PROC_BIND"), cell.axes.num_threads)
        )
    ring = [("Ring", "close", 1), ("Ring", None, 1), ("Ring", "close", 2), ("Ring", None, 2)]
    assert levels == [*ring, ("Tree", "close", 1), ("Tree", None, 1), (None, None, 1)]
    assert sweep.cells[-1].level("env.MALLOC_ARENA_MAX") == "1"  # numbers become text
    assert all(cell.level("env.MALLOC_ARENA_MAX") is None for cell in sweep.cells[:-1])
    assert axis_names(sweep.cells)[-3:] == [ALGORITHM, "env.OMP_PROC_BIND", "env.MALLOC_ARENA_MAX"]
    excluded = sweep.excluded[0].axes
    assert (excluded["num_threads"], excluded[ALGORITHM]) == (2, "Tree")


def test_a_variable_decides_the_id_only_where_it_is_set(tmp_path: Path) -> None:
    (plain,) = load(tmp_path).cells
    unset, ring, tree = load(tmp_path, matrix={ALGORITHM: [None, "Ring", "Tree"]}).cells
    assert unset.id == plain.id
    assert len({plain.id, ring.id, tree.id}) == 3
    assert (unset.environment, ring.environment) == ({"NCCL_ALGO": None}, {"NCCL_ALGO": "Ring"})
    assert (unset.label, ring.label) == (plain.label, f"{plain.label} NCCL_ALGO=Ring")


def test_a_variable_of_one_workload_is_unset_for_the_others(tmp_path: Path) -> None:
    workloads = {"mlp": {"axes": {ALGORITHM: "Tree"}}, "cnn": {}}
    mlp, cnn = load(tmp_path, workloads).cells
    assert (mlp.environment, cnn.environment) == ({"NCCL_ALGO": "Tree"}, {"NCCL_ALGO": None})


@pytest.mark.parametrize(
    ("axis", "values", "problem"),
    [
        (
            "env.RANK",
            "[0]",
            "env.RANK[0]: found a variable that the harness or a launcher sets",
        ),
        ("env.OMP_NUM_THREADS", "[1, 2]", "a launcher sets"),
        ("env.SLURM_CPU_BIND", "[none]", "a launcher sets"),
        (
            "env.HF_TOKEN",
            "[a]",
            "speaks of a secret, and values are recorded; allowed: `env",
        ),
        ("env.A-B", "[a]", "found the name 'A-B'; allowed: letters, digits and _"),
        ("env.X", "[true]", "env.X[0]: found true; allowed: text or a whole number or null"),
        ("env.X", '["a\\nb"]', 'env.X[0]: found "a\\nb"; allowed: one line'),
        ("NCCL_ALGO", "[Ring]", "NCCL_ALGO[0]: unknown axis; did you mean 'env.NCCL_ALGO'?"),
    ],
)
def test_what_no_axis_can_set_is_refused(
    tmp_path: Path, axis: str, values: str, problem: str
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        f"name: demo\nworkloads: {{mlp: {{data: {{source: digits}}}}}}\nmatrix:\n  {axis}: {values}\n",
        encoding="utf-8",
    )
    with pytest.raises(BadInput) as refusal:
        load_sweep(path)
    assert str(refusal.value).startswith(f"{path}:4: matrix.{axis}")
    assert problem in str(refusal.value)


def test_a_variable_is_the_profiles_or_the_sweeps(tmp_path: Path) -> None:
    sweep = load(tmp_path, matrix={ALGORITHM: ["Tree"]})
    profile = Profile(environment={"NCCL_ALGO": "Ring"})
    message = "^mlp .*: env.NCCL_ALGO: found in the profile's environment too"
    with pytest.raises(BadInput, match=message):
        cluster.check_fits(profile, [sweep.cells[0]])
