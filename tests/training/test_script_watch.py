"""What counts as a step of a script, as its samples, and as no part of a step."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from harness.training import script
from tests.training.test_script import watched_cell, watching


class Slow:
    """An object whose saving takes 100 seconds of a clock."""

    def __init__(self, now: list[float]) -> None:
        self.now = now

    def __reduce__(self) -> tuple[Any, ...]:
        self.now[0] += 100.0
        return list, ()


def new_optimizer() -> Optimizer:
    """Return an optimizer of a model of its own, with gradients."""
    model = nn.Linear(2, 1)
    model(torch.ones(3, 2)).sum().backward()
    return SGD(model.parameters(), lr=0.1)


def train_epoch(
    model: nn.Module, optimizer: Optimizer, samples: int, batch_size: int, accumulate: int = 1
) -> None:
    """Train on the batches of a loader, and leave the model in evaluation mode."""
    model.train()
    loader = DataLoader(TensorDataset(torch.ones(samples, 2)), batch_size=batch_size)
    for number, (inputs,) in enumerate(loader, start=1):
        model(inputs).sum().backward()
        if number % accumulate == 0:
            optimizer.step()
    model.eval()


def folds() -> None:
    for _ in range(3):
        optimizer = new_optimizer()
        for _ in range(60):
            optimizer.step()


def folds_in_epochs() -> None:
    optimizers = [new_optimizer() for _ in range(3)]
    for _ in range(3):
        for optimizer in optimizers:
            for _ in range(20):
                optimizer.step()


def in_turn() -> None:
    critic, generator = new_optimizer(), new_optimizer()
    for _ in range(180):
        critic.step()
        generator.step()


def critics() -> None:
    critic, generator = new_optimizer(), new_optimizer()
    for _ in range(36):
        for _ in range(5):
            critic.step()
        generator.step()


def made_anew() -> None:
    model = nn.Linear(2, 1)
    for _ in range(180):
        model(torch.ones(3, 2)).sum().backward()
        SGD(model.parameters(), lr=0.1).step()


def wrapped() -> None:
    class Wrapper(SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            inner.step()

    inner = new_optimizer()
    outer = Wrapper(inner.param_groups[0]["params"], lr=0.1)
    for _ in range(180):
        outer.step()


def closures() -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)

    def closure() -> float:
        loss = model(torch.ones(3, 2)).square().mean()
        loss.backward()
        return float(loss.detach())

    for _ in range(180):
        optimizer.step(closure)


def loaded() -> None:
    """Have torch make the state of an optimizer, by a step at a rate of zero, before it is loaded."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    get_optimizer_state_dict(model, optimizer)
    for _ in range(180):
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()


def without_first_group() -> None:
    """Leave the group of a backbone that is frozen empty."""
    model = nn.Linear(2, 1)
    groups: list[dict[str, Any]] = [{"params": []}, {"params": model.parameters()}]
    optimizer = SGD(groups, lr=0.1)
    for _ in range(180):
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()


KINDS = [
    folds, folds_in_epochs, in_turn, critics, made_anew, wrapped, closures, loaded, without_first_group,
]  # fmt: skip


@pytest.mark.parametrize("train", KINDS)
def test_each_step_of_the_training_is_counted_once(
    tmp_path: Path, train: Callable[[], None]
) -> None:
    with watching(tmp_path) as observer:
        train()
    state = observer.state
    assert state.step == len(state.series["seconds"]) == len(state.series["loss"]) == 180
    # A closure has its forward and backward in the optimizer's step.
    assert state.result()["step_phases"] == {}


@pytest.mark.parametrize(("train", "length"), [(made_anew, 5), (folds, 150)])
def test_a_length_ends_the_script(tmp_path: Path, train: Callable[[], None], length: int) -> None:
    with watching(tmp_path, watched_cell(length)) as observer, pytest.raises(script._LengthReached):
        train()
    observer.check()
    assert len(observer.state.series["loss"]) == observer.state.step == length


@pytest.mark.parametrize(
    ("batch_size", "accumulate", "samples"), [(64, 1, 48), (32, 1, 32), (32, 3, 96)]
)
def test_samples_are_those_that_a_loader_yields_for_training(
    tmp_path: Path, batch_size: int, accumulate: int, samples: float
) -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    dataset = TensorDataset(torch.ones(96, 2))
    with watching(tmp_path) as observer:
        for _ in range(4):
            train_epoch(model, optimizer, 96, batch_size, accumulate)
            for (inputs,) in DataLoader(dataset, batch_size=7):
                model(inputs)
            model.train()
            for (inputs,) in DataLoader(dataset, batch_size=5):
                with torch.no_grad():
                    model(inputs)
    assert observer.samples_per_step == samples


def test_a_batch_that_is_fetched_before_an_evaluation_ends_is_trained_with(tmp_path: Path) -> None:
    """As where each step calls `train` itself; of an evaluation on the same loader nothing counts."""
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(32, 2)), batch_size=8)
    with watching(tmp_path) as observer:
        for _ in range(3):
            for (inputs,) in loader:
                model.train()
                model(inputs).sum().backward()
                optimizer.step()
            model.eval()
            for (inputs,) in loader:
                model(inputs)
    assert observer.samples_per_step == 8


def test_a_batch_before_an_evaluation_amid_accumulation_is_trained_with(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    loader, validation = (DataLoader(TensorDataset(torch.ones(64, 2)), size) for size in (8, 16))
    with watching(tmp_path) as observer:
        for number, (inputs,) in enumerate(loader):
            model.train()
            model(inputs).sum().backward()
            if number % 2:
                optimizer.step()
            if number % 3 == 0:
                model.eval()
                for (evaluated,) in validation:
                    model(evaluated)
    assert observer.samples_per_step == 16


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_batch_that_is_kept_of_an_evaluation_is_not_trained_with(
    tmp_path: Path, when: str
) -> None:
    """As where an evaluation in each step takes the next batch of an iterator, and keeps it."""
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(64, 2)), batch_size=8)
    with watching(tmp_path) as observer:
        kept = iter(DataLoader(TensorDataset(torch.ones(64, 2)), batch_size=8))
        batches = iter(loader)
        for moment in ["before", "between", "after"] * 8:
            if moment == "between":
                (inputs,) = next(batches)
            if moment == when:
                with torch.no_grad():
                    model(*next(kept))
            if moment == "between":
                model(inputs).sum().backward()
                optimizer.step()
    assert observer.samples_per_step == 8


@pytest.mark.parametrize("accumulate", [1, 2])
def test_samples_of_folds_are_all_counted(tmp_path: Path, accumulate: int) -> None:
    """The model of a fold stays in evaluation mode while that of the next one is trained."""
    with watching(tmp_path) as observer:
        for _ in range(3):
            model = nn.Linear(2, 1)
            train_epoch(model, SGD(model.parameters(), lr=0.1), 32, 8, accumulate)
    assert (observer.state.step, observer.samples_per_step) == (12 / accumulate, 8 * accumulate)


def test_batches_that_are_got_at_once_are_all_trained_with(tmp_path: Path) -> None:
    """As the Trainer of transformers gets those of a step, after an evaluation before it calls `train`."""
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    validation = DataLoader(TensorDataset(torch.ones(48, 2)), batch_size=16)
    with watching(tmp_path) as observer:
        for _ in range(3):
            loader = iter(DataLoader(TensorDataset(torch.ones(64, 2)), batch_size=8))
            for _ in range(4):
                for (inputs,) in [next(loader), next(loader)]:
                    model.train()
                    model(inputs).sum().backward()
                optimizer.step()
            model.eval()
            for (inputs,) in validation:
                model(inputs)
    assert observer.samples_per_step == 16


@pytest.mark.parametrize(
    ("datasets", "samples"),
    [
        ([TensorDataset(torch.ones(64, 2)), TensorDataset(torch.ones(64, 2))], 16),
        ([[{"labels": torch.tensor(0), "inputs": torch.ones(2)}] * 16], 8),
        ([["a", "b"]], None),  # without tensors, their number can't be told
    ],
)
def test_samples_are_those_of_all_loaders_that_yield_together(
    tmp_path: Path, datasets: list[Any], samples: float | None
) -> None:
    optimizer = new_optimizer()
    with watching(tmp_path) as observer:
        for _ in zip(*(DataLoader(dataset, batch_size=8) for dataset in datasets), strict=True):
            optimizer.step()
    assert observer.samples_per_step == samples


def test_an_optimizer_that_is_made_anew_is_kept_once(tmp_path: Path) -> None:
    leader, model = new_optimizer(), nn.Linear(2, 1)
    with watching(tmp_path) as observer:
        for _ in range(5):
            leader.step()
            SGD(model.parameters(), lr=0.1).step()
    assert (observer.state.step, len(observer.optimizers)) == (5, 2)


def test_models_of_folds_that_are_over_are_not_kept(tmp_path: Path) -> None:
    alive = []
    with watching(tmp_path) as observer:
        for _ in range(3):
            optimizer = new_optimizer()
            alive.append(weakref.ref(optimizer))
            for _ in range(5):
                optimizer.step()
            del optimizer
        gc.collect()
        assert [reference() is not None for reference in alive] == [False, False, True]
    assert observer.state.step == 15


@pytest.mark.parametrize("kind", ["mode", "mode, never train", "no_grad", "inference", "save"])
def test_what_is_without_gradients_is_no_part_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each second of the clock is one that the loop lets pass."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: int(now[0] * 1e9))
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with watching(tmp_path) as observer:
        for step in range(12):
            now[0] += 1.0
            with torch.no_grad():  # of each step
                now[0] += 0.5
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            if step % 4 == 3:
                if kind.startswith("mode"):
                    model.eval()
                    with torch.no_grad():
                        now[0] += 100.0
                    if kind == "mode":
                        model.train()
                elif kind == "save":
                    torch.save(Slow(now), tmp_path / "model.pt")
                else:
                    with torch.no_grad() if kind == "no_grad" else torch.inference_mode():
                        now[0] += 100.0
    assert observer.state.series["seconds"][2:] == pytest.approx([1.5] * 10)
    assert observer.state.phases["evaluate"] == pytest.approx(200.0)
