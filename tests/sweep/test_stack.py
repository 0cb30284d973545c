"""Stacks in sweep files: how they are declared, what they change in an id, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.sweep.sweep import Sweep, load_sweep

HEAD = "name: demo\nworkloads: {mlp: {}}\nlength: {steps: 30}\n"
OLD = "{python: /envs/old/bin/python}"
BOX = "{prefix: [apptainer, exec, image.sif]}"


def load(folder: Path, text: str, *sets: str) -> Sweep:
    path = folder / "sweep.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return load_sweep(path, sets)


def test_a_stack_is_an_axis_as_any_other(tmp_path: Path) -> None:
    text = (
        f"stacks: {{old: {OLD}, box: {BOX}}}\n"
        "zip: [{stack: [null, old], env.SOME_NAME: [1, 2]}]\n"
        "include: [{stack: box, precision: [fp32, bf16]}]\n"
        "exclude: [{stack: old}]\n"
    )
    levels = [(cell.axes.stack, cell.axes.precision) for cell in load(tmp_path, text).cells]
    assert levels == [(None, "fp32"), ("box", "fp32"), ("box", "bf16")]


def test_name_and_definition_decide_the_id_and_other_stacks_do_not(tmp_path: Path) -> None:
    def cell_id(stacks: str, name: str) -> str:
        sweep = load(tmp_path, f"stacks: {stacks}\nmatrix: {{stack: {name}}}\n")
        return sweep.cells[0].settings_id

    plain = load(tmp_path, "").cells[0].settings_id
    assert cell_id(f"{{old: {OLD}}}", "null") == plain
    ids = [
        cell_id(f"{{old: {OLD}}}", "old"),
        cell_id(f"{{new: {OLD}}}", "new"),
        cell_id(f"{{old: {BOX}}}", "old"),
    ]
    assert len({plain, *ids}) == 4
    assert cell_id(f"{{box: {BOX}, old: {OLD}}}", "old") == ids[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "matrix: {stack: [old]}\n",
            "4: matrix.stack[0]: found 'old'; allowed: null, as the key stacks declares",
        ),
        (
            f"stacks: {{old: {OLD}, box: {BOX}}}\nmatrix: {{stack: odl}}\n",
            "5: matrix.stack: found 'odl'; did you mean 'old'? allowed: box, null, old",
        ),
    ],
    ids=["undeclared", "misspelled"],
)
def test_what_is_no_stack_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        load(tmp_path, text)
    assert message in str(refusal.value)
