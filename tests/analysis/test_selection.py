"""Names of results on the command line, and the commands that take them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import baseline
from harness.analysis.selection import best_record, find_trial, select
from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.records.store import write_spec
from harness.sweep.cell import Cell, Trial
from harness.sweep.sweep import Sweep
from tests.factories import ENVIRONMENT, make_cell, make_record, write_trial
from tests.support.commands import CommandResult, harness
from tests.support.sweeps import load

# Its key is the last one in the order of baselines.
OTHER_MACHINE = replace(ENVIRONMENT, hardware=replace(ENVIRONMENT.hardware, cpu="Zen CPU"))
KEYS: dict[str, Any] = {
    "length": {"steps": 60},
    "warmup": 2,
    "seeds": [0, 1, 2],
    "matrix": {"precision": ["fp32", "bf16"]},
}


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """Return the folder `results` of an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    return Results(Path("results"))


def write_run(
    results: Results,
    name: str,
    *,
    slower: float = 1.0,
    keys: Mapping[str, Any] | None = None,
    started: float = 1.7e9,
) -> Sweep:
    """Leave a sweep that has run, with a trial every 10 s; bf16 takes half the time."""
    sweep = replace(load(Path(), **{**KEYS, **(keys or {})}), name=name)
    for number, trial in enumerate(sweep.trials()):
        seconds = slower * (0.005 if trial.cell.axes.precision == "bf16" else 0.01)
        begun = started + 10 * number
        record = make_record(
            trial.cell, seed=trial.seed, sweep=name, step_seconds=seconds, started=begun
        )
        write_trial(results.sweep_folder(name), record)
    write_spec(sweep, results.sweep_folder(name))
    return sweep


def counts(results: Results, *names: str) -> list[tuple[int, int]]:
    """Return the number of cells and of trials of each side."""
    found = []
    for side in select(results, names):
        found.append((len(side.cells), sum(len(cell.trials) for cell in side.cells)))
    return found


def remove_record(results: Results, sweep: str, trial: Trial) -> None:
    results.sweep_folder(sweep).trial_folder(trial.id).record_path.unlink(missing_ok=True)


def left_out(results: Results, cell: Cell) -> Mapping[str, int]:
    """Return how many trials of a cell of the sweep `one` count for nothing, by why."""
    (side,) = select(results, ["one"])
    return {result.cell.id: result.left_out for result in side.cells}[cell.id]


def test_every_form_of_a_name(results: Results) -> None:
    sweep = write_run(results, "one")
    cell, trial = sweep.cells[0], sweep.trials()[0]
    sweep_counts, cell_counts, trial_counts = (2, 6), (1, 3), (1, 1)
    assert counts(results, "one", "results/runs/one") == [sweep_counts, sweep_counts]
    assert counts(results, cell.id) == [cell_counts]
    folder = results.sweep_folder("one").trial_folder(trial.id)
    names = trial.id, str(folder.record_path), str(folder.path)
    assert counts(results, *names) == [trial_counts] * 3


def test_trials_that_never_ran_are_counted(results: Results) -> None:
    sweep = write_run(results, "one")
    lost = sweep.trials()[0]
    remove_record(results, "one", lost)
    assert left_out(results, lost.cell) == {"unrecorded": 1}
    for trial in sweep.trials():
        if trial.cell.id == lost.cell.id:
            remove_record(results, "one", trial)
    assert left_out(results, lost.cell) == {"unrecorded": 3}


def test_cells_are_in_the_order_of_the_sweep(results: Results) -> None:
    """Whichever ran first: the first cell of a group is what the others are compared with."""
    sweep = write_run(results, "demo")
    remove_record(results, "demo", sweep.trials()[0])
    (side,) = select(results, ["demo"])
    assert [result.cell.id for result in side.cells] == [cell.id for cell in sweep.cells]
    lines = compared("demo", "--by", "precision").out.splitlines()
    (line,) = [row for row in lines if "samples/s" in row]
    assert "faster" in line, "bf16, which takes half the time, is compared with fp32"


def test_baselines_by_keyword_and_path(results: Results) -> None:
    write_run(results, "one")
    (side,) = select(results, ["one"])
    path, _ = baseline.save(results, side.cells)
    assert counts(results, "baseline", "one") == [(2, 6), (2, 6)]
    assert counts(results, str(path.parent), str(path)) == [(2, 6), (1, 3)]


def test_baselines_of_another_sweep_do_not_count(results: Results) -> None:
    for started in (1.5e9, 1.6e9, 1.7e9):
        write_run(results, "one", started=started)
        write_run(results, "two", keys={"length": {"steps": 40}}, started=started)
        for name in ("one", "two"):
            assert harness("baseline", name).code == 0
    write_run(results, "one", started=1.8e9)
    assert harness("compare", "baseline", "one").code == 0
    assert counts(results, "baseline", "two") == [(2, 6), (2, 6)]


def test_the_baseline_of_a_cell_that_the_sweep_has_lost_is_missing(results: Results) -> None:
    write_run(results, "one")
    assert harness("baseline", "one").code == 0
    write_run(results, "one", keys={"matrix": {"precision": ["fp32"]}})
    command = harness("compare", "baseline", "one")
    assert command.code == 3
    assert "only in baseline" in command.out


def test_a_cell_of_two_sweeps_is_ambiguous(results: Results) -> None:
    cell = write_run(results, "one").cells[0]
    write_run(results, "two")
    with pytest.raises(BadInput, match="found in the sweeps one, two; allowed: a path in one"):
        select(results, [cell.id])


def test_an_unknown_name_gets_the_nearest_and_all_forms(results: Results) -> None:
    write_run(results, "nightly")
    nearest = r"nigthly: nothing of that name in .*; did you mean 'nightly'\? allowed: a sweep"
    with pytest.raises(BadInput, match=nearest):
        select(results, ["nigthly"])
    with pytest.raises(BadInput, match="nightly/mlp: nothing of that name"):
        select(results, ["nightly/mlp"])


def test_baselines_of_other_hardware_do_not_count(results: Results) -> None:
    write_run(results, "one")
    lacking = "found no baseline of Test-CPU-2-cores; allowed: "
    with pytest.raises(BadInput, match=f"{lacking}nothing; harness baseline"):
        select(results, ["baseline", "one"])
    (side,) = select(results, ["one"])
    for cell in side.cells:
        trials = [replace(trial, hardware="Other") for trial in cell.trials]
        baseline.save(results, [replace(cell, trials=trials)])
    with pytest.raises(BadInput, match=f"{lacking}Other"):
        select(results, ["baseline", "one"])


def write_run_of_two_machines(results: Results, name: str, started: float, bf16: float) -> None:
    """Leave a sweep of which the cell in bf16 ran on another machine, with steps of `bf16` seconds."""
    sweep = write_run(results, name, started=started)
    changes: dict[str, Any] = {"sweep": name, "step_seconds": bf16, "started": started}
    for trial in sweep.trials():
        if trial.cell.axes.precision == "bf16":
            record = make_record(trial.cell, seed=trial.seed, **changes)
            write_trial(results.sweep_folder(name), replace(record, environment=OTHER_MACHINE))


def test_each_cell_has_the_baseline_of_its_own_hardware(results: Results) -> None:
    for started in (1.5e9, 1.6e9, 1.7e9):
        write_run_of_two_machines(results, "one", started=started, bf16=0.005)
        assert harness("baseline", "one").code == 0
    write_run_of_two_machines(results, "two", started=1.8e9, bf16=0.0065)
    command = compared("baseline", "two")
    assert command.code == 1
    assert "only in" not in command.out
    write_run(results, "one")  # and bf16 on the first machine
    assert harness("baseline", "one").code == 0
    assert len(baseline.files(results)) == 3
    assert counts(results, "baseline", "two") == [(2, 6), (2, 6)]
    assert compared("baseline", "two").code == 1


def compared(*arguments: str) -> CommandResult:
    return harness("compare", *arguments)


def test_the_table_and_the_exit_code(results: Results) -> None:
    sweep = write_run(results, "one")
    write_run(results, "two", slower=1.3, started=1.8e9)
    command = compared("one", "two")
    assert (command.code, command.err) == (1, "")
    lines = command.out.splitlines()
    assert len([line for line in lines if re.search(r"samples/s.* 0\.77.*slower", line)]) == 2
    assert sum("same bits" in line and "3 of 3" in line for line in lines) == 2
    assert "3 unpaired" in command.out
    assert "not interleaved" in command.out
    assert f"{sweep.cells[0].label}: slower" in lines[-1]
    assert compared("two", "one").code == 0


def test_a_cell_that_failed_is_named_and_the_others_are_compared(results: Results) -> None:
    write_run(results, "one")
    failed = write_run(results, "two", started=1.8e9).cells[1]
    for seed in KEYS["seeds"]:
        record = make_record(failed, seed=seed, sweep="two", status="failed")
        write_trial(results.sweep_folder("two"), record)
    command = compared("one", "two")
    assert command.code == 3
    assert f"missing {failed.label}: no measured throughput in B (3 failed)" in command.out
    assert sum("samples/s" in line for line in command.out.splitlines()) == 1
    assert command.out.splitlines()[-1].startswith("inconclusive: more seeds, repeats or longer")


def test_effects_of_an_axis(results: Results) -> None:
    """bf16 takes half the time."""
    write_run(results, "one")
    command = compared("one", "--effects")
    assert command.code == 0
    (line,) = [line for line in command.out.splitlines() if line.startswith("bf16")]
    level, against, ratio, *_ = line.split()
    assert (level, against) == ("bf16", "fp32")
    assert 1.98 < float(ratio.rstrip("×")) < 2.02
    (effect,) = json.loads(compared("one", "--effects", "--json").out)["mlp"]["effects"]
    assert effect["low"] < effect["ratio"] < effect["high"]
    assert effect["levels"] == {"precision": "bf16"}


def test_json_output(results: Results) -> None:
    write_run(results, "one")
    write_run(results, "two", slower=1.3, started=1.8e9)
    command = compared("one", "two", "--json", "--min-effect", "2%")
    content = json.loads(command.out)
    assert content["exit_code"] == command.code == 1
    speed, accuracy, *_ = content["rows"]
    assert (speed["verdict"], speed["paired"], accuracy["verdict"]) == ("slower", False, "same")
    assert speed["low"] < speed["value"] < speed["high"] < 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["one"], "found 1 side; allowed: several, or one with `by`"),
        (["one", "one", "--by", "precision"], "found 2 sides with `by`; allowed: several, or one"),
        (["one", "--by", "precision", "--effects"], "--effects: found several results or --by; "),
        (["one", "one", "--min-effect", "0.5"], "found '0.5'; did you mean '50%' or '0.5%'? allow"),
        (["one", "one", "--across", "time"], "--across: found 'time'"),
    ],
)
def test_bad_options_are_refused(results: Results, arguments: Sequence[str], why: str) -> None:
    write_run(results, "one")
    command = compared(*arguments)
    assert (command.code, command.out, command.err.count("\n")) == (2, "", 1)
    assert why in command.err


def test_a_baseline_says_nothing_of_its_own_trials(results: Results) -> None:
    write_run(results, "one")
    command = harness("baseline", "one")
    assert (command.code, command.out.count("saved ")) == (0, 2)
    itself = compared("baseline", "one", "--by", "")
    assert itself.code == 3
    assert "both sides are the same trials" in itself.out


def test_the_best_trial_of_a_sweep_or_of_a_cell_needs_no_id(results: Results) -> None:
    write_run(results, "today")
    record, folder = find_trial(results, "today", ["precision=bf16"], best=True)
    assert (record.trial.cell.axes.precision, record.trial.seed) == ("bf16", 2)
    assert folder.name == record.trial.id
    with pytest.raises(BadInput, match="today: found 6 trials; allowed: one: --best, --only KEY=V"):
        find_trial(results, "today")
    unknown = "--only 'precision=fp16': found 'fp16'; .* allowed: bf16, fp32"
    for best in (False, True):
        with pytest.raises(BadInput, match=unknown):
            find_trial(results, "today", ["precision=fp16"], best=best)
    # Nor does another folder of that name in the working directory, or the sweep's own path.
    Path("today").mkdir()
    for name in ("today", str(results.sweep_folder("today").path)):
        _, found = find_trial(results, name, ["precision=bf16"], best=True)
        assert found.resolve() == folder.resolve()
    assert find_trial(results, str(folder))[1].resolve() == folder.resolve()
    other = make_record(make_cell("cnn"), sweep="today")
    with pytest.raises(BadInput, match=r"the workloads mlp, cnn, whose metrics don't compare"):
        best_record([record, other], "today")
    failed = make_record(status="failed")
    with pytest.raises(BadInput, match=r"--best: today has no trial that is done"):
        best_record([failed], "today")
