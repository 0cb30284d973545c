"""The example package of the guide: ResNet-50 as an installed plug-in."""

from __future__ import annotations

import random
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from harness.core.paths import TrialFolder
from harness.core.ports import LOOPBACK, free_port
from harness.records.assignment import Assignment, write_assignment
from harness.records.record import RankResult
from harness.spec import sweep as spec
from harness.training import worker
from harness.training.state import TrainingState
from tests.support.training import SINGLE_RANK
from tests.support.tree import TOP
from workloads.catalog import load_class

EXAMPLE = TOP / "harness" / "guide" / "examples" / "resnet50"
SMALL = {"source": "synthetic", "side": 32, "classes": 10, "train_samples": 8, "val_samples": 4}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the package where Python finds it, with the entry points of its pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    information = tmp_path / "site" / "harness_resnet50-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = ["[harness.workloads]"]
    for name, value in project["entry-points"]["harness.workloads"].items():
        lines.append(f"{name} = {value}")
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(information.parent))
    yield
    for name in [name for name in sys.modules if name.startswith("harness_resnet50")]:
        del sys.modules[name]


def test_it_is_resnet50() -> None:
    load_class("resnet50")
    model = sys.modules["harness_resnet50.model"]
    with torch.device("meta"):
        network = model.ResNet50(1000)
    assert sum(parameter.numel() for parameter in network.parameters()) == 25_557_032
    forward, _ = model.forward_flops(224, 1000)
    assert forward == pytest.approx(2 * 4.089e9, rel=1e-3)  # multiply-adds, as they are quoted


def test_flops_are_those_that_torch_counts() -> None:
    kind = load_class("resnet50")
    images = sys.modules["harness_resnet50.images"]
    workload = kind(kind.Options(), images.Synthetic(side=32, classes=10, train_samples=1))
    # Tensors without content, which cost nothing.
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = workload.build_model()
        batch = (torch.zeros(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64))
        torch.autograd.backward(workload.loss(model, batch))
    stated = workload.flops_per_sample()
    assert stated is not None
    assert counter.get_total_flops() == 2 * stated


@pytest.mark.nightly
def test_it_trains_as_its_sweep_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With DDP, bf16, channels-last, a linearly scaled rate, and a warm-up.

    Its loader workers stay out of the test, as each takes the time of the whole training.
    """
    monkeypatch.setenv("MASTER_ADDR", LOOPBACK)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    document: dict[str, Any] = yaml.safe_load((EXAMPLE / "resnet50.yaml").read_text())
    document["workloads"]["resnet50"]["data"] = SMALL
    document |= {"length": {"steps": 2}, "warmup": 1}
    document["axes"] |= {"strategy": "ddp", "batch_size": 4, "num_workers": 0}
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    sweep = spec.load_sweep(path)
    (trial,) = sweep.trials()
    code = trial.cell.workload.code
    assert code is not None
    assert code.files or code.distribution == "harness-resnet50"
    folder = TrialFolder(tmp_path / "trial")
    folder.path.mkdir()
    assignment = Assignment(trial=trial, base_folder=str(sweep.base_folder), device="cpu")
    write_assignment(folder.assignment_path, assignment)
    entered = RankResult(rank=0, host="node1", pid=1, entered_at=0.0)
    result = worker.train(folder, SINGLE_RANK, entered, TrainingState())
    assert result.rank0 is not None
    assert result.loss is not None
    assert result.loss.unpack()[0] == pytest.approx(np.log(10), rel=0.1)
    assert result.rank0.parameter_count == 25_557_032 - 2049 * 990
    assert result.rank0.collectives


def write_folder(folder: Path) -> None:
    """Write two classes of two images for training and one for testing, of other sizes each."""
    for number, split in enumerate(("train", "train", "val")):
        for label in ("cat", "dog"):
            size = (40 + 9 * number, 64)
            path = folder / split / label / f"{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", size, (200, 60 * number, 10)).save(path)


def test_a_folder_has_the_images_of_its_index(tmp_path: Path) -> None:
    load_class("resnet50")
    images = sys.modules["harness_resnet50.images"]
    data = images.Folder(path=tmp_path, side=32)
    with pytest.raises(ValueError, match=r"^path: .*index\.csv: found .*No such file.*; allowed: "):
        data.check()
    write_folder(tmp_path)
    assert images.write_index(tmp_path) == 6
    data.check()
    assert (data.classes, data.files()) == (2, [tmp_path / "index.csv"])
    train, test = data.samples("train"), data.samples("val")
    assert (len(train), len(test)) == (4, 2)
    batches = []
    for seed in (1, 1, 2):
        random.seed(seed)
        batches.append(train.batch([3, 0])[0])
    assert batches[0].shape == (2, 3, 32, 32)
    assert torch.equal(batches[0], batches[1])
    middle, labels = test.batch([0, 1])
    assert labels.tolist() == [0, 1]
    red = (200 / 255 - images.MEAN[0]) / images.DEVIATION[0]
    assert float(middle[0, 0].mean()) == pytest.approx(red, abs=0.05)


def test_a_crop_is_within_its_image() -> None:
    load_class("resnet50")
    images = sys.modules["harness_resnet50.images"]
    random.seed(0)
    for width, height in ((50, 400), (400, 50), (64, 64)):
        for _ in range(50):
            left, upper, right, lower = images._random_box(width, height)
            assert 0 <= left < right <= width
            assert 0 <= upper < lower <= height
