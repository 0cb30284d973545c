"""What ranks run from, stacks among it, is found out before anything starts."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core import import_path
from harness.core.errors import BadInput
from harness.core.paths import SweepFolder, TrialFolder
from harness.launch import stack as stacks
from harness.launch.launcher import RankProgram, rank_environment
from harness.launch.stack import ReadyStack, describe_launch, ready_stack
from harness.launch.torchrun import torchrun_command
from harness.sweep.cell import Stack
from tests.factories import make_cell
from tests.launch.test_srun import LAUNCHER
from tests.support.line import LineFit
from tests.support.stacks import PACKAGE, make_environment
from tests.support.sweeps import DIGITS, load

READY = ReadyStack(
    name="old",
    python="/envs/old/bin/python",
    prefix=(),
    packages={"torch": "2.11.0", "numpy": "2.2.0"},
)
BOXED = replace(READY, name="box", python="python3", prefix=("apptainer", "exec", "image.sif"))


def probe(stack: Stack, folder: Path) -> ReadyStack:
    ready = ready_stack(replace(make_cell(stack="old"), stack=stack), folder, "sweep.yaml")
    assert ready is not None
    return ready


def test_a_stack_says_what_it_has(tmp_path: Path) -> None:
    make_environment(tmp_path / "env", "1.5")
    ready = probe(Stack(python="env/bin/python"), tmp_path)
    assert ready.packages[PACKAGE] == "1.5"
    assert f"{PACKAGE}==1.5\n" in ready.pins
    assert ready.installed != replace(ready, packages={**ready.packages, PACKAGE: "1.6"}).installed


def prefix(program: str) -> list[str]:
    """Return a prefix that runs a program of the shell; `"$@"` is the command after it."""
    return ["sh", "-c", program, "sh"]


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        (Stack(python="no/python"), "No such file or directory"),
        (Stack(prefix=["no-such-box"]), "no-such-box: [Errno 2] No such file or directory"),
        (
            Stack(prefix=prefix("echo nothing"), python=sys.executable),
            "found 'nothing' where it starts Python; allowed: an interpreter, after a prefix",
        ),
        (Stack(prefix=prefix("echo no >&2; exit 3")), "found 'no' where it starts Python"),
    ],
    ids=["path", "command", "printed", "failed"],
)
def test_a_stack_that_ranks_cannot_run_under_is_refused(
    tmp_path: Path, stack: Stack, message: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        probe(stack, tmp_path)
    assert str(refusal.value).startswith("sweep.yaml: stacks.old: ")
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("python", "torch", "message"),
    [
        ("3.9.7", "2.11.0", "found Python 3.9.7; allowed: 3.11 or later"),
        ("3.11.0", "2.9.1+cu128", "found torch 2.9.1+cu128; allowed: 2.11 or later"),
        ("3.11.0", None, "found torch none; allowed: 2.11 or later"),
    ],
)
def test_a_stack_that_is_too_old_is_refused(
    tmp_path: Path, python: str, torch: str | None, message: str
) -> None:
    packages = {} if torch is None else {"torch": torch}
    report = json.dumps({"python": python, "packages": packages})
    box = prefix(f"echo '{report}'")
    with pytest.raises(BadInput, match=message.replace("+", r"\+")):
        probe(Stack(prefix=box), tmp_path)


def commands(stack: ReadyStack, environment: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the ends of what torchrun and srun run for a program `m` under a stack."""
    program = RankProgram(
        module="m", folder=TrialFolder(Path("t")), world_size=2, num_threads=1, stack=stack
    )
    variables = rank_environment({}, environment, program)
    step = LAUNCHER.command(program, variables)
    return torchrun_command(program, variables), step[step.index("--job-name=t") + 1 :]


@pytest.mark.parametrize("environment", [{}, {"PYTHONPATH": "/site"}], ids=["plain", "path"])
def test_ranks_run_under_the_stack(environment: dict[str, str]) -> None:
    """In a container, which ends with the launcher, torchrun is in there too; the harness is found first."""
    rank = ["-P", "-m", "m", "t"]
    local, step = commands(READY, environment)
    assert local[:4] == [READY.python, "-P", "-m", "harness.launch.agent"]
    assert local[-5:] == step == [READY.python, *rank]

    path = f"PYTHONPATH={':'.join([stacks.harness_path(), *environment.values()])}"
    box = [*stacks.IGNORING_SIGNAL, *BOXED.prefix, "env", path, "python3"]
    local, step = commands(BOXED, environment)
    bound = [sys.executable, "-P", "-m", "harness.core.processes"]
    assert local[: len(bound) + len(box)] == [*bound, *box]
    assert local[-5:] == ["python3", *rank]
    assert step == [*box, *rank]


def test_an_installed_harness_is_linked_without_the_packages_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    for name in ("harness", "workloads", "torch", "harness-0.1.dist-info"):
        (installed / name).mkdir(parents=True)
    monkeypatch.setattr(stacks, "ROOT", installed)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for _ in range(2):
        folder = Path(stacks.harness_path())
        assert sorted(path.name for path in folder.iterdir()) == ["harness", "workloads"]
        assert (folder / "harness").resolve() == installed / "harness"
    monkeypatch.setattr(stacks, "ROOT", import_path.ROOT)
    assert stacks.harness_path() == str(import_path.ROOT)


def test_a_damaged_package_is_not_among_the_installed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packages" / "lost-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    folder = SweepFolder(tmp_path / "sweep")
    launched = describe_launch(load(tmp_path), folder)
    pinned = folder.packages_path(launched.installed).read_text(encoding="utf-8").splitlines()
    assert any(pin.startswith("torch==") for pin in pinned)
    assert [pin for pin in pinned if "None" in pin] == []


def test_the_harness_is_not_taken_for_the_users_repository(tmp_path: Path) -> None:
    """Though it runs from a clone: in no repository, trials of built-in workloads have none either."""
    shutil.copy(inspect.getfile(LineFit), tmp_path / "fitted.py")
    own = {"fitted": {"uses": "fitted.py:LineFit"}}
    folder = SweepFolder(tmp_path / "sweep")
    for workloads in (DIGITS, own, {**own, **DIGITS}):
        assert describe_launch(load(tmp_path, workloads), folder).repository is None
