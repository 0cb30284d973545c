from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput
from harness.sweep.document import parse_document, parse_value, read_document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("2E5", 200_000.0),
        ("-.5e+1", -5.0),
        ("3", 3),
        ("0.25", 0.25),
        ("'1e-3'", "1e-3"),
        ("2024-01-31", "2024-01-31"),
        ("bf16", "bf16"),
        ("1e", "1e"),
        ("compile:max-autotune", "compile:max-autotune"),
        ("[1, two]", [1, "two"]),
        ("", None),
    ],
)
def test_values_of_yaml(text: str, value: Any) -> None:
    assert parse_value(text, "--set x") == value


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\r\ncount: 3\r\n")
    assert read_document(path).content == {"name": "x", "count": 3}


@pytest.mark.parametrize("text", ["{a: 1, a: 2}", "*a", "[" * 5000])
def test_value_of_a_flag_is_read_as_strictly_as_a_file(text: str) -> None:
    with pytest.raises(BadInput, match=r"^--set x: [^\n]*$"):
        parse_value(text, "--set x")


def test_error_without_a_place_of_its_own_has_that_of_the_key_above() -> None:
    document = parse_document("name: x\ninner:\n  kind: left\n", "file.yaml")
    assert str(document.error(("inner", "share"), "odd")) == "file.yaml:2: inner.share: odd"
    assert str(document.error((), "odd")) == "file.yaml: odd"
    assert "\n" not in str(document.error(("inner",), "two\nlines"))
