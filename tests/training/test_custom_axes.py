"""Axes that users write: checked as others are, part of a cell's id, and with an effect or named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput, CodeChanged, NotApplied
from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment
from harness.render import catalog as axes_view
from harness.reproduce.rebuild import rebuild_cell
from harness.spec import custom as custom_spec
from harness.spec import sweep as spec
from harness.spec.sweep import Sweep
from tests.support import own_axes
from tests.support.running import line_sweep
from tests.training.test_interruption import STEPS, attempt

FILE = Path(own_axes.__file__)


def load(folder: Path, *sets: str, **keys: Any) -> Sweep:
    """Return a sweep of the test workload, beside a copy of the axes."""
    if not (folder / FILE.name).exists():
        (folder / FILE.name).write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    uses = {"scale": "Scale", "freeze": "Freeze", "threads": "Threads", "idle": "Idle"}
    declared = {name: f"{FILE.name}:{uses[name]}" for name in keys.pop("declare", ["scale"])}
    length = {"steps": STEPS}
    path = line_sweep(folder, {"line": {}}, length=length, evaluate=length, custom=declared, **keys)
    return spec.load_sweep(path, sets)


def train(folder: Path, sweep: Sweep) -> Any:
    """Train the first trial of a sweep in this process."""
    trial = sweep.trials()[0]
    assignment = Assignment(trial=trial, base_folder=str(sweep.base_folder), device="cpu")
    return attempt(TrialFolder(folder / trial.id), assignment, None)


def test_a_value_is_part_of_a_cell_and_its_default_is_not(tmp_path: Path) -> None:
    plain, doubled = load(tmp_path, matrix={"custom.scale": [1.0, 2.0]}).cells
    without = load(tmp_path, declare=[]).cells[0]
    assert plain.id == without.id
    assert len({plain.id, doubled.id, plain.settings_id, doubled.settings_id}) == 4
    assert doubled.label == f"{without.label} scale=2.0"
    assert (plain.level("custom.scale"), doubled.levels["custom.scale"]) == (1.0, 2.0)
    assert load(tmp_path, "custom.scale=2.0").cells[0].id == doubled.id
    assert rebuild_cell(doubled, tmp_path, []) == doubled
    code = tmp_path / FILE.name
    code.write_text(f"{code.read_text(encoding='utf-8')}\nCHANGED = 1\n", encoding="utf-8")
    changed_plain, changed = load(tmp_path, matrix={"custom.scale": [1.0, 2.0]}).cells
    assert (changed_plain.id, changed.settings_id) == (plain.id, doubled.settings_id)
    assert changed.id != doubled.id


def test_it_changes_loss_and_optimizer(tmp_path: Path) -> None:
    losses = []
    for value in ("1.0", "2.0"):
        result = train(tmp_path, load(tmp_path, f"custom.scale={value}"))
        losses.append(result.loss.unpack())
    assert losses[1][0] == pytest.approx(2 * losses[0][0])
    assert losses[1][-1] < 1.5 * losses[0][-1], "with twice the learning rate it is ahead"


def test_an_axis_that_did_nothing_fails_by_name(tmp_path: Path) -> None:
    sweep = load(tmp_path, "custom.freeze=convolutions", declare=["freeze"])
    message = "custom.freeze=convolutions had no effect: the model has no convolution"
    with pytest.raises(NotApplied, match=f"^{re.escape(message)}$"):
        train(tmp_path, sweep)


def test_its_variables_are_unset_in_cells_at_the_default(tmp_path: Path) -> None:
    cells = load(tmp_path, declare=["threads"], matrix={"custom.threads": ["free", "bound"]}).cells
    assert [cell.environment for cell in cells] == [
        {"OMP_PROC_BIND": None},
        {"OMP_PROC_BIND": "true"},
    ]


def test_code_that_has_changed_since_is_refused(tmp_path: Path) -> None:
    sweep = load(tmp_path, "custom.scale=2.0")
    (tmp_path / FILE.name).write_text(
        FILE.read_text(encoding="utf-8") + "X = 1\n", encoding="utf-8"
    )
    with pytest.raises(CodeChanged, match=f"{FILE.name}: found SHA-256"):
        train(tmp_path, sweep)


def test_a_package_declares_axes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        custom_spec, "installed_axes", lambda: {"scale": f"{own_axes.__name__}:Scale"}
    )
    (cell,) = load(tmp_path, "custom.scale=2.0", declare=[]).cells
    assert cell.workload.custom_uses == {"scale": f"{own_axes.__name__}:Scale"}
    assert cell.level("custom.scale") == 2.0


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            {"matrix": {"custom.scale": [9.0]}},
            "matrix.custom.scale[0]: found 9.0; allowed: at most 4",
        ),
        (
            {"matrix": {"custom.scael": [2.0]}},
            "custom.scael: found no such axis; did you mean 'scale'",
        ),
        ({"axes": {"custom.scale": "x"}}, 'axes.custom.scale: found "x"; allowed: a number'),
        (
            {"declare": ["idle"]},
            "found nothing that Idle changes; allowed: one or more of environment, change_model",
        ),
        (
            {"include": [{"custom.scale": 2.0, "precision": "fp16"}]},
            "include[0]: custom.scale: precision fp16 scales the loss itself",
        ),
        (
            {"declare": ["threads"], "axes": {"env.OMP_PROC_BIND": "x", "custom.threads": "bound"}},
            "custom.threads: found the variable OMP_PROC_BIND; allowed: one of `variables`",
        ),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(tmp_path, **keys)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_axes_lists_those_of_installed_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = {"scale": f"{own_axes.__name__}:Scale", "gone": "nowhere:Axis"}
    monkeypatch.setattr(axes_view, "installed_axes", lambda: installed)
    axes_view.show_axes()
    shown = " ".join(capsys.readouterr().out.split())
    assert "custom.scale 0.5 to 4 default 1.0 Multiplies the loss, and the learning rate" in shown
    assert "custom.gone of nowhere:Axis, which can't be loaded: " in shown
