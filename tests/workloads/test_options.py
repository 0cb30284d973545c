from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness.core.validation import InvalidValue, decode_value
from harness.sweep.axes import Axes
from workloads.cnn_settings import CNNOptions
from workloads.distilbert_settings import CHECKPOINT, DistilBertOptions
from workloads.images import Digits, Idx, ImageData
from workloads.mlp_settings import MLPOptions
from workloads.settings import Settings
from workloads.texts import Csv, TextData, Tickets


def read(kind: Any, document: str) -> Any:
    return decode_value(kind, json.loads(document), refuse_unknown=True)


@pytest.mark.parametrize(
    ("kind", "document", "expected"),
    [
        (MLPOptions, '{"hidden": [8, 4], "dropout": 0}', MLPOptions(hidden=(8, 4), dropout=0.0)),
        (CNNOptions, '{"width": 4, "batch_norm": true}', CNNOptions(width=4, batch_norm=True)),
        (DistilBertOptions, '{"size": "base"}', DistilBertOptions(size="base")),
        (DistilBertOptions, '{"pretrained": "model"}', DistilBertOptions(pretrained=Path("model"))),
    ],
)
def test_options_are_read_strictly(kind: type[Settings], document: str, expected: Settings) -> None:
    assert read(kind, document) == expected


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (MLPOptions, '{"hiden": [8]}'),
        (MLPOptions, '{"hidden": [0]}'),
        (MLPOptions, '{"hidden": ["8"]}'),
        (MLPOptions, '{"dropout": 1}'),
        (MLPOptions, '{"lr": 0}'),
        (CNNOptions, '{"width": 1.5}'),
        (DistilBertOptions, '{"size": "large"}'),
        (DistilBertOptions, '{"sequence": 513}'),
        (DistilBertOptions, '{"vocabulary": 512, "pretrained": "model"}'),
    ],
)
def test_options_refuse_what_they_do_not_know(kind: type[Settings], document: str) -> None:
    with pytest.raises(InvalidValue, match=r"."):
        read(kind, document)


@pytest.mark.parametrize(
    ("union", "document", "expected"),
    [
        (ImageData, '{"source": "digits"}', Digits()),
        (ImageData, '{"source": "idx", "path": "mnist"}', Idx(path=Path("mnist"))),
        (
            TextData,
            '{"source": "csv", "path": "a.csv", "label": "category"}',
            Csv(path=Path("a.csv"), label="category"),
        ),
        (TextData, '{"source": "tickets", "rows": 100}', Tickets(rows=100)),
    ],
)
def test_sources_are_told_apart(union: Any, document: str, expected: Settings) -> None:
    assert read(union, document) == expected


def test_a_source_does_not_take_the_keys_of_another() -> None:
    with pytest.raises(InvalidValue, match=r"^path: unknown key"):
        read(TextData, '{"source": "tickets", "path": "a.csv"}')


def conflict(options: DistilBertOptions, **axes: Any) -> str | None:
    """Return the options' conflict with axes, the others at their defaults."""
    return options.conflict(asdict(Axes(batch_size=8, **axes)))


def test_compile_asks_for_fixed_padding() -> None:
    reason = conflict(DistilBertOptions(), execution="compile")
    assert reason is not None
    assert "set padding to fixed" in reason
    assert conflict(DistilBertOptions(padding="fixed"), execution="compile") is None
    assert conflict(DistilBertOptions()) is None


def test_a_pretrained_folder_counts_by_content(tmp_path: Path) -> None:
    local = DistilBertOptions(pretrained=tmp_path)
    assert local.files() == [tmp_path / name for name in CHECKPOINT]
    assert "pretrained" not in local.identity()


def test_paths_are_no_part_of_the_identity(tmp_path: Path) -> None:
    assert Csv(path=tmp_path).identity() == Csv(path=tmp_path.parent).identity()
    assert Idx(path=tmp_path).identity() == {
        "source": "idx",
        "classes": 10,
        "validation": 0.0,
    }
