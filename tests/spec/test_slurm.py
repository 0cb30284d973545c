"""The Slurm section of a profile: what it may say, and that it is held against what sinfo answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.core.errors import BadInput
from harness.spec import cluster, partitions
from harness.spec.cluster import Profile
from harness.spec.slurm import SlurmOptions, time_limit
from tests.factories import make_cell

SINFO = """\
gpu*|2-00:00:00|12|64|515000|gpu:h100:8(S:0-1)
gpu*|2-00:00:00|4|128|1031000|gpu:h100:4,gpu:mig:7
long|infinite|2|32|257000|(null)
short|30:00|3|32+|257000+|gpu:2
slurm_load_partitions: some warning
"""
KNOWN = partitions.parse_sinfo(SINFO)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, beside a cluster that doesn't answer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(partitions, "query", list)
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


@pytest.mark.parametrize(
    ("text", "mebibytes"), [("64G", 65536), ("2048K", 2), ("100", 100), ("1T", 1048576)]
)
def test_memory(text: str, mebibytes: int) -> None:
    assert SlurmOptions(memory=text).memory_mib == mebibytes


def test_sinfo_is_understood() -> None:
    gpu, long, short = KNOWN
    assert (gpu.name, gpu.default, gpu.time_limit_seconds) == ("gpu", True, 172800)
    assert [(one.count, one.cpus, one.memory_mib, one.gpus) for one in gpu.nodes] == [
        (12, 64, 515000, {"h100": 8}),
        (4, 128, 1031000, {"h100": 4, "mig": 7}),
    ]
    assert (long.time_limit_seconds, long.nodes[0].gpus) == (None, {})
    assert (short.time_limit_seconds, short.nodes[0].gpus, short.nodes[0].cpus) == (
        1800,
        {"": 2},
        32,
    )


@pytest.mark.parametrize(
    ("asked", "key", "line"),
    [
        (
            {"partition": "gqu"},
            "partition",
            "found 'gqu'; did you mean 'gpu'? allowed: gpu, long, short",
        ),
        ({"partition": "gpu,lnog"}, "partition", "found 'lnog'; did you mean 'long'?"),
        (
            {"time": "3-0"},
            "time",
            "found '3-0', 259200 s; allowed: at most 172800 s in partition gpu",
        ),
        (
            {"partition": "short"},
            "time",
            "found '01:00:00', 3600 s; allowed: at most 1800 s in partition short",
        ),
        (
            {"ranks_per_node": 8, "cpus_per_rank": 17},
            "cpus_per_rank",
            "found 17; allowed: at most 128 for the 8 ranks",
        ),
        (
            {"ranks_per_node": 16, "gpus_per_rank": 1},
            "gpus_per_rank",
            "found 1; allowed: at most 11 for the 16 ranks",
        ),
        (
            {"gpus_per_rank": 1, "gpu_type": "a100"},
            "gpu_type",
            "found 'a100'; did you mean 'h100'? allowed: h100, mig",
        ),
        ({"memory": "2T"}, "memory", "found '2T'; allowed: at most 1031000 MiB in partition gpu"),
        (
            {"nodes": 17},
            "nodes",
            "found 17; allowed: at most 16, which have what is asked for in partition gpu",
        ),
        (
            {"nodes": 5, "cpus_per_rank": 128},
            "nodes",
            "found 5; allowed: at most 4, which have what is asked for",
        ),
    ],
)
def test_what_the_cluster_cannot_do(asked: dict[str, str], key: str, line: str) -> None:
    mismatch = partitions.find_mismatch(SlurmOptions(**asked), KNOWN)  # type: ignore[arg-type]
    assert mismatch is not None
    assert mismatch.key == key
    assert mismatch.problem.startswith(line)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"nodes": 16, "time": "2-0"},
        {
            "nodes": 12,
            "ranks_per_node": 8,
            "gpus_per_rank": 1,
            "gpu_type": "h100",
            "memory": "500G",
        },
        {"partition": "long", "time": "30-0"},
        {"partition": "short,long", "time": "30-0"},
    ],
    ids=str,
)
def test_what_it_can(asked: dict[str, str]) -> None:
    assert partitions.find_mismatch(SlurmOptions(**asked), KNOWN) is None  # type: ignore[arg-type]


def test_a_cluster_without_a_default_needs_a_partition() -> None:
    gpu_only = partitions.parse_sinfo("gpu|1:00:00|1|1|1000|(null)\n")
    assert partitions.find_mismatch(SlurmOptions(), gpu_only) == partitions.Mismatch(
        key="partition", problem="found null, and the cluster has no default; allowed: gpu"
    )


def test_loading_asks_the_cluster_and_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "query", lambda: KNOWN)
    assert refused("  time: 1:00:00\n  nodes: 99\n") == (
        "p.yaml:4: slurm.nodes: found 99; allowed: at most 16, which have what is asked for in partition gpu"
    )


@pytest.mark.parametrize("script", ["exit 1", "sleep 60", None])
def test_a_cluster_that_does_not_answer_says_nothing(
    script: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(partitions, "TIMEOUT", 0.2)
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "sinfo").write_text(
            f"#!/bin/sh\necho 'gpu*|1:00|1|1|1|(null)'\nPATH=/bin:/usr/bin exec {script}\n"
        )
        (tmp_path / "sinfo").chmod(0o755)
    assert partitions.query() == []


@pytest.mark.parametrize(("time", "seconds"), [("90", 5400), ('"90"', 5400), ("1:30:00", 5400)])
def test_minutes_may_be_a_number(time: str, seconds: int) -> None:
    assert profile(f"  time: {time}\n").slurm.time_limit_seconds == seconds
