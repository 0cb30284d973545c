from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.distilbert import distilbert, save_small_model
from tests.support.training import NoEvaluation, make_assignment, make_trainer
from tests.workloads.flops import counted_per_sample
from workloads.distilbert_settings import DistilBertOptions, Tickets
from workloads.tickets import tickets

if TYPE_CHECKING:
    from workloads.distilbert import DistilBert

DATA = Tickets(rows=120)


def workload(**options: object) -> DistilBert:
    return distilbert(DistilBertOptions(**options), DATA)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{}, {"sequence": 16}, {"size": "small", "label_smoothing": 0.1}]
)
def test_flops_agree_with_torchs_counter(options: dict[str, object]) -> None:
    fixed = workload(padding="fixed", dropout=0.0, **options)
    assert fixed.flops_per_sample() == counted_per_sample(fixed, 4)


def test_flops_without_padding_count_the_tokens_of_each_text() -> None:
    longest = workload()
    lengths = longest.samples["train"].lengths.tolist()
    counted = 0.0
    for length in set(lengths):
        fixed = workload(padding="fixed", sequence=length)
        counted += fixed.flops_per_sample() * lengths.count(length) / len(lengths)
    assert longest.flops_per_sample() == pytest.approx(counted, rel=1e-9)


def test_padding() -> None:
    """Up to the longest text of a batch or to a fixed length, it changes no logits."""
    torch.manual_seed(0)
    longest = workload(sequence=64)
    tokens, labels = longest.splits().train.batch([0, 1, 3])
    padded, _ = workload(padding="fixed", sequence=64).splits().train.batch([0, 1, 3])
    assert padded.shape == (3, 64)
    assert tokens.shape[1] == int((padded != 0).sum(1).max())
    assert (tokens.dtype, labels.dtype) == (torch.int64, torch.int64)
    model = longest.build_model().eval()
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), model(padded))


def test_the_published_architecture() -> None:
    base = distilbert(DistilBertOptions(size="base"), DATA)
    with torch.device("meta"):
        model = base.build_model()
    # 66,362,880 as published, and a head of 768 * 768 + 768 + 768 * 3 + 3
    assert sum(p.numel() for p in model.parameters()) == 66_362_880 + 592_899
    assert len(base.layers(model)) == 6


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny random model and a tokenizer, as save_pretrained leaves them."""
    torch.manual_seed(1)
    save_small_model(tmp_path, [text for text, _ in tickets(120, 7)])
    return tmp_path


def test_a_pretrained_folder(checkpoint: Path) -> None:
    from transformers.models.distilbert.modeling_distilbert import (
        DistilBertForSequenceClassification,
    )

    options = DistilBertOptions(pretrained=checkpoint, dropout=0.3)
    options.check()
    pretrained = distilbert(options, DATA)
    pretrained.splits()
    model: Any = pretrained.build_model()
    source: Any = DistilBertForSequenceClassification.from_pretrained(checkpoint)
    for (name, loaded), saved in zip(
        model.bert.distilbert.named_parameters(), source.distilbert.parameters(), strict=True
    ):
        assert torch.equal(loaded, saved), name
    assert model.bert.classifier.out_features == 3
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.3}
    assert len(pretrained.layers(model)) == 1
    # And its tokenizer is used.
    ours, theirs = workload().samples["train"], pretrained.samples["train"]
    assert not torch.equal(ours.batch([0])[0], theirs.batch([0])[0])


def test_a_pretrained_model_trains_with_dropout_from_its_first_step(
    checkpoint: Path, tmp_path: Path
) -> None:
    first_losses = []
    for dropout in (0.0, 0.5):
        pretrained = distilbert(DistilBertOptions(pretrained=checkpoint, dropout=dropout), DATA)
        assert all(module.training for module in pretrained.build_model().modules())
        trainer = make_trainer(
            make_assignment(steps=3), pretrained, tmp_path / f"{dropout}", hooks=NoEvaluation()
        )
        trainer.run()
        first_losses.append(trainer.state.series["loss"][0])
    assert first_losses[0] != first_losses[1]


def test_a_pretrained_folder_without_all_its_weights(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    del weights["distilbert.transformer.layer.0.ffn.lin1.bias"]
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model.safetensors: found no .*layer.0.ffn.lin1"):
        distilbert(DistilBertOptions(pretrained=checkpoint), DATA).build_model()


def test_one_graph_and_no_break_when_compiled() -> None:
    fixed = workload(padding="fixed", dropout=0.0)
    batch = fixed.splits().train.batch(range(4))
    torch.manual_seed(0)
    model = fixed.build_model()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(batch[0]), model(batch[0]))


def test_decay_spares_biases_and_norms() -> None:
    tiny = workload()
    decayed, spared = tiny.optimizer(tiny.build_model()).param_groups
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in spared["params"]} == {1}
    assert decayed["weight_decay"] == DistilBertOptions().weight_decay
    assert spared["weight_decay"] == 0.0
