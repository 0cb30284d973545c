"""Decoded data sets are the same tensors wherever they come from, and are decoded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from workloads import shared
from workloads.images import Digits
from workloads.mlp import MLP
from workloads.mlp_settings import MLPOptions
from workloads.shared import share_in, shared_tensors


@pytest.fixture(autouse=True)
def nothing_shared() -> Iterator[None]:
    """Share nothing after a test."""
    yield
    shared._folders.clear()


def test_shared_images_are_those_that_a_process_decodes_by_itself(tmp_path: Path) -> None:
    data = Digits(validation=0.2)
    decoded = MLP(MLPOptions(), data).tensors
    share_in(tmp_path)
    for _ in range(2):
        shared_images = MLP(MLPOptions(), data).tensors
        assert set(shared_images) == set(decoded)
        for name, tensor in shared_images.items():
            assert torch.equal(tensor, decoded[name])
            assert tensor.is_contiguous()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_set_is_decoded_once_for_each_state_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    file = tmp_path / "file"
    decodings: list[str] = []

    def decode() -> dict[str, torch.Tensor]:
        decodings.append(file.read_text(encoding="utf-8"))
        return {"values": torch.tensor([float(decodings[-1])])}

    def value(settings: str) -> float:
        return float(shared_tensors(settings, [file], decode)["values"])

    file.write_text("1", encoding="utf-8")
    share_in(folder)
    assert [value("a"), value("a"), value("b")] == [1, 1, 1]
    file.write_text("2", encoding="utf-8")
    assert value("a") == 2
    assert decodings == ["1", "1", "2"]


def test_who_writes_to_a_shared_tensor_changes_it_for_nobody_else(tmp_path: Path) -> None:
    share_in(tmp_path)

    def values() -> torch.Tensor:
        return shared_tensors("zeros", [], lambda: {"values": torch.zeros(10_000)})["values"]

    values()[:] = 1
    assert values().sum() == 0


def test_a_set_that_can_not_be_written_is_used_all_the_same(tmp_path: Path) -> None:
    share_in(tmp_path / "missing")
    tensors = shared_tensors("ones", [], lambda: {"values": torch.ones(1)})
    assert tensors["values"].tolist() == [1]
