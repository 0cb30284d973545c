from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness.core.validation import InvalidValue, decode_value
from harness.sweep.axes import Axes
from workloads.distilbert_settings import CHECKPOINT, Csv, DistilBertOptions
from workloads.images import Idx
from workloads.mlp_settings import MLPOptions
from workloads.settings import Settings


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (MLPOptions, {"hidden": [0]}),
        (MLPOptions, {"dropout": 1}),
        (MLPOptions, {"lr": 0}),
        (DistilBertOptions, {"sequence": 513}),
    ],
)
def test_options_refuse_values_without_sense(kind: type[Settings], values: Any) -> None:
    with pytest.raises(InvalidValue, match=r"."):
        decode_value(kind, values, refuse_unknown=True)


def test_compile_asks_for_fixed_padding() -> None:
    compiled = asdict(Axes(batch_size=8, execution="compile"))
    assert "set padding to fixed" in str(DistilBertOptions().conflict(compiled))
    assert DistilBertOptions(padding="fixed").conflict(compiled) is None
    assert DistilBertOptions().conflict(asdict(Axes(batch_size=8))) is None


def test_paths_are_no_part_of_the_identity_and_a_pretrained_folder_counts_by_content(
    tmp_path: Path,
) -> None:
    assert Csv(path=tmp_path).identity() == Csv(path=tmp_path.parent).identity()
    assert Idx(path=tmp_path).identity() == {"source": "idx", "classes": 10, "validation": 0.0}
    pretrained = DistilBertOptions(pretrained=tmp_path)
    assert pretrained.files() == [tmp_path / name for name in CHECKPOINT]
    assert "pretrained" not in pretrained.identity()
