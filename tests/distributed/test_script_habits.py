"""Habits of training scripts: their own exits, modules and seeds, and ranks of their own."""

from __future__ import annotations

import pytest

from harness.analysis.sweep_result import SweepResult
from harness.records.record import Record
from harness.view.findings import remarks
from tests.support.running import line_sweep, run

pytestmark = pytest.mark.distributed

LOOP = """
import os, signal, sys, time
import torch
{before}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
{after}
"""
# As a rank that is asked to stop, and that may be in a wait of any kind.
ASKED = """
if not os.path.exists("asked"):
    open("asked", "w").close()
    os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(600)
"""
SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)"
PARSES = "import argparse\nargparse.ArgumentParser('train.py').parse_args()"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    """Return the records of each script, in the order of seeds."""
    folder = tmp_path_factory.mktemp("habits")
    scripts = {
        "python": ("assert 'RANK' not in os.environ and 'MASTER_ADDR' not in os.environ", ""),
        "leaves": ("", "os._exit(0)"),
        "asked": (ASKED, ""),
        "seeded": ("torch.manual_seed(0)", ""),
        "spawns": (SPAWNS, ""),
        "parses": (PARSES, ""),
        "raises": ("raise ValueError('no data')", ""),
        "exits": ("sys.exit('usage: train.py')", ""),
        "idle": ("sys.exit()", ""),
        "pkg/train": ("from .settings import WIDTH", ""),
    }
    (folder / "pkg").mkdir()
    (folder / "pkg/__init__.py").touch()
    (folder / "pkg/settings.py").write_text("WIDTH = 4\n")
    entries: dict[str, dict[str, object]] = {}
    for name, (before, after) in scripts.items():
        (folder / f"{name}.py").write_text(LOOP.format(before=before, after=after))
        entries[name] = {"uses": f"{name}.py", "seeds": [0]}
    entries["python"]["launch"] = "python"
    entries["seeded"]["seeds"] = [0, 1]
    entries["parses"]["arguments"] = "--lr 1"
    entries["pkg/train"] |= {"uses": None, "module": "pkg.train"}
    found: dict[str, list[Record]] = {}
    for record in run(line_sweep(folder, entries)):
        found.setdefault(record.trial.cell.workload.label, []).append(record)
    return found


@pytest.mark.parametrize("name", ["python", "leaves", "asked", "seeded", "pkg/train"])
def test_they_are_measured(records: dict[str, list[Record]], name: str) -> None:
    for record in records[name]:
        assert record.failure is None
        assert record.status == "done"
        assert record.rank0 is not None
        assert record.rank0.steps_per_epoch == 20


def test_relative_imports_belong_to_the_code_of_a_module(records: dict[str, list[Record]]) -> None:
    code = records["pkg/train"][0].trial.cell.workload.code
    assert code is not None
    assert set(code) == {"__init__.py", "settings.py", "train.py"}


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("spawns", "NotApplied", "the script starts its own ranks, which are not watched"),
        ("parses", "SystemExit", "train.py: error: unrecognized arguments: --lr 1"),
        ("raises", "ValueError", "no data"),
        ("exits", "SystemExit", "usage: train.py"),
        ("idle", "NotApplied", "idle.py ended without a step of an optimizer"),
    ],
)
def test_they_fail_at_once_and_say_why(
    records: dict[str, list[Record]], name: str, kind: str, message: str
) -> None:
    (record,) = records[name]
    assert record.failure is not None
    assert (record.status, record.failure.kind) == ("failed", kind)
    assert message in record.failure.message


def test_seeds_without_effect_are_named(records: dict[str, list[Record]]) -> None:
    found = remarks(SweepResult(name="line", cells=[]), records["seeded"])
    texts = [remark.text for remark in found]
    assert any("all 2 seeds computed the same bits" in text for text in texts)
