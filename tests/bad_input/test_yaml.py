"""Sweep files that can't be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bad_input.refusals import GOOD, check, param, refused

YAML = [
    param("empty", "", "sweep.yaml: found nothing; allowed: keys with values"),
    param("comment", "# later\n", "sweep.yaml: found nothing; allowed: keys with values"),
    param("list", "- name: demo\n", "sweep.yaml: found no mapping; allowed: keys with values"),
    param(
        "tab",
        "name: demo\nworkloads:\n\tmlp:\n",
        "sweep.yaml:3: no valid YAML: found character '\\t' that cannot",
    ),
    param(
        "open-bracket",
        "name: [demo\nworkloads: {}\n",
        "sweep.yaml:2: no valid YAML: expected ',' or ']'",
    ),
    param(
        "two-documents",
        GOOD + "---\nname: other\n",
        "sweep.yaml:4: no valid YAML: but found another document",
    ),
    param(
        "tag",
        GOOD + "axes: !!python/name:os.system\n",
        "sweep.yaml:4: found the tag !!python/name:os.system; allowed: values without tags",
    ),
    param("set", GOOD + "axes: !!set {ddp}\n", "sweep.yaml:4: found the tag !!set; allowed: "),
    param("empty-number", GOOD + "warmup: !!int ''\n", "sweep.yaml:4: found the tag !!int; allo"),
    param(
        "digits",
        GOOD + "warmup: 0b_\n",
        'sweep.yaml:4: warmup: found "0b_"; allowed: ',
    ),
    param("no-character", 'name: "\\UFFFFFFFF"\n', "sweep.yaml: no valid YAML: "),
    param(
        "many-digits",
        GOOD + f"warmup: {'9' * 5000}\n",
        "sweep.yaml:4: found 999999999999999999999999999999999999999…; allowed: an integer of at",
    ),
    param(
        "escape",
        'name: "\\x1b[2J"\nworkloads: {mlp: }\n',
        "sweep.yaml:1: name: found '\\x1b[2J', with the character '\\x1b'; allowed: text without it",
    ),
    param(
        "escape-in-key",
        'name: demo\nworkloads: {"\\x1b[2J": {uses: mlp}}\n',
        "sweep.yaml:2: workloads: found '\\x1b[2J', with the character '\\x1b'; allowed: text",
    ),
    param(
        "surrogate",
        'name: "\\uD800"\nworkloads: {mlp: }\n',
        "sweep.yaml:1: name: found '\\ud800', with the chara",
    ),
    param(
        "many-values",
        GOOD + f"seeds: [{'1,' * 20_001}]\n",
        "sweep.yaml:4: found more than 20,000 values; allowed: at most as many",
    ),
    param(
        "deep",
        GOOD + f"axes: {'[' * 5000}{']' * 5000}\n",
        "sweep.yaml:4: found nesting deeper than 32 levels; allowed: at most as many",
    ),
    param(
        "large",
        GOOD + "#" * 2**20,
        "sweep.yaml: found more than 1,048,576 bytes; allowed: at most as many",
    ),
    param(
        "aliases",
        GOOD + "axes:\n  a: &a [1, 1]\n  b: &b [*a, *a]\n",
        "sweep.yaml:6: found the alias *a; allowed: the value itself",
    ),
    param(
        "control-character",
        "name: de\x01mo\n",
        "sweep.yaml: no valid YAML: unacceptable character #x0001",
    ),
    param(
        "endless",
        GOOD + "axes: &a {x: *a}\n",
        "sweep.yaml:4: found the alias *a; allowed: the value itself",
    ),
    param(
        "twice",
        GOOD + "seeds: [0]\nseeds: [1]\n",
        "sweep.yaml:5: seeds: given twice; allowed: once",
    ),
    param(
        "twice-inside",
        "name: demo\nworkloads:\n  mlp:\n    data: {source: digits}\n    data: {source: idx}\n",
        "sweep.yaml:5: workloads.mlp.data: given twice; allowed: once",
    ),
    param(
        "boolean-key",
        GOOD + "  no: {uses: mlp}\n",
        "sweep.yaml:4: workloads.no: found a key of YAML type bool; allo",
    ),
    param(
        "number-key",
        GOOD + "matrix: {3: [1]}\n",
        "sweep.yaml:4: matrix.3: found a key of YAML type int; allowed: text",
    ),
    param(
        "list-key",
        GOOD + "? [a, b]\n: 3\n",
        "sweep.yaml:4: ?: found a key of YAML type seq; allowed: text",
    ),
]


@pytest.mark.parametrize(("spec", "begins", "contains"), YAML)
def test_yaml(spec: str, begins: str, contains: tuple[str, ...]) -> None:
    Path("sweep.yaml").write_text(spec, encoding="utf-8")
    check(refused("run", "sweep.yaml"), begins, *contains)


def test_sweep_file_that_is_missing() -> None:
    line = refused("run", "swep.yaml")
    check(line, "swep.yaml: no such sweep file or ready sweep; allowed: ")


def test_sweep_name_that_is_unknown() -> None:
    line = refused("run", "quikstart")
    check(
        line, "quikstart: no such sweep file or ready sweep; did you mean 'quickstart'? allowed: "
    )


def test_sweep_file_that_is_a_folder() -> None:
    Path("sweep.yaml").mkdir()
    line = refused("run", "sweep.yaml")
    check(line, "sweep.yaml: found a folder; allowed: ")


def test_sweep_file_that_is_a_pipe() -> None:
    os.mkfifo("sweep.yaml")
    assert refused("run", "sweep.yaml") == "sweep.yaml: found no regular file; allowed: a YAML file"


def test_sweep_file_that_is_not_utf8() -> None:
    Path("sweep.yaml").write_bytes(b"name: demo\ndescription: caf\xe9\n")
    assert refused("run", "sweep.yaml") == "sweep.yaml:2: found byte 0xe9; allowed: UTF-8 text"
