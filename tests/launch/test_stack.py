"""Whether ranks can run under a stack is found out before anything starts."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core import import_path
from harness.core.errors import BadInput
from harness.core.paths import TrialFolder
from harness.launch import stack as stacks
from harness.launch.stack import ReadyStack, make_ready
from harness.launch.torchrun import Torchrun, _is_rank
from harness.sweep.cell import Stack
from tests.launch.test_srun import launcher as make_srun
from tests.support.stacks import PACKAGE, make_environment

READY = ReadyStack(
    name="old",
    python="/envs/old/bin/python",
    prefix=(),
    python_path="/tree",
    packages={"torch": "2.11.0", "numpy": "2.2.0"},
)
BOXED = replace(READY, name="box", python="python3", prefix=("apptainer", "exec", "image.sif"))


def probe(stack: Stack, folder: Path) -> ReadyStack:
    return make_ready("old", stack, folder, "sweep.yaml")


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
        ([3, 9, 7], "2.11.0", "found Python 3.9.7; allowed: 3.11 or later"),
        ([3, 11, 0], "2.9.1+cu128", "found torch 2.9.1+cu128; allowed: 2.11 or later"),
        ([3, 11, 0], None, "found torch none; allowed: 2.11 or later"),
    ],
)
def test_a_stack_that_is_too_old_is_refused(
    tmp_path: Path, python: list[int], torch: str | None, message: str
) -> None:
    packages = {} if torch is None else {"torch": torch}
    report = json.dumps({"python": python, "executable": "python3", "packages": packages})
    box = prefix(f"echo '{report}'")
    with pytest.raises(BadInput, match=message.replace("+", r"\+")):
        probe(Stack(prefix=box), tmp_path)


def test_torchrun_runs_under_the_stack() -> None:
    launcher = Torchrun(environment={"OWN": "1"}, fork=True).in_stack(READY)
    assert launcher.fork
    variables = launcher.variables(1, {"PYTHONHOME": None})
    assert (variables["PYTHONPATH"], variables["OWN"]) == ("/tree", "1")
    command = launcher.command("m", TrialFolder(Path("t")), 2)
    assert command[0] == READY.python
    assert command[-5:] == [READY.python, "-P", "-m", "m", "t"]


def test_what_runs_in_a_container_is_bound_to_this_process_and_not_forked() -> None:
    launcher = Torchrun(environment={}, fork=True).in_stack(BOXED)
    assert not launcher.fork
    command = launcher.command("m", TrialFolder(Path("t")), 2)
    bound = [sys.executable, "-P", "-m", "harness.launch.bound"]
    assert command[:4] == bound
    assert command[4:12] == [
        *BOXED.prefix, "env", "PYTHONPATH=/tree", "python3", "-P", "-m",
    ]  # fmt: skip
    assert command[-5:] == ["python3", "-P", "-m", "m", "t"]  # torchrun is in there too


def test_a_step_runs_under_the_stack_instead_of_the_profiles_container() -> None:
    srun = make_srun().in_stack(BOXED)
    assert srun.command("m", TrialFolder(Path("t")), 1)[-10:] == [
        *BOXED.prefix, "env", "PYTHONPATH=/tree", "python3", "-P", "-m", "m", "t",
    ]  # fmt: skip
    assert srun.variables(1, {})["PYTHONPATH"] == "/tree"


def test_modules_of_the_profiles_python_path_are_found_after_the_harness() -> None:
    path = f"{stacks.harness_path()}:/site"
    for launcher in (Torchrun(environment={}), make_srun()):
        of_profile = replace(launcher, environment={"PYTHONPATH": "/site"}).in_stack(BOXED)
        assert of_profile.variables(1, {})["PYTHONPATH"] == path
        assert f"PYTHONPATH={path}" in of_profile.command("m", TrialFolder(Path("t")), 1)


def test_a_signal_is_for_ranks_only() -> None:
    rank = ["/envs/old/bin/python3.11", "-P", "-m", "harness.training.worker", "t"]
    assert _is_rank(rank)
    assert not _is_rank(["/envs/old/bin/python", "-P", "-m", "harness.launch.agent", "f", *rank])
    assert not _is_rank(["apptainer", "exec", "image.sif", *rank])
    assert not _is_rank(["sleep", "1"])


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
