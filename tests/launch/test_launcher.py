"""The environment of ranks is the same for every launcher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.paths import TrialFolder
from harness.launch.launcher import RankProgram, rank_environment
from tests.support.running import run
from tests.support.sweeps import write

PROGRAM = RankProgram(folder=TrialFolder(Path("t")), world_size=1, num_threads=3)
# Classes numbered by the order of a set of texts, as in many tutorials.
LABELS = """
import torch
from torch import nn
from workloads import Classifier, Splits, TensorSamples

NAMES = ["cat", "dog", "bird", "fish", "horse", "ant"]


class Labels(Classifier):
    def splits(self):
        points = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
        classes = list(set(NAMES))
        labels = torch.tensor([classes.index(NAMES[int(row)]) for row in points[:, :6].argmax(1)])
        return Splits(TensorSamples((points, labels)), TensorSamples((points, labels)))

    def build_model(self):
        return nn.Sequential(nn.Linear(8, 6))
"""


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


@pytest.mark.distributed
def test_the_order_of_a_set_is_that_of_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    (tmp_path / "labels.py").write_text(LABELS, encoding="utf-8")
    workloads = {"labels": {"uses": "labels.py"}}
    digests = set()
    for repeat in range(2):
        # Variables of its own make a forkserver of its own, as another command has.
        matrix = {"env.ANOTHER_COMMAND": [str(repeat)]}
        sweep = write(tmp_path, workloads=workloads, length={"steps": 5}, warmup=0, matrix=matrix)
        (record,) = run(sweep)
        assert record.rank0 is not None
        digests.add(record.rank0.parameter_digest)
    assert len(digests) == 1
