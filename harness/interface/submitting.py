"""Submitting a sweep to Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.core.paths import Results
from harness.launch.sweep import Redo
from harness.slurm import submit
from harness.slurm.submission import Submission
from harness.slurm.submit import PreparedSubmission
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep


def submit_sweep(
    sweep: Sweep,
    profile: Profile,
    results: Results,
    *,
    redo: Redo,
    on_prepared: Callable[[PreparedSubmission], None],
    on_wait: Callable[[str], None],
) -> Submission:
    """Submit the trials of a sweep that are pending.

    `redo` says which finished trials run again. `on_prepared` is called before Slurm is, so that the
    remarks are seen even if sbatch refuses. `on_wait` gets a line while Slurm's controller is waited for.

    Raises BadInput and HarnessError as `harness.slurm.submit` does.
    """
    sweep_folder = results.sweep_folder(sweep.name)
    submit.check_folder(sweep_folder.path)
    return submit.submit(
        sweep,
        profile,
        sweep_folder,
        redo=redo,
        on_prepared=on_prepared,
        on_wait=on_wait,
    )


def prepare_submission(
    sweep: Sweep, profile: Profile, results: Results, *, redo: Redo
) -> PreparedSubmission:
    """Return what `submit_sweep` would submit at this moment, without writing anything."""
    sweep_folder = results.sweep_folder(sweep.name)
    submit.check_folder(sweep_folder.path)
    return submit.prepare(sweep, profile, sweep_folder, redo=redo)


def batch_scripts(results: Results, submission: Submission) -> Iterator[str]:
    """Yield the batch script of each array of a submission.

    After each, raises BadInput if sbatch would refuse it.
    """
    sweep_folder = results.sweep_folder(submission.sweep.name)
    for number in range(len(submission.arrays)):
        script = submit.batch_script(sweep_folder, submission, number)
        yield script
        submit.refuse_impossible(script)
