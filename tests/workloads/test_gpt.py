"""The decoder: what it predicts from what, what it computes, and how a text becomes samples."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.workloads.flops import counted_per_sample
from workloads.gpt import GPT, rotated, rotations
from workloads.gpt_settings import DECODERS, GPTOptions, PythonTopics, TextFile

SEQUENCE = 16


def gpt(**options: object) -> GPT:
    return GPT(GPTOptions(**options), PythonTopics(sequence=SEQUENCE))  # type: ignore[arg-type]


def test_a_logit_depends_on_no_later_byte() -> None:
    torch.manual_seed(0)
    model = gpt().build_model()
    tokens = torch.randint(256, (2, SEQUENCE), dtype=torch.uint8)
    other = tokens.clone()
    other[:, 9:] += 1
    with torch.no_grad():
        before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_scores_depend_on_the_distance_of_positions_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 8)
    cosines, sines = rotations(32, 8)
    scores = (
        rotated(query.expand(32, 8), cosines, sines) @ rotated(key.expand(32, 8), cosines, sines).T
    )
    for distance in (-7, 0, 3):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_flops_agree_with_torchs_counter(size: str) -> None:
    workload = gpt(size=size)
    shape = DECODERS[size]
    # The counter has all t^2 scores of a head, of which a token needs those up to itself.
    masked = SEQUENCE**2 - SEQUENCE * (SEQUENCE + 1) / 2
    unneeded = 3 * shape.layers * 4 * shape.width * masked
    assert workload.flops_per_sample() == counted_per_sample(workload, 4) - unneeded
    assert workload.tokens_per_sample() == SEQUENCE


def test_each_byte_but_the_first_is_predicted_once(tmp_path: Path) -> None:
    content = bytes(range(200))
    path = tmp_path / "text"
    path.write_bytes(content)
    data = TextFile(path=path, sequence=8, validation=0.25)
    data.check()
    splits = GPT(GPTOptions(), data).splits()
    assert splits.validation is not None
    sizes = []
    for samples, part in zip(
        (splits.train, splits.validation, splits.test), data.parts(), strict=True
    ):
        (tokens,) = samples.batch(range(len(samples)))
        assert tokens.dtype == torch.uint8
        predicted = tokens[:, 1:].flatten().tolist()
        assert bytes(predicted) == part[1 : 1 + len(predicted)]
        assert len(part) - 1 - len(predicted) < 8
        sizes.append(len(part))
    assert sizes == [128, 42, 30]
    assert len(splits.train) == data.training_samples


def test_bits_per_byte_are_the_mean_over_all_bytes() -> None:
    torch.manual_seed(0)
    workload = gpt()
    model, batch = workload.build_model(), workload.splits().test.batch(range(6))
    with torch.no_grad():
        metrics = workload.metrics(workload.evaluate(model, batch))
        loss = float(workload.loss(model, batch))
    assert metrics["loss"] == pytest.approx(loss, rel=1e-6)
    assert metrics["bits_per_byte"] == pytest.approx(loss / math.log(2), rel=1e-6)
    assert metrics["bits_per_byte"] == pytest.approx(8, abs=0.5)  # it has learned nothing yet


def test_a_text_is_long_enough_for_a_sequence_in_each_part(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("short")
    with pytest.raises(ValueError, match=r"sequence: found 128; allowed: less than the 1 bytes"):
        TextFile(path=path).check()
