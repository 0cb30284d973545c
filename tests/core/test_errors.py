"""Percentages, lines, ranges of numbers, and the values of variables that are withheld."""

from __future__ import annotations

import pytest

from harness.core.errors import BadInput, one_line, parse_percentage
from harness.core.text import ranges
from harness.core.variables import WITHHELD, recorded_value


@pytest.mark.parametrize(
    ("text", "fraction"), [("5%", 0.05), ("5", 0.05), ("1", 0.01), ("0.5%", 0.005), ("99.5", 0.995)]
)
def test_percentage(text: str, fraction: float) -> None:
    assert parse_percentage(text, "--until") == fraction


@pytest.mark.parametrize("text", ["0.05", "0", "0%", "100", "100%", "-5", "nan", "5%%", "", "%"])
def test_no_percentage(text: str) -> None:
    with pytest.raises(BadInput, match=r"^--until: found .*allowed: a percentage above 0%"):
        parse_percentage(text, "--until")


def test_fraction_is_answered_with_both_percentages() -> None:
    with pytest.raises(BadInput, match=r"found '0\.05'; did you mean '5%' or '0\.05%'\? allowed"):
        parse_percentage("0.05", "--until")


def test_one_line_has_no_escape_sequences() -> None:
    assert one_line("\x1b[1mbold\x1b[0m\nand\x07 plain") == "bold and plain"


def test_numbers_that_follow_each_other_are_a_range() -> None:
    assert (ranges([]), ranges([7, 1, 2])) == ("", "1-2, 7")
    assert (ranges(range(1, 1024)), ranges([0, 2, 3, 4, 6])) == ("1-1023", "0, 2-4, 6")


def test_a_value_is_withheld_by_the_name_of_its_variable() -> None:
    for name in ("NCCL_ALGO", "OPENBLAS_L2_SIZE", "PYTHONHASHSEED", "LD_LIBRARY_PATH"):
        assert recorded_value(name, "hunter2") == "hunter2"
    for name in ("SLURM_JWT", "TORCH_API_KEY", "DB_PASSWORD", "PLAIN"):
        assert recorded_value(name, "hunter2") == WITHHELD
