"""The environment of ranks is the same for every launcher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.paths import TrialFolder
from harness.launch import forkserver
from harness.launch.launcher import RankProgram, rank_environment
from harness.launch.torchrun import Torchrun

PROGRAM = RankProgram(folder=TrialFolder(Path("t")), world_size=1, num_threads=3)


def test_ranks_begin_with_the_users_hash_seed_or_with_0() -> None:
    assert rank_environment({}, {}, PROGRAM)["PYTHONHASHSEED"] == "0"
    assert rank_environment({"PYTHONHASHSEED": "7"}, {}, PROGRAM)["PYTHONHASHSEED"] == "7"


def test_a_cell_sets_and_unsets_variables_over_all_others() -> None:
    program = replace(PROGRAM, variables={"A": None, "C": "cell"})
    variables = rank_environment({"A": "inherited", "B": "inherited"}, {"B": "profile"}, program)
    assert "A" not in variables
    assert {name: variables[name] for name in ("B", "C", "OMP_NUM_THREADS")} == {
        "B": "profile",
        "C": "cell",
        "OMP_NUM_THREADS": "3",
    }


def test_the_order_of_a_set_is_that_of_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes that are numbered by the order of a set of texts, as in many tutorials, keep their numbers."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(forkserver, "PRELOAD", ())
    (tmp_path / "order.py").write_text("print({'cat', 'dog', 'bird', 'fish', 'horse', 'ant'})")
    orders = set()
    for command in ("first", "second"):
        # Variables of its own make a forkserver of its own, as another command has.
        environment = {"PYTHONPATH": str(tmp_path), "ANOTHER_COMMAND": command}
        folder = TrialFolder(tmp_path / command)
        program = replace(PROGRAM, module="order", folder=folder)
        assert Torchrun(environment=environment, fork=True).start(program).wait(60) == 0
        orders.add(folder.launch_log.read_text(encoding="utf-8"))
    assert len(orders) == 1
