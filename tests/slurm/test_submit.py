"""Sweeps that are submitted to a fake Slurm, which writes down how it was called."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.paths import Results, SweepFolder
from harness.launch import srun
from harness.records.differences import run_settings
from harness.records.store import read_spec
from harness.slurm import submission as submissions
from harness.slurm.leader import DECIDED
from harness.slurm.submission import JobArray, Submission
from harness.slurm.submit import MAX_ARRAY_JOBS, pack
from harness.sweep.cell import Trial
from harness.sweep.cluster import SlurmOptions
from tests.factories import make_cell, make_record, write_trial
from tests.support.commands import CommandResult, harness
from tests.support.running import wait_until
from tests.support.slurm import FakeSlurm, install_fake_slurm
from tests.support.sweeps import load, write

HOSTILE = "a b'c\"d;e$(touch pwned)`touch pwned`ü"
STRATEGIES = [{"strategy": ["single", "ddp"], "world_size": [1, 2]}]
PHYSICS = {"time": 45, "account": "physics"}


class Demo:
    """The sweep `demo`, and the results folder that its jobs are to write to."""

    def __init__(self, path: Path, slurm: FakeSlurm) -> None:
        self.path, self.slurm = path, slurm
        self.results = Results(path / "results")

    @property
    def folder(self) -> SweepFolder:
        """Return the sweep's folder."""
        return self.results.sweep_folder("demo")

    def run(self, *arguments: str) -> CommandResult:
        """Run a command with these results."""
        return harness(*arguments, "--results", str(self.results.path))

    def submit(self, *more: str, slurm: dict[str, Any] | None = None, **keys: Any) -> CommandResult:
        """Submit the sweep with these keys, and a profile with those of its section `slurm`."""
        sweep, profile = write(self.path, **keys), self.path / "profile.yaml"
        content = {"launcher": "slurm", "device": "cpu", "slurm": {"nodes": 2, **(slurm or {})}}
        profile.write_text(yaml.safe_dump(content), encoding="utf-8")
        return self.run("submit", str(sweep), "--cluster", str(profile), *more)

    def submissions(self) -> list[Submission]:
        return submissions.read_all(self.folder)

    def queued(self, state: str = "PENDING") -> str:
        """Have every job of the sweep in the queue; returns what squeue prints."""
        lines = []
        for number, submission in enumerate(self.submissions()):
            for job in submission.jobs():
                job_id = f"{99 + 10 * number + int(job.name[-1])}_{job.index}"
                lines.append(f"{job_id}|{state}||{job.name}|Priority\n")
        self.slurm.set_queue("".join(lines))
        return "".join(lines)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A fake Slurm whose programs are on the PATH."""
    return install_fake_slurm(tmp_path / "bin", monkeypatch.setenv)


@pytest.fixture
def demo(tmp_path: Path, slurm: FakeSlurm) -> Demo:
    return Demo(tmp_path, slurm)


def test_a_thousand_trials_are_one_call_of_sbatch(demo: Demo) -> None:
    ended = demo.submit(zip=STRATEGIES, seeds=list(range(500)))
    assert (ended.code, ended.err) == (0, "")
    assert "1000 trials" in ended.out
    (script,) = demo.slurm.batch_scripts()
    assert "#SBATCH --array=0-15%16" in script
    (submission,) = demo.submissions()
    assert len(submission.arrays) == 1
    assert list(demo.results.path.rglob("*.pkl")) == [], "the job needs nothing but its script"

    # Of a large sweep, what went wrong is listed.
    demo.queued()
    (cell, _) = load(demo.path, zip=STRATEGIES).cells
    failed = make_record(cell, seed=3, status="failed", started=time.time())
    write_trial(demo.folder, failed)
    lines = demo.run("status", "demo").out.splitlines()
    assert len(lines) < 10
    assert any(f"{cell.id}-s3-r0" in line and "no such thing" in line for line in lines)


def test_submitting_twice_runs_nothing_twice(demo: Demo) -> None:
    """A trial that a job has is not submitted again; one whose job left no record is."""
    demo.submit(seeds=[0, 1, 2])
    demo.queued()
    assert "0 trials; 3 are in the queue already" in demo.submit(seeds=[0, 1, 2]).out
    assert "1 trial; 3 are in the queue already" in demo.submit(seeds=[0, 1, 2, 3]).out
    assert len(demo.slurm.batch_scripts()) == 2
    demo.slurm.set_queue("")  # all have ended without a record
    assert "4 trials" in demo.submit(seeds=[0, 1, 2, 3]).out


def test_finished_trials_are_not_submitted_and_failed_ones_are(demo: Demo) -> None:
    (cell,) = load(demo.path).cells
    for seed, status in enumerate(("done", "failed", "invalid")):
        record = make_record(cell, seed=seed, status=status)  # type: ignore[arg-type]
        write_trial(demo.folder, record)
    assert "3 trials; 1 are done" in demo.submit("--dry-run", seeds=[0, 1, 2, 3]).out
    demo.submit(seeds=[0, 1, 2, 3])
    (submission,) = demo.submissions()
    assert len(submission.trial_ids) == 3


def test_a_dry_run_shows_the_script_and_submits_nothing(demo: Demo) -> None:
    """The script that it shows is the one that a submission hands to sbatch."""
    keys: dict[str, Any] = {"seeds": [0, 1], "slurm": {"sbatch": PHYSICS}}
    dry_run = demo.submit("--dry-run", **keys)
    assert dry_run.code == 0
    for directive in ("account=physics", "time=45", "signal=B:USR2@90"):
        assert f"#SBATCH --{directive}" in dry_run.out
    assert demo.slurm.batch_scripts() == []
    assert not demo.folder.spec_path.exists()

    demo.submit(**keys)
    (submission,) = demo.submissions()
    scripts = dry_run.out[dry_run.out.index("#!/bin/bash") :], demo.slurm.batch_scripts()[0]
    day = submission.id[:8]  # begins the ids, which differ
    shown, submitted = (
        [line for line in script.strip().splitlines() if day not in line] for script in scripts
    )
    assert shown == submitted


def test_hostile_names_reach_no_shell(demo: Demo) -> None:
    """Each stays one argument of sbatch, or one word of the script."""
    demo.results = Results(demo.path / f"{HOSTILE}\nx")
    options = {"comment": HOSTILE, "account": HOSTILE, "contiguous": True}
    ended = demo.submit(slurm={"sbatch": options, "prefix": [HOSTILE]})
    assert (ended.code, ended.err) == (0, "")
    (script,) = demo.slurm.batch_scripts()
    directives = set()
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            directives.add(shlex.split(line)[1])
    assert {f"--account={HOSTILE}", f"--comment={HOSTILE}", "--contiguous"} <= directives
    # The job's leader stays out of a container.
    revival = shlex.split(script[script.rindex(f"\n{sys.executable} ") :])
    assert revival[1] == "-P"  # the user's folder, where sbatch was called, hides nothing
    (submission,) = demo.submissions()
    assert revival[-4:] == ["revive", str(demo.folder.path), submission.id, "0"]
    assert shlex.join(["lead", *revival[-3:]]) in script


def test_what_sbatch_refuses_is_reported_in_its_words(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trials were not submitted then, and can be submitted again."""
    monkeypatch.setenv("MAX_SBATCH_CALLS", "0")
    ended = demo.submit()
    assert ended.code == 1
    assert "QOSMaxSubmitJobPerUserLimit" in ended.err
    assert ended.err.count("\n") == 1
    assert "1 missing" in demo.run("status", "demo").out
    monkeypatch.delenv("MAX_SBATCH_CALLS")
    assert "1 trial" in demo.submit().out


def test_a_controller_that_is_away_is_waited_for(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it may have received without an answer is recognized by its name, and not submitted again."""
    assert demo.submit().code == 0
    demo.queued()
    (demo.slurm.folder / "squeue").write_text(
        '#!/bin/sh\ncd "${0%/*}"\n[ -e asked ] && exec cat queue\n'
        "touch asked; echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1\n"
    )
    monkeypatch.setattr(srun, "FIRST_PAUSE", 0.01)
    ended = demo.submit()
    assert ended.code == 0
    assert "0 trials; 1 are in the queue already" in ended.out
    assert ended.err.count("\n") == 1
    assert "asking again for 900 s" in ended.err


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_files_of_a_submission_are_private_whatever_the_umask(demo: Demo, umask: int) -> None:
    """Jobs run what submission.json says, which has the profile's variables in clear."""
    previous = os.umask(umask)
    try:
        assert demo.submit(seeds=[0, 1]).code == 0
        assert os.umask(umask) == umask
    finally:
        os.umask(previous)
    (submission,) = demo.submissions()
    folder = submissions.folder_of(demo.folder, submission.id)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}
    assert any(path.suffix == ".sh" for path in modes)
    readable = {path for path, mode in modes.items() if mode & 0o077 and not path.is_symlink()}
    assert readable == set()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # The job itself writes records as the user would.
    assert demo.slurm.variables("sbatch")["SLURM_UMASK"] == f"{umask:04o}"


def test_the_shells_variables_change_no_job(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a cancellation; where Slurm is, the shell still says."""
    shell = {
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_PARTITION": "tiny",
        "SLURM_MEM_PER_CPU": "1",
        "SRUN_CPUS_PER_TASK": "1",
        "SCANCEL_STATE": "PENDING",
    }
    for name, value in {**shell, "SLURM_CONF": "/etc/ours.conf", "MINE": "kept"}.items():
        monkeypatch.setenv(name, value)
    ended = demo.submit()
    assert "ignored: SBATCH_PARTITION, SBATCH_TIMELIMIT" in ended.out
    variables = demo.slurm.variables("sbatch")
    assert shell.keys() & variables.keys() == set()
    assert (variables["SLURM_CONF"], variables["MINE"]) == ("/etc/ours.conf", "kept")
    assert os.environ["SBATCH_TIMELIMIT"] == "1"
    demo.queued()
    demo.run("cancel", "demo")
    assert "SCANCEL_STATE" not in demo.slurm.variables("scancel")


def test_submission_of_somebody_else_is_named(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their jobs may be in the queue: the trials must not run twice."""
    demo.submit()
    file_stat = Path.stat

    def refused(path: Path, **options: bool) -> os.stat_result:
        if path.name == "submission.json":
            raise PermissionError(13, "Permission denied")
        return file_stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)
    ended = demo.submit()
    assert ended.code == 2
    assert "only the user who submitted it may read it" in ended.err


def test_status_of_all_sweeps_is_a_line_each_and_calls_squeue_once(demo: Demo) -> None:
    """The exit code is 1 because trials were lost."""
    for name in ("alpha", "beta"):
        demo.submit(name=name)
    calls_before = len(demo.slurm.calls("squeue"))
    ended = demo.run("status")
    assert (ended.code, len(ended.out.splitlines())) == (1, 2)
    assert "beta: 1 trial: 1 lost" in ended.out
    assert len(demo.slurm.calls("squeue")) == calls_before + 1
    without_sweep = demo.run("status", "--json")
    assert without_sweep.code == 2
    assert "SWEEP" in without_sweep.err


def test_cancel_is_one_call_of_scancel_and_makes_nothing_lost(demo: Demo) -> None:
    """A second call finds nothing to cancel."""
    demo.submit(seeds=[0, 1, 2])
    demo.queued()
    assert "3 jobs cancelled: 99_0, 99_1, 99_2" in demo.run("cancel", "demo").out
    assert demo.slurm.calls("scancel") == ["99_0 99_1 99_2"]
    demo.slurm.set_queue("")
    ended = demo.run("status", "demo")
    assert ended.code == 0
    assert "3 cancelled" in ended.out
    assert "0 jobs cancelled" in demo.run("cancel", "demo").out


def test_cancelled_trials_are_not_submitted_before_their_jobs_have_ended(demo: Demo) -> None:
    """Such a job runs no further trial, so that its trials must not count as in the queue."""
    demo.submit(seeds=[0, 1])
    demo.queued("RUNNING")
    demo.run("cancel", "demo")
    demo.queued("COMPLETING")
    ended = demo.submit(seeds=[0, 1])
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    cancelled = (
        "jobs 99_0, 99_1 in Slurm's queue were cancelled and have not ended yet; allowed: once they"
    )
    assert cancelled in ended.err
    assert "demo: 1 trial\n" in demo.submit(seeds=[7]).out
    demo.slurm.set_queue("")
    assert "2 trials" in demo.submit(seeds=[0, 1]).out


def test_status_has_of_earlier_cells_what_has_a_job(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that failed has another cell once its code is mended, and is never run again."""
    earlier, present = {"batch_size": [16, 64, 256]}, {"batch_size": [32]}
    demo.submit(matrix=earlier)
    cells = load(demo.path, matrix=earlier).cells
    write_trial(demo.folder, make_record(cells[0], started=time.time()))
    write_trial(demo.folder, make_record(cells[1], status="failed", started=time.time()))
    first_queue = demo.queued("RUNNING")
    demo.submit(matrix=present)
    (cell,) = load(demo.path, matrix=present).cells
    write_trial(demo.folder, make_record(cell, started=time.time()))

    demo.slurm.set_queue(first_queue)
    assert "4 trials: 2 done, 1 failed, 1 queued" in demo.run("status", "demo").out
    demo.slurm.set_queue("")
    ended = demo.run("status", "demo")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "demo: 1 trial: 1 done")
    monkeypatch.setenv("PATH", str(demo.path))
    assert "1 queued" in demo.run("status", "demo").out, "nobody knows whether its job exists"


def test_trials_are_not_added_to_those_that_jobs_have_with_another_profile(demo: Demo) -> None:
    """As they are not added to those that ran with another one; both remedies can be carried out."""
    demo.submit(seeds=[0], slurm={"cpus_per_rank": 3})
    demo.queued()
    refused = demo.submit(seeds=[0, 1], slurm={"cpus_per_rank": 2})
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "slurm.cpus_per_rank: found 2, recorded 3; allowed: once they have ended" in refused.err
    added = demo.submit(seeds=[0, 1], slurm={"cpus_per_rank": 3})
    assert "1 trial; 1 are in the queue already" in added.out

    demo.slurm.set_queue("")
    sweep = load(demo.path, seeds=[0])
    settings = run_settings(sweep, demo.submissions()[0].profile)
    write_trial(demo.folder, replace(make_record(sweep.cells[0]), settings=settings))
    refused = demo.submit(seeds=[0, 1], slurm={"cpus_per_rank": 2})
    assert refused.err.endswith("another --results\n"), "harness submit has no --force"


def test_a_sweep_that_jobs_may_be_running_is_neither_run_nor_removed_here(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.submit()
    demo.queued()
    run, remove = ("run", str(write(demo.path))), ("prune", "demo", "--whole", "--yes")
    ended = demo.run(*run)
    assert ended.code == 2
    assert "jobs 99_0 are running this sweep" in ended.err
    monkeypatch.setenv("PATH", str(demo.path))  # where nobody knows whether its jobs still exist
    for arguments in (remove, run):
        ended = demo.run(*arguments)
        assert ended.code == 2
        assert "its jobs may still have trials, and Slurm can't be asked here" in ended.err
        assert "squeue: No such file" in ended.err
    assert demo.folder.spec_path.exists()
    shutil.rmtree(demo.folder.jobs_path)
    assert demo.run(*remove).code == 0
    assert not demo.folder.path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["submit", "SWEEP", "--cluster", "local"],
            "--cluster local: launcher: found 'torchrun'; allowed: slurm",
        ),
        (["run", "SWEEP", "--cluster", "PROFILE"], "launcher: found 'slurm'; allowed: torchrun"),
        (
            ["submit", "SWEEP", "--cluster", "PROFILE", "--results", "100%j"],
            "allowed: for jobs, a path without %",
        ),
        (["status", "nothing"], "nothing: no records of such a sweep"),
        (["cancel", "nothing"], "nothing: no records of such a sweep"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    slurm: FakeSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "profile.yaml"
    profile.write_text("{launcher: slurm, device: cpu}", encoding="utf-8")
    paths = {"SWEEP": str(write(tmp_path)), "PROFILE": str(profile)}
    ended = harness(*(paths.get(argument, argument) for argument in arguments))
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert message in ended.err
    assert slurm.batch_scripts() == []


class TestTheEndOfABatchScript:
    """The shell that runs the leader, which a script in place of Python plays."""

    @pytest.fixture
    def setup(self) -> list[str]:
        """Return the lines of the profile's `setup`."""
        return []

    @pytest.fixture
    def script(self, setup: list[str], demo: Demo) -> Path:
        """A batch script whose leader does what the variable LEADER says, and is then revived."""
        python = demo.path / "python"
        python.write_text(
            f'#!/bin/bash\necho "$4" >>{demo.path}/actions\n[ "$4" = revive ] || eval "$LEADER"\n'
        )
        python.chmod(0o755)
        demo.submit(slurm={"python": str(python), "setup": setup})
        return demo.slurm.folder / "sbatch.1"

    def run(self, script: Path, leader: str) -> tuple[int, list[str], str]:
        """Run the script with a leader: return its exit code, what it ran, and the job's log."""
        environment = {**os.environ, "SLURM_JOB_ID": "71", "LEADER": leader}
        ended = subprocess.run(["bash", script], env=environment, check=False)
        folder = script.parent.parent
        (log,) = folder.rglob("0-0.log")
        actions = (folder / "actions").read_text().split()
        return ended.returncode, actions, log.read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        ("leader", "code", "actions"),
        [
            ("exit 0", 0, ["lead"]),
            (f"exit {DECIDED}", DECIDED, ["lead"]),  # that the job is over
            ("exit 1", 0, ["lead", "revive"]),  # it could not be imported
            ("kill -9 $$", 0, ["lead", "revive"]),
            ("sleep 0.3; kill -TERM $PPID; sleep 9", 143, ["lead"]),  # Slurm ends the job
        ],
    )
    def test_requeues_a_job_whose_leader_did_not_mean_to_end(
        self, script: Path, leader: str, code: int, actions: list[str]
    ) -> None:
        """Its log doesn't say of a process that was to get a signal that it is gone."""
        *found, log = self.run(script, leader)
        assert found == [code, actions]
        assert "No such process" not in log

    @pytest.mark.parametrize("setup", [["set -eu", "trap 'echo setup: scratch is removed' EXIT"]])
    @pytest.mark.parametrize(
        ("leader", "code", "actions"),
        [(f"exit {DECIDED}", DECIDED, ["lead"]), ("kill -9 $$", 0, ["lead", "revive"])],
    )
    def test_does_so_whatever_setup_sets_and_runs_what_it_traps_at_its_exit(
        self, script: Path, leader: str, code: int, actions: list[str]
    ) -> None:
        *found, log = self.run(script, leader)
        assert found == [code, actions]
        assert log.endswith("setup: scratch is removed\n")

    @pytest.mark.parametrize("setup", [[], ["set -eu"]])
    def test_passes_signals_on(self, script: Path, tmp_path: Path) -> None:
        """Slurm may send several; the leader handles them as long as it needs."""
        leader = (
            f"trap 'echo USR2 >>{tmp_path}/signals' USR2; touch {tmp_path}/ready;"
            f" until [ -e {tmp_path}/signals ]; do sleep 0.01; done; sleep 0.1; exit {DECIDED}"
        )
        # A trap can't be set for what is ignored when a shell starts, as it is for the leader, who
        # is no shell.
        leader = f"exec env --default-signal=USR2 bash -c {shlex.quote(leader)}"
        environment = {**os.environ, "SLURM_JOB_ID": "71", "LEADER": leader}
        with subprocess.Popen(["bash", script], env=environment) as process:
            wait_until((tmp_path / "ready").exists)
            process.send_signal(signal.SIGUSR2)
            assert process.wait(10) == DECIDED
        assert (tmp_path / "signals").read_text().split() == ["USR2"]


def test_what_was_submitted_last_is_in_charge_also_where_nothing_was_left_to_submit(
    demo: Demo,
) -> None:
    """An edit that is taken back leaves no trace in what `show`, the report and MLflow follow."""
    demo.submit()
    (as_first,) = read_spec(demo.folder).cells
    demo.submit(length={"steps": 99})
    demo.queued()
    assert "0 trials; 1 are in the queue already" in demo.submit().out
    assert [cell.id for cell in read_spec(demo.folder).cells] == [as_first.id]


def pack_blocks(world_sizes: Sequence[Sequence[int]], jobs: int, ranks: int) -> list[JobArray]:
    """Deal blocks, each with trials of these numbers of ranks, to jobs; a node has so many ranks."""
    cells = {size: make_cell(strategy="ddp", world_size=size) for size in set(chain(*world_sizes))}
    blocks = []
    for seed, sizes in enumerate(world_sizes):
        blocks.append([Trial(cell=cells[size], seed=seed) for size in sizes])
    arrays = pack(blocks, SlurmOptions(ranks_per_node=ranks, array_parallelism=jobs))
    dealt = chain.from_iterable(chain.from_iterable(array.trial_ids for array in arrays))
    assert sorted(dealt) == sorted(trial.id for block in blocks for trial in block)
    return arrays


@pytest.mark.parametrize(
    ("world_sizes", "ranks", "expected"),
    [
        ([[1, 2]], 1, [(2, 1, [2])]),  # a block stays together, on nodes for its largest trial
        ([[5]], 4, [(2, 4, [1])]),  # ranks fill a node before they use another
        ([[2]], 4, [(1, 2, [1])]),
        ([[2], [1]] * 4, 1, [(2, 1, [2, 1, 1]), (1, 1, [2, 1, 1])]),  # an array for each shape
        ([[1]] * 7, 1, [(1, 1, [3, 2, 2])]),  # as many jobs as may run at a time
    ],
)
def test_blocks_are_dealt_to_three_jobs_of_each_shape(
    world_sizes: Sequence[Sequence[int]], ranks: int, expected: list[tuple[int, int, list[int]]]
) -> None:
    found = []
    for array in pack_blocks(world_sizes, 3, ranks):
        found.append((array.nodes, array.ranks_per_node, list(map(len, array.trial_ids))))
    assert found == expected


def test_no_array_is_larger_than_slurm_allows() -> None:
    (array,) = pack_blocks([[1]] * (MAX_ARRAY_JOBS + 1), 2 * MAX_ARRAY_JOBS, 1)
    assert len(array.trial_ids) == MAX_ARRAY_JOBS
