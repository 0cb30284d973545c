"""Forked ranks are to a module what torchrun's are, and end together as those do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.core.paths import TrialFolder
from harness.launch import forkserver
from harness.launch.launcher import RankProgram, StartedRanks
from harness.launch.ranks import run_ranks
from harness.launch.torchrun import Torchrun, TorchrunRanks
from tests.support.running import processes_below

pytestmark = pytest.mark.distributed

# A process of its own loads torch faster without collections of garbage, and ends faster at once.
TOLD = """\
import gc, json, os, psutil, re, sys
if __name__ == "__main__":
    gc.disable()
import torch.distributed as dist
OF_TORCHRUN = re.compile("(.+_)?(RANK|WORLD_SIZE)|ROLE_NAME|TORCHELASTIC_(RUN_ID|.*RESTART.*)")
def main():
    dist.init_process_group("gloo")
    port = int(os.environ["MASTER_PORT"])
    sockets = psutil.net_connections("tcp")
    store = [each.laddr.ip for each in sockets if each.status == "LISTEN" and each.laddr.port == port]
    everyone = [None] * dist.get_world_size()
    variables = {name: os.environ[name] for name in os.environ if OF_TORCHRUN.fullmatch(name)}
    dist.all_gather_object(everyone, [variables, sys.argv[1:], dist.is_torchelastic_launched(), store])
    if not dist.get_rank():
        print(json.dumps(everyone), flush=True)
    dist.destroy_process_group()
    return 0
if __name__ == "__main__":
    os._exit(main())
"""
# Rank 1 is killed, and rank 2 fails by itself as soon as rank 1 is gone: torchrun may end it at once.
FAILING = """\
import os, signal, time
def main():
    if os.environ["RANK"] == "1":
        pipe = open("pipe", "w")
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ["RANK"] == "2":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
        open("pipe").read()
        os._exit(3)
    time.sleep(600)
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def trial_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrialFolder:
    """A trial's folder, beside a module that ranks can import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return TrialFolder(tmp_path / "trial")


def write(text: str) -> None:
    Path("ranks.py").write_text(text, encoding="utf-8")


def test_ranks_meet_and_see_the_same_variables_as_by_torchrun(trial_folder: TrialFolder) -> None:
    write(TOLD)
    printed = []
    for fork in (True, False):
        log = trial_folder.launch_log
        program = RankProgram(
            module="ranks", arguments=["a b"], folder=trial_folder, world_size=2, num_threads=1
        )
        ranks = Torchrun(environment={}, fork=fork).start(program)
        assert ranks.wait(300) == 0, log.read_text(encoding="utf-8")
        printed.append(json.loads(log.read_text(encoding="utf-8").splitlines()[-1]))
    stores = [[told.pop() for told in everyone] for everyone in printed]
    assert printed[0] == printed[1]
    assert [variables["RANK"] for variables, _, _ in printed[0]] == ["0", "1"]
    assert [is_launched for _, _, is_launched in printed[0]] == [True, True]
    # That of forked ranks is rank 0's own, as a script makes it; `test_store` shows the harness's.
    assert stores[1] == [["127.0.0.1"]] * 2
    assert not trial_folder.failures_path.exists()


@pytest.mark.parametrize(
    "preload", [("json",), ("a_module_that_nobody_has",)], ids=["forked", "torchrun"]
)
def test_the_others_of_a_rank_that_fails_are_ended(
    trial_folder: TrialFolder, monkeypatch: pytest.MonkeyPatch, preload: tuple[str, ...]
) -> None:
    """Where no forkserver starts, torchrun starts the ranks. They load no torch."""
    monkeypatch.setattr(forkserver, "PRELOAD", preload)
    write(FAILING)
    os.mkfifo("pipe")
    trial_folder.path.mkdir()
    trial_folder.assignment_path.touch()
    program = RankProgram(module="ranks", folder=trial_folder, world_size=4, num_threads=1)
    started: list[StartedRanks] = []

    def start(program: RankProgram) -> StartedRanks:
        started.append(Torchrun(environment={}, fork=True).start(program))
        return started[0]

    for _ in run_ranks(start, program, 300):
        pass
    seen = set()
    for ended in started[0].observed_failures():
        seen.add((ended.kind, ended.rank, ended.message.partition(",")[0]))
    assert {("Exited", 2, "with code 3"), ("Killed", 1, "ended by SIGKILL")} <= seen
    assert processes_below(trial_folder.path) == []
    log = trial_folder.launch_log.read_text(encoding="utf-8")
    reason = "gave no answer; its log ends with: ModuleNotFoundError: "
    assert (reason in log) is isinstance(started[0], TorchrunRanks)
    assert (reason in log) is ("a_module_that_nobody_has" in preload)
