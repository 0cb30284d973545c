from __future__ import annotations

from dataclasses import fields

import pytest

from harness.core.errors import BadInput, did_you_mean, parse_percentage
from harness.core.synonyms import SYNONYMS
from harness.core.validation import members_by_source
from harness.spec.axes import AXIS_TYPES, axis_choices
from harness.spec.sweep import SWEEP_KEYS
from workloads.catalog import BUILT_IN


@pytest.mark.parametrize(
    ("word", "allowed", "nearest"),
    [
        ("float16", ["bf16", "fp16", "fp32"], "fp16"),
        ("Half", ["bf16", "fp16"], "fp16"),
        ("bfloat16", ["bf16", "fp16"], "bf16"),
        ("eagr", ["compile", "eager"], "eager"),
        ("float16", ["float", "int"], "float"),
    ],
)
def test_synonym_goes_before_words_that_are_spelled_alike(
    word: str, allowed: list[str], nearest: str
) -> None:
    assert did_you_mean(word, allowed).startswith(f"did you mean {nearest!r}? allowed: ")


def test_every_synonym_is_of_a_word_that_a_sweep_file_may_have() -> None:
    words = {*AXIS_TYPES, *SWEEP_KEYS, "length.epochs", "length.steps"}
    for axis in AXIS_TYPES:
        words.update(axis_choices(axis))
    for workload in BUILT_IN.values():
        words.update(field.name for field in fields(workload.options))
        words.update(members_by_source(workload.data))
    assert set(SYNONYMS.values()) <= words


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
