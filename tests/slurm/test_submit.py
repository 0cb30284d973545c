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
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from harness.core.paths import Results
from harness.launch import srun
from harness.records.differences import run_settings
from harness.records.store import read_spec
from harness.slurm import submission as submissions
from harness.slurm.leader import DECIDED
from harness.slurm.submission import Submission
from tests.factories import make_record, write_trial
from tests.support.commands import CommandResult, harness
from tests.support.running import wait_until
from tests.support.slurm import FakeSlurm, install_fake_slurm
from tests.support.sweeps import load, write

HOSTILE = "a b'c\"d;e$(touch pwned)`touch pwned`ü"
STRATEGIES = [{"strategy": ["single", "ddp"], "world_size": [1, 2]}]


PHYSICS = {"time": 45, "account": "physics"}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A fake Slurm whose programs are on the PATH."""
    return install_fake_slurm(tmp_path / "bin", monkeypatch.setenv)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def submit(sweep: Path, results: Results, *more: str, **slurm: object) -> CommandResult:
    """Run `harness submit` with a profile that has these keys in its section `slurm`."""
    profile = sweep.parent / "profile.yaml"
    content = {"launcher": "slurm", "device": "cpu", "slurm": {"nodes": 2, **slurm}}
    profile.write_text(yaml.safe_dump(content), encoding="utf-8")
    return harness(
        "submit", str(sweep), "--cluster", str(profile), "--results", str(results.path), *more
    )


def status(results: Results, *arguments: str) -> CommandResult:
    """Run `harness status`."""
    return harness("status", *arguments, "--results", str(results.path))


def only_submission(results: Results, sweep: str = "demo") -> Submission:
    """Return the only submission of a sweep."""
    (submission,) = submissions.read_all(results.sweep_folder(sweep))
    return submission


def squeue_output(results: Results, sweep: str = "demo", state: str = "PENDING") -> str:
    """Return what squeue prints if every job of the sweep is in the queue."""
    lines = []
    for number, submission in enumerate(submissions.read_all(results.sweep_folder(sweep))):
        for job in submission.jobs():
            lines.append(
                f"{99 + 10 * number + int(job.name[-1])}_{job.index}|{state}||{job.name}|Priority\n"
            )
    return "".join(lines)


def test_a_thousand_trials_are_one_call_of_sbatch(
    slurm: FakeSlurm, results: Results, tmp_path: Path
) -> None:
    ended = submit(write(tmp_path, zip=STRATEGIES, seeds=list(range(500))), results)
    assert (ended.code, ended.err) == (0, "")
    assert "1000 trials" in ended.out
    (script,) = slurm.batch_scripts()
    assert "#SBATCH --array=0-15%16" in script
    assert len(only_submission(results).arrays) == 1
    assert list(results.path.rglob("*.pkl")) == [], "the job needs nothing but its script"


def test_submitting_twice_runs_nothing_twice(
    slurm: FakeSlurm, results: Results, tmp_path: Path
) -> None:
    """A trial that a job has is not submitted again; one whose job left no record is."""
    sweep = write(tmp_path, seeds=[0, 1, 2])
    submit(sweep, results)
    slurm.set_queue(squeue_output(results))
    assert "0 trials; 3 are in the queue already" in submit(sweep, results).out
    with_another_seed = submit(sweep, results, "--set", "seeds=0,1,2,3")
    assert "1 trial; 3 are in the queue already" in with_another_seed.out
    assert len(slurm.batch_scripts()) == 2
    slurm.set_queue("")  # all have ended without a record
    assert "4 trials" in submit(sweep, results, "--set", "seeds=0,1,2,3").out


def test_finished_trials_are_not_submitted_and_failed_ones_are(
    slurm: FakeSlurm, results: Results, tmp_path: Path
) -> None:
    (cell,) = load(tmp_path).cells
    for seed, trial_status in enumerate(("done", "failed", "invalid")):
        record = make_record(cell, seed=seed, status=trial_status)  # type: ignore[arg-type]
        write_trial(results.sweep_folder("demo"), record)
    sweep = write(tmp_path, seeds=[0, 1, 2, 3])
    assert "3 trials; 1 are done" in submit(sweep, results, "--dry-run").out
    submit(sweep, results)
    assert len(only_submission(results).trial_ids) == 3


def test_a_dry_run_shows_the_script_and_submits_nothing(
    slurm: FakeSlurm, results: Results, tmp_path: Path
) -> None:
    """The script that it shows is the one that a submission hands to sbatch."""
    sweep = write(tmp_path, seeds=[0, 1])
    dry_run = submit(sweep, results, "--dry-run", sbatch=PHYSICS)
    assert dry_run.code == 0
    assert "#SBATCH --account=physics" in dry_run.out
    assert "#SBATCH --time=45" in dry_run.out
    assert "#SBATCH --signal=B:USR2@90" in dry_run.out
    assert slurm.batch_scripts() == []
    assert not results.sweep_folder("demo").spec_path.exists()

    submit(sweep, results, sbatch=PHYSICS)
    shown = dry_run.out[dry_run.out.index("#!/bin/bash") :].strip().splitlines()
    submitted = slurm.batch_scripts()[0].strip().splitlines()
    day = only_submission(results).id[:8]  # begins the ids, which differ
    assert [line for line in shown if day not in line] == [
        line for line in submitted if day not in line
    ]


def test_hostile_names_reach_no_shell(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Each stays one argument of sbatch, or one word of the script."""
    results = Results(tmp_path / f"{HOSTILE}\nx")
    sweep = write(tmp_path)
    options = {"comment": HOSTILE, "account": HOSTILE, "contiguous": True}
    ended = submit(sweep, results, sbatch=options, prefix=[HOSTILE])
    assert (ended.code, ended.err) == (0, "")
    (script,) = slurm.batch_scripts()
    directives = set()
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            directives.add(shlex.split(line)[1])
    assert {f"--account={HOSTILE}", f"--comment={HOSTILE}", "--contiguous"} <= directives
    # The job's leader stays out of a container.
    revival = shlex.split(script[script.rindex(f"\n{sys.executable} ") :])
    assert revival[1] == "-P"  # the user's folder, where sbatch was called, hides nothing
    submission = only_submission(results)
    sweep_path = str(results.sweep_folder("demo").path)
    assert revival[-4:] == ["revive", sweep_path, submission.id, "0"]
    assert shlex.join(["lead", *revival[-3:]]) in script


def test_what_sbatch_refuses_is_reported_in_its_words(
    slurm: FakeSlurm, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trials were not submitted then, and can be submitted again."""
    monkeypatch.setenv("MAX_SBATCH_CALLS", "0")
    ended = submit(write(tmp_path), results)
    assert ended.code == 1
    assert "QOSMaxSubmitJobPerUserLimit" in ended.err
    assert ended.err.count("\n") == 1
    assert "1 missing" in status(results, "demo").out
    monkeypatch.delenv("MAX_SBATCH_CALLS")
    assert "1 trial" in submit(write(tmp_path), results).out


def test_a_controller_that_is_away_is_waited_for(
    slurm: FakeSlurm, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it may have received without an answer is recognized by its name, and not submitted again."""
    assert submit(write(tmp_path), results).code == 0
    slurm.set_queue(squeue_output(results))
    squeue = slurm.folder / "squeue"
    squeue.write_text(
        '#!/bin/sh\ncd "${0%/*}"\n[ -e asked ] && exec cat queue\n'
        "touch asked; echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1\n"
    )
    monkeypatch.setattr(srun, "FIRST_PAUSE", 0.01)
    ended = submit(write(tmp_path), results)
    assert ended.code == 0
    assert "0 trials; 1 are in the queue already" in ended.out
    assert ended.err.count("\n") == 1
    assert "asking again for 900 s" in ended.err


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_files_of_a_submission_are_private_whatever_the_umask(
    slurm: FakeSlurm, results: Results, tmp_path: Path, umask: int
) -> None:
    """Jobs run what submission.json says, which has the profile's variables in clear."""
    previous = os.umask(umask)
    try:
        assert submit(write(tmp_path, seeds=[0, 1]), results).code == 0
        assert os.umask(umask) == umask
    finally:
        os.umask(previous)
    folder = submissions.folder_of(results.sweep_folder("demo"), only_submission(results).id)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}
    assert any(path.suffix == ".sh" for path in modes)
    readable = {path for path, mode in modes.items() if mode & 0o077 and not path.is_symlink()}
    assert readable == set()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # The job itself writes records as the user would.
    assert slurm.variables("sbatch")["SLURM_UMASK"] == f"{umask:04o}"


def test_the_shells_variables_change_no_job(
    slurm: FakeSlurm, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a cancellation; where Slurm is, the shell still says."""
    shell = {
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_PARTITION": "tiny",
        "SBATCH_NO_REQUEUE": "1",
        "SLURM_MEM_PER_CPU": "1",
        "SRUN_CPUS_PER_TASK": "1",
        "SCANCEL_STATE": "PENDING",
    }
    for name, value in {**shell, "SLURM_CONF": "/etc/ours.conf", "MINE": "kept"}.items():
        monkeypatch.setenv(name, value)
    ended = submit(write(tmp_path), results)
    assert "ignored: SBATCH_NO_REQUEUE, SBATCH_PARTITION, SBATCH_TIMELIMIT" in ended.out
    variables = slurm.variables("sbatch")
    assert shell.keys() & variables.keys() == set()
    assert (variables["SLURM_CONF"], variables["MINE"]) == ("/etc/ours.conf", "kept")
    assert os.environ["SBATCH_TIMELIMIT"] == "1"
    slurm.set_queue(squeue_output(results))
    harness("cancel", "demo", "--results", str(results.path))
    assert "SCANCEL_STATE" not in slurm.variables("scancel")


def test_submission_of_somebody_else_is_named(
    slurm: FakeSlurm, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their jobs may be in the queue: the trials must not run twice."""
    submit(write(tmp_path), results)
    file_stat = Path.stat

    def refused(path: Path, **options: bool) -> os.stat_result:
        if path.name == "submission.json":
            raise PermissionError(13, "Permission denied")
        return file_stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)
    ended = submit(write(tmp_path), results)
    assert ended.code == 2
    assert "only the user who submitted it may read it" in ended.err


def test_status_of_all_sweeps_is_a_line_each_and_calls_squeue_once(
    slurm: FakeSlurm, results: Results, tmp_path: Path
) -> None:
    """The exit code is 1 because trials were lost."""
    for name in ("alpha", "beta"):
        (tmp_path / name).mkdir()
        submit(write(tmp_path / name, name=name), results)
    calls_before = len(slurm.calls("squeue"))
    ended = status(results)
    assert (ended.code, len(ended.out.splitlines())) == (1, 2)
    assert "beta: 1 trial: 1 lost" in ended.out
    assert len(slurm.calls("squeue")) == calls_before + 1
    without_sweep = status(results, "--json")
    assert without_sweep.code == 2
    assert "SWEEP" in without_sweep.err


def test_cancel_is_one_call_of_scancel_and_makes_nothing_lost(
    slurm: FakeSlurm, results: Results, tmp_path: Path
) -> None:
    """A second call finds nothing to cancel."""
    submit(write(tmp_path, seeds=[0, 1, 2]), results)
    slurm.set_queue(squeue_output(results))
    cancel = ("cancel", "demo", "--results", str(results.path))
    assert "3 jobs cancelled: 99_0, 99_1, 99_2" in harness(*cancel).out
    assert slurm.calls("scancel") == ["99_0 99_1 99_2"]
    slurm.set_queue("")
    ended = status(results, "demo")
    assert ended.code == 0
    assert "3 cancelled" in ended.out
    assert "0 jobs cancelled" in harness(*cancel).out


def test_cancelled_trials_are_not_submitted_before_their_jobs_have_ended(
    slurm: FakeSlurm, results: Results, tmp_path: Path
) -> None:
    """Such a job runs no further trial, so that its trials must not count as in the queue."""
    sweep = write(tmp_path, seeds=[0, 1])
    submit(sweep, results)
    slurm.set_queue(squeue_output(results, state="RUNNING"))
    harness("cancel", "demo", "--results", str(results.path))
    slurm.set_queue(squeue_output(results, state="COMPLETING"))
    ended = submit(sweep, results)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert (
        "jobs 99_0, 99_1 in Slurm's queue were cancelled and have not ended yet; allowed: once they"
        in ended.err
    )
    with_another_seed = submit(sweep, results, "--set", "seeds=[7]")
    assert "demo: 1 trial\n" in with_another_seed.out
    slurm.set_queue("")
    assert "2 trials" in submit(sweep, results).out


def test_status_has_of_earlier_cells_what_has_a_job(
    slurm: FakeSlurm, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that failed has another cell once its code is mended, and is never run again."""
    submit(write(tmp_path, matrix={"batch_size": [16, 64, 256]}), results)
    cells = load(tmp_path, matrix={"batch_size": [16, 64, 256]}).cells
    folder = results.sweep_folder("demo")
    write_trial(folder, make_record(cells[0], started=time.time()))
    write_trial(folder, make_record(cells[1], status="failed", started=time.time()))
    first_queue = squeue_output(results, state="RUNNING")
    submit(write(tmp_path, matrix={"batch_size": [32]}), results)
    (present,) = load(tmp_path, matrix={"batch_size": [32]}).cells
    write_trial(folder, make_record(present, started=time.time()))

    slurm.set_queue(first_queue)
    assert "4 trials: 2 done, 1 failed, 1 queued" in status(results, "demo").out
    slurm.set_queue("")
    ended = status(results, "demo")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "demo: 1 trial: 1 done")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "1 queued" in status(results, "demo").out, "nobody knows whether its job exists"


def test_trials_are_not_added_to_those_that_jobs_have_with_another_profile(
    slurm: FakeSlurm, results: Results, tmp_path: Path
) -> None:
    """As they are not added to those that ran with another one; both remedies can be carried out."""
    submit(write(tmp_path, seeds=[0]), results, cpus_per_rank=3)
    more = write(tmp_path, seeds=[0, 1])
    slurm.set_queue(squeue_output(results))
    refused = submit(more, results, cpus_per_rank=2)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "slurm.cpus_per_rank: found 2, recorded 3; allowed: once they have ended" in refused.err
    assert "1 trial; 1 are in the queue already" in submit(more, results, cpus_per_rank=3).out

    slurm.set_queue("")
    (cell,) = load(tmp_path).cells
    sweep = load(tmp_path, seeds=[0])
    settings = run_settings(sweep, submissions.read_all(results.sweep_folder("demo"))[0].profile)
    write_trial(results.sweep_folder("demo"), replace(make_record(cell), settings=settings))
    refused = submit(more, results, cpus_per_rank=2)
    assert refused.err.endswith("another --results\n"), "harness submit has no --force"


def test_a_local_run_refuses_a_sweep_that_jobs_are_running(
    slurm: FakeSlurm, results: Results, tmp_path: Path
) -> None:
    sweep = write(tmp_path)
    submit(sweep, results)
    slurm.set_queue(squeue_output(results))
    ended = harness("run", str(sweep), "--results", str(results.path))
    assert ended.code == 2
    assert "jobs 99_0 are running this sweep" in ended.err


def test_where_squeue_is_missing_a_sweep_with_jobs_is_neither_run_nor_removed(
    slurm: FakeSlurm, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows there whether its jobs still exist."""
    sweep = write(tmp_path)
    submit(sweep, results)
    monkeypatch.setenv("PATH", str(tmp_path))
    remove = ("prune", "demo", "--whole", "--yes", "--results", str(results.path))
    for arguments in (remove, ("run", str(sweep), "--results", str(results.path))):
        ended = harness(*arguments)
        assert ended.code == 2
        assert "its jobs may still have trials, and Slurm can't be asked here" in ended.err
        assert "squeue: No such file" in ended.err
    folder = results.sweep_folder("demo")
    assert folder.spec_path.exists()
    shutil.rmtree(folder.jobs_path)
    assert harness(*remove).code == 0
    assert not folder.path.exists()


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


def test_of_a_large_sweep_what_went_wrong_is_listed(
    slurm: FakeSlurm, results: Results, tmp_path: Path
) -> None:
    submit(write(tmp_path, zip=STRATEGIES, seeds=list(range(60))), results)
    slurm.set_queue(squeue_output(results))
    (cell, _) = load(tmp_path, zip=STRATEGIES).cells
    failed = make_record(cell, seed=3, status="failed", started=time.time())
    write_trial(results.sweep_folder("demo"), failed)
    lines = status(results, "demo").out.splitlines()
    assert len(lines) < 10
    assert any(f"{cell.id}-s3-r0" in line and "no such thing" in line for line in lines)


class TestTheEndOfABatchScript:
    """The shell that runs the leader, which a script in place of Python plays."""

    @pytest.fixture
    def setup(self) -> list[str]:
        """Return the lines of the profile's `setup`."""
        return []

    @pytest.fixture
    def script(
        self,
        setup: list[str],
        slurm: FakeSlurm,
        results: Results,
        tmp_path: Path,
    ) -> Path:
        """A batch script whose leader does what the variable LEADER says, and is then revived."""
        python = tmp_path / "python"
        python.write_text(
            f'#!/bin/bash\necho "$4" >>{tmp_path}/actions\n[ "$4" = revive ] || eval "$LEADER"\n'
        )
        python.chmod(0o755)
        submit(write(tmp_path), results, python=str(python), setup=setup)
        return slurm.folder / "sbatch.1"

    @pytest.mark.parametrize(
        ("leader", "code", "actions"),
        [
            ("exit 0", 0, ["lead"]),
            (f"exit {DECIDED}", DECIDED, ["lead"]),  # that the job is over
            ("exit 1", 0, ["lead", "revive"]),  # it could not be imported
            ("kill -9 $$", 0, ["lead", "revive"]),
            ("exit 70", 0, ["lead", "revive"]),
            ("sleep 0.3; kill -TERM $PPID; sleep 9", 143, ["lead"]),  # Slurm ends the job
        ],
    )
    def test_requeues_a_job_whose_leader_did_not_mean_to_end(
        self,
        leader: str,
        code: int,
        actions: list[str],
        script: Path,
        tmp_path: Path,
        results: Results,
    ) -> None:
        """Its log doesn't say of a process that was to get a signal that it is gone."""
        environment = {**os.environ, "SLURM_JOB_ID": "71", "LEADER": leader}
        ended = subprocess.run(["bash", script], env=environment, check=False)
        assert ended.returncode == code
        assert (tmp_path / "actions").read_text().split() == actions
        (log,) = results.path.rglob("0-0.log")
        assert "No such process" not in log.read_text(encoding="utf-8")

    @pytest.mark.parametrize("setup", [["set -eu"]])
    def test_requeues_whatever_options_of_the_shell_setup_sets(
        self, script: Path, tmp_path: Path
    ) -> None:
        environment = {**os.environ, "SLURM_JOB_ID": "71", "LEADER": "kill -9 $$"}
        ended = subprocess.run(["bash", script], env=environment, check=False)
        assert ended.returncode == 0
        assert (tmp_path / "actions").read_text().split() == ["lead", "revive"]

    @pytest.mark.parametrize(
        "setup",
        [["trap 'echo scratch is removed' EXIT"], ["trap 'echo setup: scratch is removed' EXIT"]],
    )
    @pytest.mark.parametrize("leader", ["exit 0", f"exit {DECIDED}", "kill -9 $$"])
    def test_runs_what_setup_traps_at_its_exit(
        self, leader: str, script: Path, results: Results
    ) -> None:
        environment = {**os.environ, "SLURM_JOB_ID": "71", "LEADER": leader}
        subprocess.run(["bash", script], env=environment, check=False)
        (log,) = results.path.rglob("0-0.log")
        assert log.read_text(encoding="utf-8").endswith("scratch is removed\n")

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
    slurm: FakeSlurm, results: Results, tmp_path: Path
) -> None:
    """An edit that is taken back leaves no trace in what `show`, the report and MLflow follow."""
    folder = results.sweep_folder("demo")
    submit(write(tmp_path), results)
    (as_first,) = read_spec(folder).cells
    submit(write(tmp_path, length={"steps": 99}), results)
    slurm.set_queue(squeue_output(results))
    assert "0 trials; 1 are in the queue already" in submit(write(tmp_path), results).out
    assert [cell.id for cell in read_spec(folder).cells] == [as_first.id]
