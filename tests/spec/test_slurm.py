"""The Slurm section of a profile: what it may say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.core.errors import BadInput
from harness.spec import cluster
from harness.spec.cluster import Profile
from harness.spec.slurm import SlurmOptions, time_limit
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
            "  partitoin: gpu\n",
            "p.yaml:3: slurm.partitoin: unknown key; did you mean 'partition'? allowed: account, ",
        ),
        ("  nodes: 0\n", "p.yaml:3: slurm.nodes: found 0; allowed: at least 1"),
        ("  gpus_per_rank: 2\n", "p.yaml:3: slurm.gpus_per_rank: found 2; allowed: at most 1"),
        ("  time: 1.5\n", "p.yaml:3: slurm.time: found 1.5; allowed: text"),
        ("  time: 0\n", "p.yaml:2: slurm: time: found '0'; allowed: a limit such as 90 (minutes)"),
        (
            "  time: soon\n",
            "p.yaml:2: slurm: time: found 'soon'; allowed: a limit such as 90 (minutes), 1:30:00",
        ),
        ("  time: 1:00\n", "p.yaml:2: slurm: warning: found 90 s; allowed: less than `time`, 60 s"),
        (
            "  memory: 64GB\n",
            "p.yaml:2: slurm: memory: found '64GB'; allowed: a whole number with K, M, G or T",
        ),
        (
            "  gpu_type: h100\n",
            "p.yaml:2: slurm: gpu_type: found without GPUs; allowed: with gpus_per_rank 1",
        ),
        (
            "  shared_folder: scratch\n",
            "p.yaml:2: slurm: shared_folder: found 'scratch'; allowed: a path that begins",
        ),
        (
            "  setup: module load cuda\n",
            'p.yaml:3: slurm.setup: found "module load cuda"; allowed: a list',
        ),
        (
            "  options: {mem: 3G}\n",
            "p.yaml:2: slurm: options.mem: found '3G'; allowed: the profile's key `memory`",
        ),
        (
            "  options: {output: x}\n",
            "p.yaml:2: slurm: options.output: found 'x'; allowed: nothing, the harness",
        ),
        (
            "  options: {--x: y}\n",
            "p.yaml:2: slurm: options: found the name '--x'; allowed: a long option of sbatch",
        ),
        ("  options: {nice: 3}\n", "p.yaml:3: slurm.options.nice: found 3; allowed: text"),
    ],
)
def test_mistakes(text: str, line: str) -> None:
    assert refused(text).startswith(line)


@pytest.mark.parametrize(
    "key", ["partition", "account", "qos", "constraint", "gpu_type", "python", "interface"]
)
@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "a\x1bb", "a\u2028b"])
def test_no_value_holds_a_line_break_or_a_control_character(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{key}: found .*allowed: one line of text"):
        SlurmOptions(**{key: value, "gpus_per_rank": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [{"setup": ("a", "b\nc")}, {"prefix": ("a\nb",)}, {"options": {"comment": "a\nb"}}],
    ids=str,
)
def test_nor_does_a_value_in_a_list(values: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ValueError, match="allowed: one line of text"):
        SlurmOptions(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values", [{"partition": "a\\b"}, {"options": {"comment": "a\\b"}}], ids=str
)
def test_nor_a_backslash_that_sbatch_would_swallow(values: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="allowed: text without backslashes"):
        SlurmOptions(**values)  # type: ignore[arg-type]


def test_hostile_text_is_kept_as_it_is() -> None:
    found = profile("  partition: \"a b; rm -rf $HOME 'x' é\"\n").slurm
    assert found.partition == "a b; rm -rf $HOME 'x' é"


@pytest.mark.parametrize("name", ["A B", "A=B", "", "1A", "A\n", "é"])
def test_a_variable_needs_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="environment: found the name"):
        Profile(environment={name: "x"})


def test_keys_of_another_launcher() -> None:
    with pytest.raises(ValueError, match="slurm: found with launcher torchrun"):
        Profile(slurm=SlurmOptions(nodes=2))
    with pytest.raises(ValueError, match="slots: found with launcher slurm"):
        Profile(launcher="slurm", slots=3)


@pytest.mark.parametrize(("device", "gpus"), [("cuda", 0), ("cpu", 1)])
def test_device_and_gpus_go_together(device: str, gpus: int) -> None:
    with pytest.raises(
        ValueError, match=f"gpus_per_rank: found {gpus} with device {device}; allowed: {1 - gpus}"
    ):
        Profile(launcher="slurm", device=device, slurm=SlurmOptions(gpus_per_rank=gpus))  # type: ignore[arg-type]


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


def test_results_lie_in_the_shared_folder(tmp_path: Path) -> None:
    shared = Profile(launcher="slurm", slurm=SlurmOptions(shared_folder=tmp_path / "shared"))
    cluster.check_shared_folder(shared, tmp_path / "shared" / "results")
    with pytest.raises(
        BadInput, match=r"--results: found .*/results; allowed: a folder in .*/shared"
    ):
        cluster.check_shared_folder(shared, tmp_path / "results")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("1:30:00", 5400),
        ("2-0", 172800),
        ("1-1:30", 91800),
        ("1-01:30:30", 91830),
    ],
)
def test_time_limits(text: str, seconds: int) -> None:
    assert time_limit(text) == seconds


@pytest.mark.parametrize(("time", "seconds"), [("90", 5400), ('"90"', 5400), ("1:30:00", 5400)])
def test_minutes_may_be_a_number(time: str, seconds: int) -> None:
    assert profile(f"  time: {time}\n").slurm.time_limit_seconds == seconds
