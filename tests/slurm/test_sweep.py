"""A real Slurm of two nodes: sweeps are submitted, watched and collected, with the bits of a local run, and
`harness doctor` examines it. No name or value is changed on its way, or expanded by a shell.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.paths import Results, SweepFolder
from harness.records.record import Record
from harness.slurm import doctor as doctor_room
from harness.slurm.submission import JobArray, Submission
from harness.slurm.submit import array_executor, call_sbatch
from harness.sweep.cluster import Profile, SlurmOptions
from tests.slurm.cluster import Slurm
from tests.slurm.sweeps import (
    Undisturbed,
    random_sweep,
    read_records,
    submit,
    trial_rows,
    wait_for_records,
)
from tests.support.commands import harness
from tests.support.running import USER_SCRIPTS, line_sweep, wait_until
from tests.support.stacks import PACKAGE, container, make_environment
from tests.support.sweeps import load

pytestmark = [pytest.mark.slurm, pytest.mark.distributed, pytest.mark.timeout(2400)]

DDP = {"strategy": "ddp", "world_size": 2}
HOSTILE = """it's; $(touch made) `touch made` "é" #SBATCH & | > made *"""
SHELL = {
    "SBATCH_PARTITION": "no-such-partition",
    "SBATCH_TIMELIMIT": "1",
    "SBATCH_NO_REQUEUE": "1",
    "SLURM_MEM_PER_CPU": "1",
    "SLURM_NTASKS": "17",
    "SLURM_DISTRIBUTION": "arbitrary",
    "SLURM_HINT": "compute_bound",
    "SRUN_CPUS_PER_TASK": "64",
}


def slurm_variables(record: Record) -> dict[str, str]:
    """Return the environment variables of rank 0."""
    assert record.environment is not None
    return dict(record.environment.variables)


def packages_of(record: Record, results: Path) -> str:
    """Return the packages of the interpreter that rank 0 ran under."""
    assert record.environment is not None
    installed = str(record.environment.installed)
    return Results(results).sweep_folder(record.sweep).packages_path(installed).read_text()


def trials_in_mlflow(results: Path) -> list[str]:
    """Return the ids of the trials that were delivered."""
    with closing(sqlite3.connect(results / "mlflow.db")) as database:
        rows = database.execute("select value from tags where key = 'harness.trial'")
        return sorted(value for (value,) in rows)


def test_a_sweep_over_two_nodes_equals_a_local_run(
    slurm: Slurm, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A step of a job on both nodes, under another interpreter, in a folder with a hostile name."""
    stack = {"python": str(make_environment(tmp_path / "env", "2.0"))}
    sweep = random_sweep(tmp_path, strategies=["fsdp2"], step_seconds=0.0, stack=stack)
    results = tmp_path / 'the re\'s; "$(touch pwned)"\nü'
    submit(sweep, results)
    watched = harness("status", "line", "--results", str(results), "--watch")
    assert watched.code == 0
    assert "1 done" in watched.out

    ((trial_id, record),) = wait_for_records(results, undisturbed).items()
    assert trials_in_mlflow(results) == [trial_id]
    assert record.attempt == 1
    assert slurm_variables(record)["SLURM_STEP_NODELIST"] == "n[1-2]"
    assert f"{PACKAGE}==2.0\n" in packages_of(record, results)
    assert not (tmp_path / "pwned").exists()
    assert not Path("pwned").exists()


def test_values_that_a_shell_would_expand(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment of sbatch, a folder, and a prefix, for a job that runs a single command."""
    monkeypatch.chdir(tmp_path)
    folder = SweepFolder(tmp_path / HOSTILE)
    array = JobArray(nodes=1, ranks_per_node=1, trial_ids=[[]])
    prefix = ("env", f"A={HOSTILE} \\ ")
    options = SlurmOptions(sbatch={"comment": HOSTILE, "exclusive": False}, prefix=prefix)
    submission = Submission(
        sweep=load(tmp_path, name="hostile"),
        profile=Profile(launcher="slurm", device="cpu", slurm=options),
        arrays=[array],
    )
    executor = array_executor(folder, submission, 0)
    call_sbatch(executor, "exec touch proof")
    assert slurm.run("squeue", "--noheader", "--format=%k") == HOSTILE
    wait_until((tmp_path / "proof").exists)
    wait_until(lambda: not slurm.run("squeue", "-h"))
    assert not (tmp_path / "made").exists()


@pytest.mark.nightly
def test_a_sweep_whose_names_are_all_hostile_from_a_shell_with_options_of_its_own(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of the folder of a sweep, an account, an environment variable.

    The job also writes records as the user's umask has it, although its own files are private.
    """
    monkeypatch.chdir(tmp_path)
    for variable, value in SHELL.items():
        monkeypatch.setenv(variable, value)
    folder = tmp_path / HOSTILE
    folder.mkdir()
    sweep = line_sweep(folder, {"line": {}}, length={"steps": 4})
    profile = folder / "p.yaml"
    content: dict[str, Any] = {
        "launcher": "slurm",
        "device": "cpu",
        "environment": {"CUDA_CACHE_PATH": HOSTILE},
        "slurm": {
            "setup": ["# it's", "scontrol show job $SLURM_JOB_ID"],
            "prefix": ["env", f"A={HOSTILE}"],
            "sbatch": {"account": HOSTILE, "time": "10", "exclusive": False},
        },
    }
    profile.write_text(yaml.safe_dump(content), encoding="utf-8")
    results = folder / "results"
    submission = ["submit", str(sweep), "--cluster", str(profile), "--results", str(results)]
    previous_umask = os.umask(0o027)
    try:
        ended = harness(*submission)
    finally:
        os.umask(previous_umask)
    assert (ended.code, ended.err) == (0, "")
    # Slurm spells accounts in lower case.
    assert slurm.run("squeue", "--noheader", "--format=%a") == HOSTILE.lower()
    wait_until(lambda: trial_rows(results)[0]["state"] not in ("queued", "running"))
    ((trial_id, record),) = read_records(results).items()
    assert record.status == "done"
    assert record.environment is not None
    variables = record.environment.variables
    assert variables["CUDA_CACHE_PATH"] == HOSTILE
    assert SHELL.keys() & variables.keys() <= {"SLURM_NTASKS", "SLURM_DISTRIBUTION"}
    (job_log,) = results.glob("runs/*/jobs/*/*.log")
    job = job_log.read_text(encoding="utf-8")
    assert "TimeLimit=00:10:00" in job
    assert "Requeue=1" in job
    (trial_logs,) = results.glob(f"runs/*/{trial_id}/attempt-1/logs")
    assert stat.S_IMODE(trial_logs.stat().st_mode) == 0o750
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.nightly
def test_a_failed_rank_is_named_and_stops_no_other_trial(slurm: Slurm, tmp_path: Path) -> None:
    """The trial that hangs until its time is over does so in a job next to that of the others.

    Of those, each is a step of its own.
    """
    failing: dict[str, dict[str, Any]] = {
        "well": {"axes": DDP},
        "killed": {"options": {"kill_at": 5, "rank": 1}, "axes": DDP},
        "fine": {"axes": {"stack": "boxed"}},
    }
    box = {"prefix": container(), "python": str(make_environment(tmp_path / "box", "3.0"))}
    hanging = {"hangs": {"options": {"hang_at": 5, "rank": 1}, "axes": DDP}}
    results = tmp_path / "results"
    for name, variants, timeout in (("hanging", hanging, 30), ("failing", failing, 300)):
        folder = tmp_path / name
        folder.mkdir()
        length = {"steps": 10}
        sweep = line_sweep(
            folder,
            variants,
            name=name,
            length=length,
            timeout=timeout,
            stacks={"boxed": box},
        )
        submit(sweep, results)
    assert harness("status", "--watch", "--results", str(results)).code == 1
    records = {}
    for name in ("hanging", "failing"):
        for record in read_records(results, name).values():
            records[record.trial.cell.workload.label] = record

    assert [records[name].status for name in ("well", "fine")] == ["done", "done"]
    # Of a rank that was killed, no record has the variables. It was in the second step.
    steps = [slurm_variables(records[name])["SLURM_STEP_ID"] for name in ("well", "fine")]
    assert steps == ["0", "2"]
    fine = slurm_variables(records["fine"])
    assert fine["SLURM_JOB_NODELIST"] == "n[1-2]"
    assert fine["SLURM_STEP_NODELIST"] == "n1"
    assert f"{PACKAGE}==3.0\n" in packages_of(records["fine"], results)
    assert PACKAGE not in packages_of(records["well"], results)
    killed = records["killed"].failure
    assert killed is not None
    assert (killed.kind, killed.rank, killed.host) == ("Killed", 1, "n2")
    hung = records["hangs"].failure
    assert hung is not None
    assert (hung.kind, hung.rank, hung.host) == ("Timeout", 1, "n2")


@pytest.mark.nightly
def test_a_script_has_its_ranks_on_two_nodes(slurm: Slurm, tmp_path: Path) -> None:
    shutil.copy(USER_SCRIPTS / "ddp.py", tmp_path)
    entry = {"uses": "ddp.py", "axes": {"world_size": 2}, "target": "accuracy"}
    sweep = line_sweep(tmp_path, {"ddp": entry})
    results = tmp_path / "results"
    submit(sweep, results)
    assert harness("status", "--watch", "--results", str(results)).code == 0
    (record,) = read_records(results).values()
    assert record.status == "done", record.failure
    assert [rank.host for rank in record.ranks] == ["n1", "n2"]
    assert sum(rank.samples_per_step or 0 for rank in record.ranks) == 32
    assert record.numbers["final_accuracy"] > 0.8


# `harness doctor`


def doctor(*arguments: str) -> tuple[int, dict[str, str], dict[str, str]]:
    """Run `harness doctor`: return its exit code, and the detail of each check that failed, and that passed."""
    ended = harness("doctor", "--json", *arguments)
    problems: dict[str, str] = {}
    passed: dict[str, str] = {}
    for check in json.loads(ended.out)["checks"]:
        details = passed if check["passed"] else problems
        details[check["name"]] = check["detail"]
    return ended.code, problems, passed


def cluster_profile(folder: Path, **slurm: Any) -> str:
    """Write a profile that has these keys in its section `slurm`, and return its path."""
    section = {"nodes": 2, "sbatch": {"exclusive": False}} | slurm
    content = {"launcher": "slurm", "device": "cpu", "slurm": section}
    profile = folder / "profile.yaml"
    profile.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(profile)


def test_this_machine_trains_and_nothing_stays(tmp_path: Path) -> None:
    results = tmp_path / "results"
    code, problems, passed = doctor("--results", str(results))
    assert (code, problems) == (0, {})
    assert passed["trial"].startswith("2 ranks (ddp), ")
    assert list(results.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.usefixtures("slurm")
def test_all_nodes_compute_the_same_bits(tmp_path: Path) -> None:
    results = tmp_path / 'it\'s; $HOME "é"'
    where = ("--cluster", cluster_profile(tmp_path), "--results", str(results))
    code, problems, passed = doctor("--all-nodes", *where)
    assert (code, problems) == (0, {})
    assert passed["n1"].startswith("1 ranks (single), ")
    assert passed["bits"] == "the same on 2 nodes"
    assert list(results.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.usefixtures("slurm")
def test_a_python_that_no_node_has_is_named_and_the_logs_stay(tmp_path: Path) -> None:
    profile = cluster_profile(tmp_path, python="/no/such/python")
    code, problems, _ = doctor("--cluster", profile, "--results", str(tmp_path / "results"))
    assert code == 1
    assert "/no/such/python: No such file or directory" in problems["trial"]
    assert Path(problems["logs"].removesuffix(" has them")).is_dir()


def test_what_slurm_refuses_is_named_and_a_job_that_does_not_start_is_cancelled(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--results", str(tmp_path / "results"), "--cluster")
    profile = cluster_profile(tmp_path, sbatch={"constraint": "h100"})
    code, problems, _ = doctor(*where, profile)
    assert code == 1
    assert "Invalid feature specification" in problems["job"]

    monkeypatch.setattr(doctor_room, "PATIENCE_SECONDS", 0.0)
    slurm.set_node("n2", "DRAIN")
    code, problems, _ = doctor(*where, cluster_profile(tmp_path))
    assert code == 1
    assert "queued" in problems["trial"]
    assert slurm.run("squeue", "-h", "--states=PENDING,RUNNING") == ""
