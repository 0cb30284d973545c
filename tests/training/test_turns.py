"""A workload's own training step: several optimizers, an average of weights, samples from a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.core.errors import NotApplied
from harness.spec.axes import Axes
from harness.training.epoch import InOrder
from harness.training.loader import as_sequence
from harness.training.optimization import prepare_turns
from harness.training.order import BatchOrder
from tests.support import adversarial
from tests.support.adversarial import Gan, GanOptions, MaskedLanguageModel, pad, read_sentences
from tests.support.training import make_assignment, make_trainer
from tests.training.test_comm_hooks import group_of_one
from tests.training.test_interruption import run_trial
from workloads import Settings, StreamSamples

GAN = f"{adversarial.__file__}:Gan"
LANGUAGE = f"{adversarial.__file__}:MaskedLanguageModel"
STOPS = [1, 2, 9]


@pytest.mark.parametrize(
    "entry",
    [
        {"uses": GAN},
        {"uses": GAN, "axes": {"grad_accum_steps": 2, "max_grad_norm": 0.5, "precision": "bf16"}},
        {"uses": GAN, "axes": {"strategy": "ddp", "grad_accum_steps": 2}},
        {"uses": GAN, "axes": {"strategy": "fsdp2"}, "options": {"penalty": 0.0}},
        {"uses": LANGUAGE},
        {"uses": LANGUAGE, "axes": {"num_workers": 2}},
        pytest.param({"uses": LANGUAGE, "axes": {"strategy": "fsdp2"}}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*Detected call of `lr_scheduler.step.*:UserWarning")
def test_an_interrupted_trial_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any]
) -> None:
    if "strategy" in entry.get("axes", {}):
        monkeypatch.setattr("harness.training.entry.process_group", group_of_one)
    whole, _ = run_trial(tmp_path / "whole", entry)
    resumed, interruptions = run_trial(tmp_path / "resumed", entry, STOPS)
    assert resumed == whole
    assert [step for step, _ in interruptions] == STOPS


@pytest.mark.parametrize("axes", [{"strategy": "ddp"}, {"strategy": "fsdp2"}], ids=str)
def test_strategies_take_the_same_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axes: dict[str, Any]
) -> None:
    monkeypatch.setattr("harness.training.entry.process_group", group_of_one)
    # FSDP2 can't compute the penalty, which is tested below.
    entry = {"uses": GAN, "options": {"penalty": float(axes["strategy"] == "ddp")}}
    single, _ = run_trial(tmp_path / "single", entry)
    other, _ = run_trial(tmp_path / "other", entry | {"axes": axes})
    assert other == single


def test_a_gradient_of_gradients_is_refused_under_fsdp2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.training.entry.process_group", group_of_one)
    with pytest.raises(
        NotApplied, match="strategy=fsdp2 cannot be used with gradients of gradients"
    ):
        run_trial(tmp_path / "trial", {"uses": GAN, "axes": {"strategy": "fsdp2"}})


def gan(**options: Any) -> Gan:
    return Gan(GanOptions(**options), Settings())


def test_both_networks_learn_and_only_in_their_own_turn(tmp_path: Path) -> None:
    workload = gan()
    trainer = make_trainer(make_assignment(steps=60), workload, tmp_path)
    moved: list[set[str]] = []

    def spy(name: str) -> Any:
        loss = getattr(workload, name)

        def observe(model: Any, batch: Any) -> Tensor:
            needed = {key.split(".")[0] for key, p in model.named_parameters() if p.requires_grad}
            moved.append(needed)
            result: Tensor = loss(model, batch)
            return result

        return observe

    step: Any = trainer.parts.train_step
    for turn, name in zip(step.turns, ("critic_loss", "loss"), strict=True):
        object.__setattr__(turn, "loss", spy(name))
    trainer.run()
    assert moved == [{"critic"}, {"generator"}] * 60
    distances = [done.metrics["distance"] for done in trainer.state.evaluations]
    assert distances[-1] < 1.0  # it begins with the root of 2


class PartlyFrozen(Gan):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.get_parameter("generator.0.weight").requires_grad_(False)
        return model


def test_what_the_workload_has_frozen_stays_frozen(tmp_path: Path) -> None:
    """In training, and in the step that is computed afterwards to count collectives."""
    workload = PartlyFrozen(GanOptions(), Settings())
    trainer = make_trainer(make_assignment(steps=3), workload, tmp_path)
    weight = trainer.parts.model.get_parameter("generator.0.weight")
    before = weight.detach().clone()
    trainer.run()
    trainer.parts.train_step.compute_all_gradients(trainer.parts.splits.train.batch(range(32)))
    assert torch.equal(weight, before)
    assert not weight.requires_grad
    assert trainer.parts.model.get_parameter("generator.0.bias").requires_grad


def test_a_language_model_learns_from_a_stream(tmp_path: Path) -> None:
    workload = MaskedLanguageModel(Settings(), Settings())
    trainer = make_trainer(make_assignment(steps=60, batch_size=16), workload, tmp_path)
    trainer.run()
    assert trainer.state.evaluations[-1].metrics["accuracy"] > 0.5  # of ten words


@pytest.mark.parametrize(
    ("axes", "options", "problem"),
    [
        ({"lr": 0.1}, {}, r"lr=0.1 cannot be used with the 2 of Gan.turns\(\): each has its own"),
        (
            {"reduction": "tree", "grad_accum_steps": 2},
            {},
            "reduction=tree cannot be used with the 2 of Gan",
        ),
        ({}, {"shared": True}, "'critic' and 'again' train the same parameter; needed: each in"),
    ],
)
def test_what_several_turns_can_not_have(
    tmp_path: Path, axes: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(NotApplied, match=problem):
        make_trainer(make_assignment(steps=1, **axes), gan(**options), tmp_path)


def test_a_pipeline_has_one_loss() -> None:
    workload = gan()
    axes = Axes(batch_size=32, strategy="pp", world_size=2, grad_accum_steps=2)
    with pytest.raises(NotApplied, match=r"strategy=pp cannot be used with the 2 of Gan.turns\(\)"):
        prepare_turns(
            workload, workload.build_model(), axes, 10, lambda loss: loss, can_freeze=True
        )


def test_a_stream_is_read_in_its_order_by_every_rank() -> None:
    sentences = []
    for sentence, _ in zip(read_sentences(), range(12), strict=False):
        sentences.append(sentence)
    for rank in range(2):
        order = BatchOrder(
            samples=12, batch_size=4, seed=1, dp_rank=rank, dp_size=2, epoch_order=InOrder()
        )
        samples = StreamSamples(read_sentences, 12, pad)
        for _ in range(2):  # epochs
            for number, indices in enumerate(order):
                assert indices.tolist() == [4 * number + 2 * rank, 4 * number + 2 * rank + 1]
                (words,) = samples.batch(as_sequence(indices))
                assert words.shape[1] == max(len(sentences[index]) for index in indices)
                for row, index in zip(words, indices, strict=True):
                    assert torch.equal(row[: len(sentences[index])], sentences[index])


def test_a_stream_that_is_shorter_than_it_says() -> None:
    samples = StreamSamples(lambda: iter([torch.zeros(2)] * 3), 5, pad)
    with pytest.raises(ValueError, match="stream: found 3 samples; needed: the 5 of its length"):
        samples.batch([4])
