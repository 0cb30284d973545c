"""Sweep files that can't be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_input.refusals import GOOD, check, param, refused

YAML = [
    param(
        "deep",
        GOOD + f"matrix: {'[' * 5000}{']' * 5000}\n",
        "sweep.yaml: no valid YAML: maximum recursion depth exceeded",
    ),
    param(
        "empty",
        "",
        "sweep.yaml: found no mapping; allowed: keys with values",
    ),
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
        "escape",
        'name: "\\x1b[2J"\nworkloads: {mlp: }\n',
        'sweep.yaml:1: name: found "\\u001b[2J"; allowed: letters, digits, ., - and _, at most 200',
    ),
    param(
        "large",
        GOOD + "#" * 2**20,
        "sweep.yaml: found more than 1,048,576 bytes; allowed: at most as many",
    ),
    param(
        "twice",
        GOOD + "seeds: [0]\nseeds: [1]\n",
        'sweep.yaml:5: no valid YAML: found duplicate key "seeds"',
    ),
    param(
        "list-key",
        GOOD + "? [a, b]\n: 3\n",
        "sweep.yaml: no valid YAML: keys must be str, int, float, bool or None, not tuple",
    ),
]


@pytest.mark.parametrize(("spec", "begins", "contains"), YAML)
def test_yaml(spec: str, begins: str, contains: tuple[str, ...]) -> None:
    Path("sweep.yaml").write_text(spec, encoding="utf-8")
    check(refused("run", "sweep.yaml"), begins, *contains)


def test_sweep_name_that_is_unknown() -> None:
    line = refused("run", "quikstart")
    check(
        line, "quikstart: no such sweep file or ready sweep; did you mean 'quickstart'? allowed: "
    )


def test_script_in_place_of_a_sweep() -> None:
    Path("train.py").touch()
    line = "train.py: found Python; allowed: a sweep: `harness init train.py` writes it"
    assert refused("run", "train.py") == line


def test_sweep_file_that_is_not_utf8() -> None:
    Path("sweep.yaml").write_bytes(b"name: demo\ndescription: caf\xe9\n")
    assert refused("run", "sweep.yaml") == (
        "sweep.yaml: can't be read: 'utf-8' codec can't decode byte 0xe9 in position 27: invalid"
        " continuation byte; allowed: a YAML file in UTF-8"
    )
