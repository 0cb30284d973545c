"""What counts as the same computation: rounding does, another weight does not."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.core.errors import NotApplied
from harness.export.calls import CallShape, TrainedModel, probe_calls
from harness.export.models import EXPORTERS
from harness.export.parity import compare, largest_difference
from harness.export.record import ExportParity
from harness.sweep.axes import Axes
from tests.export.blobs import SAMPLES, Blobs, Net, make_blobs, perturbed
from tests.support.training import CPU
from workloads import Batch, Settings

AXES = Axes(batch_size=32)


def make_net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def trained(workload: Blobs, net: nn.Module) -> TrainedModel:
    samples = workload.splits().test
    return TrainedModel(workload, copy.deepcopy(net), samples, AXES, CPU)


def differs(parity: ExportParity) -> bool:
    """Return whether an export would be refused."""
    return parity.largest_difference > parity.tolerance


def held_against_eager(
    serve: Callable[[Tensor], Tensor], net: nn.Module | None = None
) -> ExportParity:
    """Compare a function with the net in eager mode."""
    return compare(trained(make_blobs(), net or make_net()), lambda *inputs: [serve(*inputs)])


def test_the_same_model_is_the_same() -> None:
    parity = held_against_eager(make_net())
    assert (parity.samples, parity.largest_difference) == (SAMPLES, 0.0)
    assert parity.metrics == parity.exported_metrics
    assert 1e-8 < parity.tolerance < 1e-5


def test_rounding_in_another_order_is_the_same() -> None:
    """The sum over hidden units is added up backwards."""
    net = make_net()

    def backwards(points: Tensor) -> Tensor:
        hidden = torch.tanh(net.norm(net.hidden(points)))
        total = torch.zeros(len(points), 3)
        for unit in reversed(range(16)):
            total += hidden[:, unit : unit + 1] * net.head.weight[:, unit]
        return total + net.head.bias

    parity = held_against_eager(backwards)
    assert not differs(parity)
    assert parity.largest_difference > 0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_changed_weight_is_another_computation_at_any_scale_of_the_outputs(scale: float) -> None:
    net = make_net()
    with torch.no_grad():
        net.head.weight.mul_(scale)
        net.head.bias.mul_(scale)
    changed = copy.deepcopy(net)
    with torch.no_grad():
        changed.head.weight.mul_(1.0001)
    assert not differs(held_against_eager(net, net=net))
    assert differs(held_against_eager(changed, net=net))


class MaskedNet(Net):
    """A net whose last class is masked at every sample."""

    def __init__(self, mask: float) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, points: Tensor) -> Tensor:
        logits = super().forward(points)
        mask = torch.finfo(logits.dtype).min if math.isnan(self.mask) else self.mask
        return torch.cat([logits[:, :2], torch.full_like(logits[:, 2:], mask)], dim=1)


@pytest.mark.parametrize("mask", [-math.inf, math.nan])
def test_masked_logits_are_equal_and_allow_nothing_more(mask: float) -> None:
    """NaN stands for the lowest number of the type that is computed in."""
    torch.manual_seed(0)
    net = MaskedNet(mask).eval()
    parity = held_against_eager(net, net=net)
    assert not differs(parity)
    assert parity.tolerance < 1e-4
    assert differs(held_against_eager(perturbed(copy.deepcopy(net)), net=net))
    assert differs(held_against_eager(make_net(), net=net))  # one without the mask


class CodingNet(Net):
    """A net that returns logits and a code, for which fp64 chooses another one of two that are tied."""

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        code = 500 if points.dtype == torch.float64 else 3
        return super().forward(points), torch.full((len(points),), code)


class CodedBlobs(Blobs):
    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch[0])[0]
        return logits


def test_whole_numbers_allow_nothing_more() -> None:
    torch.manual_seed(0)
    net = CodingNet().eval()
    workload = CodedBlobs(Settings(), Settings())

    same = compare(trained(workload, net), lambda *inputs: list(net(*inputs)))
    assert not differs(same)
    assert same.tolerance < 1e-4
    other = perturbed(copy.deepcopy(net))
    assert differs(compare(trained(workload, net), lambda *inputs: list(other(*inputs))))


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf])
def test_a_single_sample_that_disagrees_is_an_error(value: float) -> None:
    """The sample 40 is the ninth of the second batch."""
    net, wrong = make_net(), make_blobs().splits().test.batch([40])[0]

    def serve(points: Tensor) -> Tensor:
        logits: Tensor = net(points).clone()
        logits[(points == wrong).all(1), 2] += value
        return logits

    parity = held_against_eager(serve)
    assert parity.largest_difference >= 1
    assert differs(parity)


def test_shapes_that_differ_are_infinitely_far_apart() -> None:
    assert largest_difference(torch.zeros(2, 3), torch.zeros(2, 1)) == math.inf
    assert largest_difference(torch.tensor([math.nan]), torch.tensor([math.nan])) == 0


def test_sizes_that_vary_are_seen_in_the_calls() -> None:
    """Texts are as wide as the longest of their batch; the second input has one number a sample."""

    def calls_of(indices: object) -> list[tuple[Tensor, ...]]:
        rows = list(indices)  # type: ignore[call-overload]
        return [(torch.zeros(len(rows), 5 + max(rows) % 3, 7), torch.zeros(len(rows)))]

    shape = probe_calls(calls_of, count=40, batch_size=16)
    assert [set(varying) for varying in shape.varying] == [{0, 1}, {0}]
    assert shape.example[0].shape[0] == 16
    single = probe_calls(calls_of, count=40, batch_size=1)
    assert all(0 in varying for varying in single.varying)


def test_single_samples_of_varying_length_are_exported_for_any_batch(tmp_path: Path) -> None:
    """The longest text is a batch of one, a size that torch.export takes for constant."""
    lengths = [5, 7, 30, 9]

    def calls_of(indices: Sequence[int]) -> list[tuple[Tensor, ...]]:
        return [(torch.ones(len(indices), max(lengths[index] for index in indices)),)]

    shape = probe_calls(calls_of, count=4, batch_size=1)
    model = nn.Softmax(dim=1)
    write, load = EXPORTERS["torch-export"]
    write(model, shape, tmp_path)
    (output,) = load(tmp_path, CPU, 1)(torch.ones(4, 30))
    assert output.shape == (4, 30)


class TwoTexts(nn.Module):
    """Adds up the embeddings of two texts, each of its own length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden = [torch.relu(self.head(self.embedding(text))) for text in (source, target)]
        return hidden[0].mean(1) + hidden[1].mean(1)


@pytest.mark.parametrize("length", [10, 17])  # 17: in the example, both are equally long
def test_texts_of_different_lengths_have_axes_of_different_names(
    length: int, tmp_path: Path
) -> None:
    example = tuple(torch.ones(4, size, dtype=torch.long) for size in (length, 17))
    shape = CallShape(example=example, varying=[frozenset({0, 1})] * 2)
    assert shape.describe(1) == "int64 (batch, axis_1_1)"
    model = TwoTexts().eval()
    write, load = EXPORTERS["onnx"]
    with torch.no_grad():
        write(model, shape, tmp_path)
        inputs = [torch.arange(2 * size).view(2, size) % 50 for size in (40, 3)]
        (output,) = load(tmp_path, CPU, 1)(*inputs)
        torch.testing.assert_close(output, model(*inputs))


class MaskedBlobs(Blobs):
    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch[0], mask=None)
        return logits


def test_a_model_that_is_called_by_keywords_is_refused() -> None:
    with pytest.raises(NotApplied, match="calls the model with other things than tensors"):
        trained(MaskedBlobs(Settings(), Settings()), make_net()).calls([0])
    (inputs,) = trained(make_blobs(), make_net()).calls([0, 1])
    assert inputs[0].shape == (2, 4)
