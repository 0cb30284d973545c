"""Names on the command line, and what `harness compare` and `harness baseline` do with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import baseline
from harness.analysis.selection import select
from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.records.record import Record
from harness.records.series import Series
from harness.records.store import write_spec
from harness.spec.sweep import Sweep
from tests.factories import make_record, write_trial
from tests.support.commands import CommandResult, harness
from tests.support.sweeps import load

KEYS: dict[str, Any] = {
    "length": {"steps": 60},
    "warmup": 2,
    "seeds": [0, 1, 2],
    "matrix": {"precision": ["fp32", "bf16"]},
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The folder `results` of an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    return Results(Path("results"))


def ran(
    place: Results, name: str, *, slower: float = 1.0, keys: object = None, started: float = 1.7e9
) -> Sweep:
    """A sweep that has run, a trial every 10 s; bf16 takes half the time."""
    sweep = replace(load(Path(), **KEYS), name=name)
    for number, trial in enumerate(sweep.trials()):
        seconds = slower * (0.005 if trial.cell.axes.precision == "bf16" else 0.01)
        record = make_record(
            trial.cell,
            seed=trial.seed,
            sweep=name,
            step_seconds=seconds,
            started=started + 10 * number,
        )
        write_trial(place.sweep_folder(name), record)
    write_spec(sweep, place.sweep_folder(name))
    return sweep


def counts(place: Results, *names: str) -> list[tuple[int, int]]:
    """Of each side, how many cells and trials."""
    return [
        (len(side.cells), sum(len(cell.trials) for cell in side.cells))
        for side in select(place, names)
    ]


def test_every_form_of_a_name(place: Results) -> None:
    sweep = ran(place, "one")
    cell, trial = sweep.cells[0], sweep.trials()[0]
    whole, own, single = (2, 6), (1, 3), (1, 1)
    assert counts(place, "one", "results/runs/one") == [whole, whole]
    assert counts(place, cell.id, cell.label, f"one/{cell.id}", f"one/{cell.label}") == [own] * 4
    folder = place.sweep_folder("one").trial_folder(trial.id)
    assert (
        counts(place, trial.id, f"one/{trial.id}", str(folder.record_path), str(folder.path))
        == [single] * 4
    )


def test_trials_that_never_ran_are_counted(place: Results) -> None:
    sweep = ran(place, "one")
    lost = sweep.trials()[0]
    place.sweep_folder("one").trial_folder(lost.id).record_path.unlink()
    (side,) = select(place, ["one"])
    assert {cell.cell.id: cell.left_out for cell in side.cells}[lost.cell.id] == {"unrecorded": 1}
    for trial in sweep.trials():
        if trial.cell.id == lost.cell.id:
            place.sweep_folder("one").trial_folder(trial.id).record_path.unlink(missing_ok=True)
    (side,) = select(place, ["one"])
    assert {cell.cell.id: cell.left_out for cell in side.cells}[lost.cell.id] == {"unrecorded": 3}


def test_baselines_by_word_hardware_and_path(place: Results) -> None:
    ran(place, "one")
    (side,) = select(place, ["one"])
    saved = baseline.save(place, side.cells)
    folder = saved[0].path.parent
    assert counts(place, "baseline", "one") == [(2, 6), (2, 6)]
    assert counts(place, f"baseline:{folder.name}", str(folder), str(saved[0].path)) == [
        (2, 6),
        (2, 6),
        (1, 3),
    ]


def test_a_cell_of_two_sweeps_is_asked_about(place: Results) -> None:
    cell = ran(place, "one").cells[0]
    ran(place, "two")
    with pytest.raises(
        BadInput, match=f"found in the sweeps one, two; allowed: one/{cell.id} or two/{cell.id}"
    ):
        select(place, [cell.id])


def test_an_unknown_name_gets_the_nearest_and_all_forms(place: Results) -> None:
    ran(place, "nightly")
    with pytest.raises(
        BadInput,
        match=r"nigthly: nothing of that name in .*; did you mean 'nightly'.*; allowed: a sweep",
    ):
        select(place, ["nigthly"])
    with pytest.raises(BadInput, match="nightly/mlp: nothing of that name"):
        select(place, ["nightly/mlp"])


def test_baselines_of_other_hardware_do_not_count(place: Results) -> None:
    ran(place, "one")
    with pytest.raises(
        BadInput,
        match=r"found no baseline of Test-CPU-2-cores; allowed: nothing; harness baseline save",
    ):
        select(place, ["baseline", "one"])
    (side,) = select(place, ["one"])
    other = [
        replace(cell, conditions={**cell.conditions, "hardware": ["Other"]}) for cell in side.cells
    ]
    baseline.save(place, other)
    with pytest.raises(BadInput, match="found no baseline of Test-CPU-2-cores; allowed: Other"):
        select(place, ["baseline", "one"])


def test_a_baseline_of_another_schema_is_no_pass(place: Results) -> None:
    ran(place, "one")
    assert harness("baseline", "save", "one").code == 0
    for path in baseline.files(place):
        path.write_text(
            path.read_text(encoding="utf-8").replace('"schema": "2.0"', '"schema": "9.0"'),
            encoding="utf-8",
        )
    ended = harness("compare", "baseline", "one")
    assert (ended.code, ended.out) == (2, "")
    assert 'schema: found "9' in ended.err


def compared(*arguments: str) -> CommandResult:
    return harness("compare", *arguments)


def test_the_table_and_the_exit_code(place: Results) -> None:
    sweep = ran(place, "one")
    ran(place, "two", slower=1.3, started=1.8e9)
    ended = compared("one", "two")
    assert (ended.code, ended.err) == (1, "")
    lines = [line for line in ended.out.splitlines() if "samples/s" in line]
    assert [("slower" in line, "0.77" in line, "3 unpaired" in line) for line in lines] == [
        (True, True, True)
    ] * 2
    assert sum("same bits" in line and "3 of 3" in line for line in ended.out.splitlines()) == 2
    assert "not interleaved" in ended.out
    assert f"{sweep.cells[0].label}: slower" in ended.out.splitlines()[-1]
    assert compared("two", "one").code == 0


def test_a_cell_that_failed_is_named_and_the_others_are_compared(place: Results) -> None:
    ran(place, "one")
    failed = ran(place, "two", started=1.8e9).cells[1]
    for seed in KEYS["seeds"]:
        write_trial(
            place.sweep_folder("two"), make_record(failed, seed=seed, sweep="two", status="failed")
        )
    ended = compared("one", "two")
    assert ended.code == 3
    assert f"missing {failed.label}: no measured throughput in B (3 failed)" in ended.out
    assert sum("samples/s" in line for line in ended.out.splitlines()) == 1
    assert ended.out.splitlines()[-1] == "inconclusive: something is missing, as listed above"


def test_by_an_axis(place: Results) -> None:
    ran(place, "one")
    ended = compared("one", "--by", "precision")
    assert ended.code == 0
    (line,) = [line for line in ended.out.splitlines() if "samples/s" in line]
    assert "faster" in line
    assert "unpaired" not in line


def test_effects_of_an_axis(place: Results) -> None:
    """bf16 takes half the time."""
    ran(place, "one")
    ended = compared("one", "--effects")
    assert ended.code == 0
    (line,) = [line for line in ended.out.splitlines() if "precision=bf16" in line]
    assert "precision=fp32" in line
    assert 1.98 < float(line.split("×")[0].split()[-1]) < 2.02
    (told,) = json.loads(compared("one", "--effects", "--json").out)["mlp"]["effects"]
    assert told["low"] < told["ratio"] < told["high"]
    assert told["levels"] == {"precision": "bf16"}


def test_effects_of_one_cell_are_refused(place: Results) -> None:
    sweep = ran(place, "one")
    ended = compared(f"one/{sweep.cells[0].id}", "--effects")
    assert (ended.code, ended.out) == (2, "")
    assert "too few trials to tell effects from noise" in ended.err


def test_json_says_it_all(place: Results) -> None:
    ran(place, "one")
    ran(place, "two", slower=1.3, started=1.8e9)
    ended = compared("one", "two", "--json", "--correction", "bh", "--min-effect", "2%")
    content = json.loads(ended.out)
    assert content["exit_code"] == ended.code == 1
    assert (content["rules"]["correction"], content["rules"]["min_effect"]) == ("bh", 0.02)
    speed, accuracy = content["cells"][0]["metrics"]
    assert (speed["verdict"], speed["paired"], accuracy["verdict"]) == ("slower", False, "same")
    assert speed["low"] < speed["value"] < speed["high"] < 1
    assert content["cells"][0]["a"]["deviation_within_trials"] > 0


def test_a_single_trial_has_no_interval_and_no_verdict(place: Results) -> None:
    trial = ran(place, "one").trials()[0].id
    ran(place, "two", started=1.8e9)
    ended = compared(f"one/{trial}", f"two/{trial}", "--json")
    speed = json.loads(ended.out)["cells"][0]["metrics"][0]
    assert (ended.code, speed["verdict"], speed["low"], speed["high"]) == (
        3,
        "inconclusive",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["one"], "found 1 to compare; allowed: A B…, or one with --by AXIS or --effects"),
        (["one", "one", "--by", "precision"], "found 2 and --by to compare"),
        (["one", "--by", "precision", "--effects"], "found 1 and --by and --effects to compare"),
        (
            ["one", "one", "--min-effect", "much"],
            "--min-effect: found 'much'; allowed: a percentage above",
        ),
        (
            ["one", "one", "--min-effect", "0.5"],
            "--min-effect: found '0.5'; allowed: a percentage above",
        ),
        (
            ["one", "one", "--min-effect", "0%"],
            "--min-effect: found '0%'; allowed: a percentage above 0% and below 100%",
        ),
        (["one", "one", "--correction", "none"], "--correction: found 'none'; allowed: holm, bh"),
        (["one", "one", "--across", "time"], "--across: found 'time'"),
    ],
)
def test_flags_that_make_no_sense(place: Results, arguments: Sequence[str], why: str) -> None:
    ran(place, "one")
    ended = compared(*arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert why in ended.err


def test_baselines_are_saved_listed_shown_and_pruned(place: Results) -> None:
    sweep = ran(place, "one")
    first, second = sweep.cells
    ended = harness("baseline", "save", "one")
    assert (ended.code, ended.out.count("saved ")) == (0, 2)
    itself = compared("baseline", "one", "--by", "")
    assert itself.code == 3
    assert "both sides are the same trials" in itself.out
    listed = harness("baseline", "list").out
    assert first.id in listed
    assert second.label in listed
    shown = harness("baseline", "show", first.id).out
    assert first.label in shown
    assert len([line for line in shown.splitlines() if line.split()[:2] == ["2", "0"]]) == 1
    assert "no such baseline" in harness("baseline", "show", "mlp-0").err
    less = load(Path(), **{**KEYS, "matrix": {"precision": ["bf16"]}})
    pruned = harness("baseline", "prune", str(less.source))
    assert (pruned.code, pruned.out.count("removed ")) == (0, 1)
    assert harness("baseline", "prune", str(less.source)).out.startswith("nothing to remove")
    assert [path.stem for path in baseline.files(place)] == [second.id]


def test_a_baseline_of_one_trial_warns(place: Results) -> None:
    sweep = ran(place, "one")
    ended = harness("baseline", "save", f"one/{sweep.trials()[0].id}")
    assert "no later run can be shown to be faster or slower" in ended.out


def test_slow_steps_after_the_summary_are_seen_in_the_error(place: Results) -> None:
    """The error of a trial is that of its steps, not made up: ten times the spread, ten times the error."""

    def error(record: Record) -> float:
        write_trial(place.sweep_folder("one"), record)
        (side,) = select(
            place, [str(place.sweep_folder("one").trial_folder(record.trial.id).record_path)]
        )
        return side.cells[0].trials[0].relative_error or 0.0

    record = make_record(load(Path(), length={"steps": 400}, warmup=2).cells[0])
    calm = record.ranks[0].step_seconds
    assert calm is not None
    seconds = calm.unpack()
    wild = replace(
        record.ranks[0], step_seconds=Series.pack(seconds.mean() + 0.1 * (seconds - seconds.mean()))
    )
    assert error(record) == pytest.approx(10 * error(replace(record, ranks=[wild])), rel=0.01)
