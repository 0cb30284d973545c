"""What training changes in a workload is saved and digested, or noticed."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from harness.core.errors import NotApplied
from harness.sweep.axes import Axes
from harness.training.digests import digest_model, workload_state
from harness.training.resuming import describe_unsaved, find_changes
from tests.support.line import LineFit, Options
from workloads.base import TensorSamples, Workload
from workloads.settings import Settings

Fit: Any = type("Fit", (LineFit,), {"state_dict": Workload.state_dict})


# How training may change an attribute.
CHANGES: dict[str, Callable[[Any], object]] = {
    "array": lambda workload: workload.array.fill(2),
    "average": lambda workload: workload.average.mul_(2),
    "count": lambda workload: setattr(workload, "count", 1),
    "draws": lambda workload: workload.draws.random(),
    "generator": lambda workload: workload.generator.manual_seed(1),
    "losses": lambda workload: workload.losses.append(0.5),
    "replaced": lambda workload: setattr(workload, "replaced", workload.replaced * 0.5),
    "rng": lambda workload: workload.rng.random(),
    "shadow": lambda workload: workload.shadow.requires_grad_(False)[0].weight.mul_(2),
}


def make_workload() -> Any:
    workload = Fit(Options(), Settings())
    workload.splits()
    workload.average = torch.ones(3)
    workload.count = 0
    workload.losses = []
    workload.array = np.ones(3)
    workload.replaced = torch.ones(3)
    workload.generator = torch.Generator()
    workload.draws = random.Random(0)
    workload.rng = np.random.default_rng(0)
    workload.model = workload.build_model()
    workload.shadow = nn.Sequential(nn.Linear(2, 2))
    workload.rule = lambda step: step + 1  # can't be pickled
    workload.pair = (workload.rule, workload.build_model)
    return workload


def watch(
    workload: Any, model: nn.Module, optimizer: Optimizer | None = None
) -> Callable[[], str | None]:
    """Return what finds the changes from now on."""
    parts: Any = SimpleNamespace(
        workload=workload,
        splits=SimpleNamespace(train=TensorSamples((torch.ones(2),))),
        model=model,
        optimizer=optimizer or SGD(model.parameters(), lr=0.1),
        axes=Axes(batch_size=1),
    )
    describe = partial(describe_unsaved, parts)
    before = describe()
    return lambda: find_changes(before, describe())


@pytest.mark.parametrize("name", CHANGES)
def test_an_attribute_that_changes_is_noticed(name: str) -> None:
    workload = make_workload()
    find = watch(workload, workload.model)
    assert find() is None
    CHANGES[name](workload)
    problem = f"training has changed Fit.{name}, which no checkpoint has; needed: "
    assert str(find()).startswith(problem)


def test_an_attribute_that_is_new_or_gone_is_noticed() -> None:
    workload = make_workload()
    find = watch(workload, workload.model)
    workload.late = 1
    del workload.count
    assert "changed Fit.count, Fit.late, which" in str(find())


def test_what_checkpoints_restore_may_change() -> None:
    workload = make_workload()
    model: nn.Module = workload.model
    optimizer = workload.optimizer(model)
    workload.optimizers = [optimizer]
    find = watch(workload, model, optimizer)
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    assert find() is None


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {"b": [np.ones(1)]}}, r"Own.state_dict\(\)\['a'\]\['b'\]\[0\]: found ndarray; allo"),
        ({"a": 1}, r"Own has state_dict\(\); needed: load_state_dict\(state\) too$"),
    ],
)
def test_a_state_that_no_checkpoint_can_have_is_refused_before_training(
    state: dict[str, Any], message: str
) -> None:
    own: Any = type("Own", (Fit,), {"state_dict": lambda self: state})
    own.load_state_dict = Workload.load_state_dict
    with pytest.raises(NotApplied, match=message):
        workload_state(own(Options(), Settings()))


def test_the_digest_is_of_types_and_values() -> None:
    states: list[Any] = [
        {"a": torch.ones(2)}, {"a": torch.ones(2, dtype=torch.float64)}, {"a": torch.ones(1, 2)}, {"b": torch.ones(2)},
        {"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"a": [1]}, {"a": {"a": 1}}, {"a": None},
    ]  # fmt: skip
    own: Any = type("Own", (LineFit,), {"state_dict": lambda self: self.own})
    digests, model = [], nn.Linear(1, 1)
    for state in states:
        workload = own(Options(), Settings())
        workload.own = state
        digests.append(digest_model(model, workload))
    assert len({*digests}) == len(states)


def test_the_digest_of_all_ranks_is_that_of_one_where_they_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = make_workload()

    def digest(*digests: str | None) -> str:
        monkeypatch.setattr("harness.training.digests.gather", lambda _: digests)
        return digest_model(workload.model, workload)

    assert digest("a") == digest("a", "a")
    assert len({digest(None, None), digest("a"), digest("a", "b"), digest("b", "a")}) == 4
