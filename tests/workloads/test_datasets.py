"""Workloads of torch's Datasets, and workloads that leave to the harness what has a default."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from harness.measure.flops import flops_per_sample
from tests.support.training import make_assignment, make_trainer
from workloads import Batch, Classifier, Settings, Splits, StreamSamples, Workload
from workloads.base import TensorSamples, load_splits
from workloads.catalog import load_class

SAMPLES, FEATURES = 200, 6


def make_set() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


class Line(Workload):
    """No more than what must be defined: model, data and loss."""

    def splits(self) -> Any:
        return make_set()

    def build_model(self) -> nn.Module:
        return nn.Linear(FEATURES, 1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])


def make(kind: type[Workload]) -> Workload:
    return kind(Settings(), Settings())


def test_model_data_and_loss_are_enough(tmp_path: Path) -> None:
    workload = make(Line)
    trainer = make_trainer(make_assignment(steps=40), workload, tmp_path)
    trainer.run()
    (evaluation,) = trainer.state.evaluations
    test = load_splits(workload).test.batch(range(SAMPLES // 10))
    with torch.no_grad():
        expected = workload.loss(trainer.parts.model, test).item()
    assert evaluation.metrics == {"loss": pytest.approx(expected)}
    assert (trainer.parts.target.name, trainer.parts.target.higher_is_better) == ("loss", False)
    optimizer = trainer.parts.optimizer
    assert (type(optimizer).__name__, optimizer.param_groups[0]["lr"]) == ("AdamW", 1e-3)


class Words(Dataset[Tensor]):
    """Sentences of different lengths, whose samples a collate function pads."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((index + 1,), index)


class Padded(Line):
    def splits(self) -> Any:
        return Splits(Words(), make_set())  # type: ignore[arg-type]

    def collate_fn(self, samples: Sequence[Any]) -> Any:
        if isinstance(samples[0], Tensor):
            return pad_sequence(list(samples), batch_first=True)
        return super().collate_fn(samples)


def test_a_batch_is_what_the_collate_function_makes_of_the_samples() -> None:
    splits = load_splits(make(Padded))
    (words,) = splits.train.batch([0, 2])
    assert words.tolist() == [[0, 0, 0], [2, 2, 2]]
    inputs, _ = splits.test.batch([5, 3])
    assert torch.equal(inputs, make_set().tensors[0][[5, 3]])


class Stream(IterableDataset[Tensor]):
    """A data set without samples by index."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(())


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (Splits(DataLoader(make_set()), make_set()), "a DataLoader; .*the `.dataset` of a"),  # type: ignore[arg-type]
        (Splits(make_set(), Stream()), "a Stream; allowed: Splits"),  # type: ignore[arg-type]
        (None, "a NoneType; allowed: Splits"),
    ],
    ids=["DataLoader", "iterable", "nothing"],
)
def test_what_is_no_data_set_is_told_what_to_write(
    monkeypatch: pytest.MonkeyPatch, splits: Any, message: str
) -> None:
    monkeypatch.setattr(Line, "splits", lambda self: splits)
    with pytest.raises(TypeError, match=rf"^splits\(\): found {message}"):
        load_splits(make(Line))


def test_a_batch_of_no_tensors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Line, "collate_fn", lambda self, samples: {"x": samples})
    with pytest.raises(TypeError, match=r"collate_fn\(\): found a dict; allowed: a tensor or"):
        load_splits(make(Line)).train.batch([0])


class Net(nn.Module):
    """Two layers with dropout and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.layers(inputs)
        return result


def test_flops_are_counted_where_they_are_not_stated() -> None:
    workload, model = make(Line), Net()
    batch = load_splits(workload).train.batch(range(4))
    counted = flops_per_sample(workload.loss, model, batch)
    # Forward, the gradient of each weight, and that of the second layer's input.
    assert counted == 2 * 2 * (FEATURES * 8 + 8) + 2 * 8
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("methods", "missing"),
    [
        (["splits", "build_model"], "loss"),
        (["splits", "build_model", "loss", "metrics"], "evaluate"),
    ],
)
def test_what_a_class_lacks_is_named(tmp_path: Path, methods: list[str], missing: str) -> None:
    lines = ["from workloads import Workload", "class Mine(Workload):"]
    lines += [f"    def {name}(self, *_): ..." for name in methods]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=f"found no {missing} in Mine"):
        load_class("mine.py:Mine", tmp_path)


class Periodic(Line):
    """Has samples whose class repeats every ten."""

    def splits(self) -> Any:
        labels = torch.arange(500) % 10
        return TensorDataset(torch.zeros(500, FEATURES), labels)


def test_the_test_set_of_a_single_dataset_is_drawn() -> None:
    splits = load_splits(make(Periodic))
    assert (len(splits.train), len(splits.test)) == (450, 50)
    train = splits.train.batch(range(450))[1]
    test = splits.test.batch(range(50))[1]
    assert len(set(test.tolist())) == len(set(train.tolist())) == 10
    again = load_splits(make(Periodic))
    assert torch.equal(again.test.batch(range(50))[1], test)


def test_labels_that_are_ignored_count_for_nothing() -> None:
    rows = torch.tensor([[0.5, 1.0, 1.0], [1.5, 0.0, 1.0], [0.0, 2.0, -100.0]], dtype=torch.float64)
    metrics = Classifier.metrics(cast(Classifier, None), rows)
    assert metrics["accuracy"] == 0.5
    assert metrics["loss"] == 1.0
    assert metrics["macro_f1"] == pytest.approx(1 / 3)


def test_every_process_opens_a_stream_with_the_seed_of_the_epoch() -> None:
    def read(seed: int) -> Iterator[int]:
        numbers = list(range(8))
        random.Random(seed).shuffle(numbers)
        return iter(numbers)

    streams = [StreamSamples(read, 8, lambda rows: (torch.tensor(rows),)) for _ in range(2)]
    for seed in (5, 6):
        seen = []
        for share, stream in enumerate(streams):
            torch.manual_seed(share)  # as workers have other generators
            stream.begin_epoch(seed)
            seen += stream.batch(range(share, 8, 2))[0].tolist()
        assert sorted(seen) == list(range(8))


IMAGES = torch.randn(6, 3, 4, 5)


@pytest.mark.parametrize(
    "tensor",
    [
        IMAGES,
        IMAGES.to(memory_format=torch.channels_last),
        IMAGES[:, :, ::2],
        torch.arange(6).to(torch.uint16),
        torch.arange(12).to(torch.uint16).view(6, 2),
        torch.zeros(1).expand(6),
        torch.empty(6, 0),
    ],
    ids=["rows", "channels-last", "strided", "1-d uint16", "uint16", "expanded", "empty"],
)
@pytest.mark.parametrize("indices", [[4, 0, 4], range(2), range(0)], ids=["list", "range", "none"])
def test_a_batch_is_what_indexing_takes(tensor: Tensor, indices: list[int] | range) -> None:
    (batch,) = TensorSamples((tensor,)).batch(indices)
    expected = tensor[torch.tensor(list(indices), dtype=torch.int64)]
    assert (batch.dtype, batch.stride()) == (expected.dtype, expected.stride())
    assert torch.equal(batch, expected)
