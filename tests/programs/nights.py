"""Runs the nightly job of the guide over the commits of a small repository, for real.

    python -m tests.programs.nights FOLDER             a quarter of an hour on two cores
    python -m tests.programs.nights FOLDER --seeds 6   three times as many trials a night, as long in proportion

Of 30 commits, the eighth makes a step 4% slower and the 23rd 1.5%; the others change a comment. Every fifth
commit stays for two nights. In the middle the machine changes: from then on, the job may use one core.
Each night is a job of its own, with its own results, that has nothing but the history of those before it.
The steps are those of harness/gate/ci/github-nightly.yml.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from tests.cli.test_readme import write_printed
from tests.support.ci_files import LOSS, bash, git_in, github_step

JOB = "github-nightly.yml"
COMMITS = 30
SLOWER = {8: 1.04, 23: 1.015}  # by what factor a step takes longer, from which commit on
STEP = 0.1  # seconds, slept rather than computed
SWEEP = """
name: nightly
workloads:
  spiral: {uses: "spiral.py:Spiral"}
  before: {uses: "control/spiral.py:Spiral"}
length: {steps: 40}
"""


def make_repository(folder: Path, seeds: int) -> list[str]:
    """Make the repository with all its commits; return their ids."""
    folder.mkdir(parents=True)
    git_in(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "nightly.yaml").write_text(f"{SWEEP}seeds: {seeds}\n", encoding="utf-8")
    (folder / ".gitignore").write_text("control\nhistory\nresults\ntrend.*\n", encoding="utf-8")
    seconds = STEP
    commits = []
    for number in range(1, COMMITS + 1):
        seconds *= SLOWER.get(number, 1.0)
        source = write_printed("spiral.py", folder)
        text = source.read_text(encoding="utf-8") + LOSS.format(seconds=seconds)
        source.write_text(f"{text}\n# Revision {number}\n", encoding="utf-8")
        git_in(folder, "add", "--all")
        git_in(folder, "commit", "--quiet", "--message", f"Revision {number}: {seconds} s a step")
        commits.append(git_in(folder, "rev-parse", "HEAD"))
    git_in(folder, "tag", "v1.0", commits[0])
    return commits


def run_night(folder: Path, commit: str, *, cores: str) -> None:
    """Measure a commit as the job does, on a runner that has nothing but the history."""
    shutil.rmtree(folder / "results", ignore_errors=True)
    shutil.rmtree(folder / "control", ignore_errors=True)
    git_in(folder, "worktree", "prune")
    git_in(folder, "checkout", "--quiet", "--force", commit)
    # Other programs of this machine would make trials invalid.
    script = github_step("Measure", JOB).replace(
        "harness run", f"taskset -c {cores} harness run --tolerate-load"
    )
    done = bash(script, folder, CONTROL="v1.0")
    assert done.returncode == 0, done.stdout + done.stderr


def main() -> None:
    """Measure all nights, with what the job says of each on stdout."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.nights", description=__doc__)
    parser.add_argument("folder", type=Path, help="for the repository; it must not exist")
    parser.add_argument("--seeds", type=int, default=2, help="trials of a cell a night (default 2)")
    options = parser.parse_args()
    folder = options.folder
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    commits = make_repository(folder, options.seeds)
    nights = []
    for number, commit in enumerate(commits):
        nights += [commit] * (2 if number % 5 == 0 else 1)
    for night, commit in enumerate(nights):
        run_night(folder, commit, cores="0-1" if night < len(nights) // 2 else "0")
        done = bash(github_step("Judge", JOB).replace("--bisect --budget 2m", ""), folder)
        lines = done.stdout.splitlines() or done.stderr.splitlines()
        verdict = [line for line in lines if "slower (" in line or "faster (" in line]
        print(
            f"night {night + 1}, {commit[:7]}: exit code {done.returncode}; {lines[-1]}", flush=True
        )
        for line in verdict:
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
