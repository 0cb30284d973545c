"""The Slurm section of a profile: what it may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.errors import BadInput
from harness.sweep import cluster
from harness.sweep.cluster import Profile, SlurmOptions
from tests.factories import make_cell


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profile(text: str) -> Profile:
    """The profile with this `slurm` section, read from p.yaml."""
    Path("p.yaml").write_text(f"launcher: slurm\nslurm:\n{text}", encoding="utf-8")
    return cluster.load_profile("p.yaml")


def refused(text: str) -> str:
    with pytest.raises(BadInput) as caught:
        profile(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_template_spells_out_every_key() -> None:
    template = cluster.profile_paths()["slurm"]
    content = yaml.safe_load(template.read_text(encoding="utf-8"))
    assert set(content["slurm"]) == set(SlurmOptions.__dataclass_fields__)
    assert cluster.load_profile("slurm").slurm.max_ranks == 16


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "  cpus_per_rnk: 2\n",
            "p.yaml:3: slurm.cpus_per_rnk: unknown key; did you mean 'cpus_per_rank'? allowed: ",
        ),
        ("  nodes: 0\n", "p.yaml:3: slurm.nodes: found 0; allowed: at least 1"),
        (
            "  setup: module load cuda\n",
            'p.yaml:3: slurm.setup: found "module load cuda"; allowed: a list',
        ),
        (
            "  sbatch: {ntasks-per-node: 3}\n",
            "p.yaml:2: slurm: sbatch.ntasks-per-node: found 3; allowed: options that the harness",
        ),
    ],
)
def test_mistakes(text: str, line: str) -> None:
    assert refused(text).startswith(line)


@pytest.mark.parametrize(
    "values",
    [
        {"python": "a\nb"},
        {"sbatch": {"comment": "a\nb"}},
        {"sbatch": {"a\nb": True}},
    ],
    ids=str,
)
def test_no_value_holds_a_line_break(values: dict[str, Any]) -> None:
    assert "allowed: one line of text" in refused(f"  {json.dumps(values)}\n")


def test_options_of_sbatch_are_over_the_defaults_and_false_leaves_one_out() -> None:
    text = "  sbatch: {mem: 64G, exclusive: false, nice: 0, gpus-per-node: 'h100:8'}\n"
    assert profile(text).slurm.options == {
        "time": "01:00:00",
        "mem": "64G",
        "nice": 0,
        "gpus_per_node": "h100:8",
    }


@pytest.mark.parametrize("name", ["A B", "A=B", "", "1A", "A\n", "é"])
def test_a_variable_needs_a_name(name: str) -> None:
    text = json.dumps({"environment": {name: "x"}})
    Path("p.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=r"environment.*; allowed: letters, digits and _, no digit"):
        cluster.load_profile("p.yaml")


def test_keys_of_another_launcher() -> None:
    with pytest.raises(ValueError, match="slurm: found with launcher torchrun"):
        Profile(slurm=SlurmOptions(nodes=2))
    with pytest.raises(ValueError, match="slots or parallel: found with launcher slurm"):
        Profile(launcher="slurm", slots=3)


def test_a_job_holds_ranks_of_all_its_nodes() -> None:
    nodes = Profile(launcher="slurm", slurm=SlurmOptions(nodes=2, ranks_per_node=4))
    cluster.check_fits(nodes, [make_cell(strategy="ddp", world_size=8)])
    with pytest.raises(
        BadInput, match=r"found 9; allowed: at most 8, the profile's `slurm.nodes` times"
    ):
        cluster.check_fits(nodes, [make_cell(strategy="ddp", world_size=9)])


def test_gpus_are_those_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "count_gpus", lambda variables: 0)
    needy = [make_cell(precision="tf32")]
    cluster.check_fits(Profile(launcher="slurm", slurm=SlurmOptions(gpus_per_rank=1)), needy)
    with pytest.raises(BadInput, match="needed: a GPU"):
        cluster.check_fits(Profile(launcher="slurm"), needy)
