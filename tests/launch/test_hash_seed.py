"""Every launcher gives ranks one seed for the hashes of texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launch.srun import Srun
from harness.launch.torchrun import Torchrun
from tests.support.running import run
from tests.support.sweeps import write

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


@pytest.mark.parametrize(("set_by_user", "seed"), [(None, "0"), ("7", "7")])
def test_ranks_begin_with_the_users_seed_or_with_0(
    set_by_user: str | None, seed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if set_by_user is not None:
        monkeypatch.setenv("PYTHONHASHSEED", set_by_user)
    srun = Srun(
        environment={},
        ranks_per_node=1,
        cpus_per_rank=1,
        python="python",
        prefix=(),
        address="127.0.0.1",
    )
    for launcher in (Torchrun(environment={}), srun):
        assert launcher.variables(1, {})["PYTHONHASHSEED"] == seed


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
