"""Samples in memory: a batch has whole rows, as indexing takes them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workloads.base import TensorSamples

IMAGES = torch.randn(6, 3, 4, 5)


@pytest.mark.parametrize(
    "tensor",
    [
        IMAGES,
        IMAGES.to(memory_format=torch.channels_last),
        IMAGES[:, :, ::2],
        torch.arange(6),
        torch.arange(6).to(torch.uint16),
        torch.arange(12).to(torch.uint16).view(6, 2),
        torch.zeros(1).expand(6),
        torch.empty(6, 0),
    ],
    ids=["rows", "channels-last", "strided", "1-d", "1-d uint16", "uint16", "expanded", "empty"],
)
@pytest.mark.parametrize("indices", [[4, 0, 4], range(2), range(0)], ids=["list", "range", "none"])
def test_a_batch_is_what_indexing_takes(tensor: Tensor, indices: list[int] | range) -> None:
    (batch,) = TensorSamples((tensor,)).batch(indices)
    expected = tensor[torch.tensor(list(indices), dtype=torch.int64)]
    assert batch.dtype == expected.dtype
    assert batch.stride() == expected.stride()
    assert torch.equal(batch, expected)
