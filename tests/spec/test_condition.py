"""The conditions that `--only` takes."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import BadInput
from harness.spec.selected import MAX_DEPTH, check_condition, parse_condition

LEVELS: Mapping[str, Hashable] = {
    "strategy": "ddp",
    "precision": "bf16",
    "execution": "compile:reduce-overhead",
    "world_size": 2,
    "deterministic": False,
    "max_grad_norm": None,
    "options.hidden": (256, 128),
    "options.lr": 0.001,
    "env.NCCL_DEBUG": "1",
    "workload": "my net",
    "seed": 1,
}


def holds(text: str) -> bool:
    return parse_condition(text).holds(LEVELS.__getitem__)


@pytest.mark.parametrize(
    "text",
    [
        "strategy=ddp",
        "strategy == ddp and precision!=fp16",
        "strategy=fsdp2 or precision=bf16",
        # `and` binds more tightly than `or`
        "strategy=ddp or strategy=fsdp2 and precision=fp32",
        "not (strategy=fsdp2 or precision=fp32)",
        "not not strategy=ddp",
        "precision in (bf16, fp16)",
        "precision not in (fp32)",
        "execution=compile:reduce-overhead",
        "world_size>1 and world_size<=2 and world_size<3 and world_size>=2",
        "deterministic=false",
        "max_grad_norm=null",
        "options.hidden=[256, 128]",
        "options.hidden in ([64], [256,128])",
        "options.lr=1e-3",
        "env.NCCL_DEBUG=1",
        "workload='my net'",
        'workload="my net" and seed in (0,1)',
    ],
)
def test_condition_holds(text: str) -> None:
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "strategy!=ddp",
        "(strategy=ddp or strategy=fsdp2) and precision=fp32",
        "world_size=true",  # which equals 1 in Python
        "deterministic=0",
        "max_grad_norm<1",  # no number is neither below nor above one
        "max_grad_norm>=1",
        "options.hidden=[256]",
        "not precision in (bf16, fp16)",
    ],
)
def test_condition_does_not_hold(text: str) -> None:
    assert not holds(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--only '': column 1: found the end; allowed: the name of an axis, workload, seed,"),
        ("strategy", "column 9: found the end; allowed: =, !=, <, <=, >, >=, in, not in"),
        ("strategy=", "column 10: found the end; allowed: a value"),
        (
            "strategy=ddp precision=bf16",
            "column 14: found 'precision'; allowed: and, or, or the end",
        ),
        ("strategy=(ddp)", "column 10: found '('; allowed: a value"),
        ("(strategy=ddp", "column 14: found the end; allowed: and, or, )"),
        ("strategy in ddp", "column 13: found 'ddp'; allowed: ( and values"),
        ("strategy in (ddp fsdp2)", "column 18: found 'fsdp2'; allowed: a comma, )"),
        ("strategy not ddp", "column 14: found 'ddp'; allowed: in"),
        ("and=1", "column 1: found 'and'; allowed: the name of an axis"),
        ("strategy=ddp and !", "column 18: found '!'; allowed: a comparison"),
        ("strategy='ddp", 'column 10: found "\'"; allowed: a comparison'),
        ("(" * 500, f"column {MAX_DEPTH + 2}: found '('; allowed: at most {MAX_DEPTH} parentheses"),
        ("not " * 500, "column 2000: found the end"),
        ("x" * 2001, "--only: found 2,001 characters; allowed: at most 2,000"),
        ("strategy=\x1b", "found a control character"),
    ],
)
def test_mistake_is_named_with_its_column(text: str, message: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_condition(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "strategy=ddp and precison=bf16",
            "--only 'strategy=ddp and precison=bf16': column 18: unknown name 'precison';"
            " did you mean 'precision'? allowed: ",
        ),
        ("strategy in (ddp, fdsp2)", "column 19: strategy: found 'fdsp2'; did you mean 'fsdp2'?"),
        ("workload=cnn", "column 10: workload: found 'cnn'; allowed: my net"),
        ("strategy>1", "column 1: found > with strategy, which is no number here (ddp)"),
        ("world_size>two", "column 1: found > with 'two'; allowed: a number after >"),
    ],
)
def test_unknown_name_and_value_are_refused(text: str, message: str) -> None:
    levels = {name: {level} for name, level in LEVELS.items()}
    with pytest.raises(BadInput) as error:
        check_condition(parse_condition(text), text, levels)
    assert message in str(error.value)


def test_a_value_that_an_axis_has_and_the_sweep_has_not_is_allowed() -> None:
    text = "precision!=fp16"
    levels = {name: {level} for name, level in LEVELS.items()}
    check_condition(parse_condition(text), text, levels)


def names_or_error(text: str) -> str:
    """Return the names that a condition compares, separated by spaces, or what is wrong with it."""
    try:
        return " ".join(comparison.name for comparison in parse_condition(text).comparisons())
    except BadInput as error:
        return str(error)


@given(st.text("()[],=!<>'\" andorti1.s:{&*", max_size=40))
def test_any_text_is_a_condition_or_bad_input(text: str) -> None:
    one_line = r"--only .*: column \d+: .*"
    assert re.fullmatch(rf"{one_line}|[andorti1.s:{{&* ]+", names_or_error(text))
