"""Files and flags in YAML: sweeps, cluster profiles, `gate.yaml`, `--set` and `--data`.

By structure: keys that exist, with values that are right, nearly right, or of any shape. By text:
what no structure leads to, such as tags, broken quotes and control characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import did_you_mean
from harness.core.text import counted
from harness.gate.limits import read_gate
from harness.spec import partitions
from harness.spec.axes import AXIS_TYPES, axis_choices
from harness.spec.cluster import Profile, load_profile
from harness.spec.document import parse_document, parse_value
from harness.spec.slurm import SlurmOptions
from harness.spec.sweep import SWEEP_KEYS, load_sweep
from harness.spec.validity import ValidityRules
from tests.fuzz.outcome import assert_read_or_refused

Strategy = st.SearchStrategy[Any]

NUMBERS = (
    st.sampled_from([0, 1, 2, 64, -1, 2**31, 2**32, 2**63 - 1, 2**63, 10**400, 1e308, 1e-308])
    | st.integers()
    | st.floats()
)
TEXTS = st.text(max_size=8) | st.sampled_from(
    ["", "mlp", "[/x]", "\x1b[2J", "::error::", "1e3", "1:30:00", "../x", "a" * 300, "digits", "1%"]
)
SCALARS: Strategy = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES: Strategy = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)


def nearly(right: Strategy) -> Strategy:
    """Return a strategy of values that are mostly right, and now and then of any shape."""
    return st.one_of(right, right, right, VALUES)


def mapping(keys: Mapping[str, Strategy]) -> Strategy:
    """Return a strategy of some of the keys with nearly right values, now and then an unknown one."""
    known = st.fixed_dictionaries({}, optional={key: nearly(value) for key, value in keys.items()})
    unknown = st.dictionaries(TEXTS, SCALARS, max_size=1)
    return st.one_of(known, known, st.builds(lambda some, other: {**some, **other}, known, unknown))


def axis_value(axis: str) -> Strategy:
    """Return a strategy of values of an axis that are right, or right for another axis."""
    choices = axis_choices(axis)
    if choices:
        return st.sampled_from([*choices, True, False])
    return st.sampled_from([1, 2, 32, 64, 0.5, None])


AXIS_NAMES = list(AXIS_TYPES)
AXES = mapping({axis: axis_value(axis) for axis in AXIS_NAMES})
LISTS_OF_AXES = st.dictionaries(
    st.sampled_from([*AXIS_NAMES, "workload"]),
    nearly(st.lists(st.sampled_from([1, 2, "ddp", "eager", "bf16", True]), min_size=1, max_size=3)),
    max_size=3,
)
RULES = st.lists(AXES | LISTS_OF_AXES, max_size=3)
LENGTH = st.sampled_from([{"steps": 20}, {"epochs": 1}, {"steps": 20, "epochs": 1}, {"steps": 0}])
SEEDS = st.lists(st.integers(0, 5) | NUMBERS, max_size=4)
DATA = st.sampled_from(
    [{"source": "digits"}, {"source": "idx"}, {"source": "csv", "path": "x.csv"}, {"source": "no"}]
)
WORKLOAD = mapping(
    {
        "uses": st.sampled_from(["mlp", "cnn", "distilbert", "mine.py:Mine", "a.b:C", ":", "a:"]),
        "options": mapping({"hidden": st.just([8]), "dropout": st.floats(0, 1), "size": TEXTS}),
        "data": DATA,
        "axes": AXES,
        "length": LENGTH,
        "evaluate": LENGTH,
        "seeds": SEEDS,
    }
)
SWEEP = mapping(
    {
        "name": TEXTS | st.just("demo"),
        "workloads": st.dictionaries(st.sampled_from(["mlp", "cnn"]) | TEXTS, WORKLOAD, max_size=3),
        "description": TEXTS,
        "seeds": SEEDS,
        "repeats": st.integers(1, 3) | NUMBERS,
        "length": LENGTH,
        "evaluate": LENGTH,
        "warmup": st.integers(0, 30) | NUMBERS,
        "checkpoint": st.sampled_from(["none", "best"]),
        "profile": st.sampled_from([None, {"steps": 3}]),
        "timeout": NUMBERS,
        "axes": AXES,
        "matrix": LISTS_OF_AXES,
        "zip": st.lists(LISTS_OF_AXES, max_size=2),
        "exclude": RULES,
        "include": RULES,
    }
)
# The two keys without which no other is looked at.
WHOLE_SWEEP = st.builds(
    lambda content: {"name": "demo", "workloads": {"mlp": None}, **content}, SWEEP
)
GOOD_SWEEP = "name: demo\nworkloads:\n  mlp: {data: {source: digits}}\n  cnn:\n"


def fields_of(kind: Any) -> dict[str, Strategy]:
    """Return a strategy for each key of a section of a profile."""
    keys: dict[str, Strategy] = {}
    for name in kind.__dataclass_fields__:
        keys[name] = SCALARS | st.lists(TEXTS, max_size=2) | st.dictionaries(TEXTS, TEXTS)
    return keys


TIMES = st.sampled_from(["1:30:00", "2-00", "90", "x", "-1", "0", 90, "9" * 30, "1:99", "٣"])
SLURM = mapping(
    fields_of(SlurmOptions)
    | {
        "time": TIMES,
        "memory": st.sampled_from(["64G", "0", "1T", "x", "9" * 30 + "T", "٣G"]),
        "nodes": NUMBERS,
        "options": st.dictionaries(
            st.sampled_from(["comment", "mem", "a b", "me", "hold"]), TEXTS | st.none(), max_size=2
        ),
    }
)
PROFILE = mapping(
    fields_of(Profile)
    | {
        "launcher": st.sampled_from(["torchrun", "slurm"]),
        "device": st.sampled_from(["auto", "cpu", "cuda"]),
        "environment": st.dictionaries(TEXTS | st.just("A_B"), TEXTS, max_size=2),
        "validity": mapping(fields_of(ValidityRules)),
        "slurm": SLURM,
    }
)
SMALLEST = st.sampled_from(["1%", "0.5%", 0.02, "x", "100%", "nan%", "inf%", "-1%"])
POLICY = st.sampled_from(["ignore", "warn", "fail"])
OVERRIDES = mapping(
    {
        "min_effect": SMALLEST,
        "accuracy_margin": NUMBERS,
        "bits": POLICY,
        "inconclusive": POLICY,
    }
)
GATE = mapping(
    {
        "min_effect": SMALLEST,
        "accuracy_margin": NUMBERS,
        "bits": POLICY,
        "inconclusive": POLICY,
        "missing": POLICY,
        "across": st.lists(TEXTS, max_size=2),
        "cells": st.dictionaries(TEXTS, OVERRIDES, max_size=2),
    }
)
# Pieces of YAML that mean something to a parser.
SYNTAX = st.lists(
    st.sampled_from(
        [
            "name: demo\n", "workloads:\n", "  mlp: ", "{", "}", "[", "]", ":", ": ", "- ", "\n", "  ", "\t", ",", "'",
            '"', "|\n", ">\n", "#", "&a ", "*a", "!!int ", "!", "%YAML 1.1\n", "---\n", "...\n", "? ", "<<: ", "on",
            "~", "0x", "0b_", "1e9", "1_0", ".inf", "1:30", "\\x1b", "\\UFFFFFFFF", "\\uD800", "é", "\x85", "\ufeff",
            "\x00",
        ]
    )
    | st.text(max_size=4),
    max_size=20,
).map("".join)  # fmt: skip
SET_KEYS = st.sampled_from(
    [
        *AXIS_NAMES, *SWEEP_KEYS, "workloads.mlp", "workloads.mlp.options.hidden", "workloads.cnn.length.steps",
        "workloads.no.data", "length.steps", "evaluate.epochs", "matrix.precision", "zip.0", "a.b", "", ".", "seeds.x",
        "matrix..", "name.first", "axes.batch_size", "workloads..",
    ]
) | st.text(max_size=6)  # fmt: skip
SETS = st.lists(
    st.builds(
        lambda key, value: f"{key}={value}",
        SET_KEYS,
        SYNTAX | SCALARS.map(str) | VALUES.map(lambda value: json.dumps(value, ensure_ascii=False)),
    )
    | SYNTAX,
    max_size=3,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that every case writes."""
    return tmp_path_factory.mktemp("fuzz") / "file.yaml"


@pytest.fixture(scope="module", autouse=True)
def no_cluster() -> Any:
    """Keep profiles from asking a Slurm on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions, "query", list)
        yield


def write(path: Path, content: Any) -> None:
    """Write a content as YAML; what YAML can't spell, such as half a surrogate, is escaped."""
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def use(path: Path, sets: list[str] | None = None, data: list[str] | None = None) -> None:
    """Load a sweep and use what it promises: its trials, labels and ids."""
    sweep = load_sweep(path, sets or [], data or [])
    assert sweep.trials()
    for cell in sweep.cells:
        assert cell.label.isprintable()
        assert cell.id


@given(content=WHOLE_SWEEP)
def test_sweep_by_structure(path: Path, content: Any) -> None:
    write(path, content)
    assert_read_or_refused(lambda: use(path))


@given(text=SYNTAX | st.text())
def test_any_text(path: Path, text: str) -> None:
    assert_read_or_refused(lambda: parse_document(text, "file.yaml"))
    assert_read_or_refused(lambda: parse_value(text, "--set x"))
    path.write_bytes((GOOD_SWEEP + text).encode("utf-8", "surrogatepass"))
    assert_read_or_refused(lambda: use(path))


@given(content=st.binary(max_size=40), at=st.integers(0, len(GOOD_SWEEP)))
def test_any_bytes(path: Path, content: bytes, at: int) -> None:
    good = GOOD_SWEEP.encode()
    path.write_bytes(good[:at] + content + good[at + len(content) // 2 :])
    assert_read_or_refused(lambda: use(path))


@given(sets=SETS)
def test_set(path: Path, sets: list[str]) -> None:
    path.write_text(GOOD_SWEEP, encoding="utf-8")
    assert_read_or_refused(lambda: use(path, sets))


@given(data=st.lists(st.text(max_size=10) | st.sampled_from(["mlp=x", "no=x", "=", "x"])))
def test_data(path: Path, data: list[str]) -> None:
    path.write_text(GOOD_SWEEP, encoding="utf-8")
    assert_read_or_refused(lambda: use(path, data=data))


@given(content=PROFILE)
def test_profile(path: Path, content: Any) -> None:
    write(path, content)
    assert_read_or_refused(lambda: load_profile(str(path)))


@given(content=GATE, pattern=TEXTS)
def test_gate(path: Path, content: Any, pattern: str) -> None:
    write(path, content)
    assert_read_or_refused(lambda: read_gate(path))


@given(name=st.text() | TEXTS)
def test_names_of_files(name: str) -> None:
    assert_read_or_refused(lambda: load_profile(name))
    assert_read_or_refused(lambda: read_gate(Path(name)))


@given(value=VALUES, choices=st.lists(st.text(max_size=5)), count=st.integers(0, 3))
def test_hints_are_made_of_anything(value: Any, choices: list[str], count: int) -> None:
    assert did_you_mean(value, choices).endswith(", ".join(sorted(choices)) or "nothing")
    assert counted(count, "cell").endswith("s") == (count != 1)
