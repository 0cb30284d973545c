from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.core.validation import decode_value
from harness.sweep import sweep as spec
from harness.sweep.cell import Length
from harness.sweep.sweep import Sweep
from tests.support.commands import harness
from tests.support.images import write_images
from tests.support.sweeps import load, write

IDX = {"mlp": {"data": {"source": "idx", "path": "images"}}}


def test_plan_for_people_shows_cells_trials_and_what_was_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        matrix={"num_threads": [1, 2]},
        exclude=[{"num_threads": 2}, {"num_workers": 9}],
        seeds=[0, 5],
        repeats=2,
    )
    shown = harness("plan", str(path)).out
    assert spec.load_sweep(path).cells[0].id in shown
    assert "1 cell, seeds 0, 5, 2 repeats: 4 trials" in shown
    assert "left out by exclude[0]: the sweep says so: 1" in shown
    assert "exclude[1] matches no cell" in shown
    assert "time: unknown, no cell has a record yet" in shown


def test_block_holds_each_cell_once_forth_and_back_and_repeats_come_last(tmp_path: Path) -> None:
    sweep = load(tmp_path, matrix={"num_threads": [1, 2]}, seeds=[3, 4], repeats=2)
    blocks = [
        [(trial.cell.axes.num_threads, trial.seed, trial.repeat) for trial in block]
        for block in sweep.blocks()
    ]
    assert blocks == [
        [(1, 3, 0), (2, 3, 0)],
        [(2, 4, 0), (1, 4, 0)],
        [(1, 3, 1), (2, 3, 1)],
        [(2, 4, 1), (1, 4, 1)],
    ]
    assert len({trial.id for trial in sweep.trials()}) == 8


def test_seeds_of_a_workload_go_before_those_of_the_sweep(tmp_path: Path) -> None:
    workloads = {
        "mlp": {"data": {"source": "digits"}},
        "cnn": {"data": {"source": "digits"}, "seeds": [7, 1]},
    }
    sweep = load(tmp_path, workloads, seeds=[0, 1], repeats=2)
    mlp, cnn = sweep.cells
    assert [
        [(trial.cell.workload.label, trial.seed, trial.repeat) for trial in block]
        for block in sweep.blocks()
    ] == [
        [("mlp", 0, 0)],
        [("cnn", 1, 0), ("mlp", 1, 0)],
        [("cnn", 7, 0)],
        [("mlp", 0, 1)],
        [("mlp", 1, 1), ("cnn", 1, 1)],
        [("cnn", 7, 1)],
    ]
    assert (sweep.count_trials(mlp), sweep.count_trials(cnn)) == (4, 4)
    assert (list(sweep.seeds_of(mlp)), list(sweep.seeds_of(cnn))) == ([0, 1], [7, 1])


def test_set_seeds_is_for_all_workloads(tmp_path: Path) -> None:
    workloads = {"mlp": {"data": {"source": "digits"}, "seeds": [7]}}
    sweep = load(tmp_path, workloads, sets=["seeds=0,1,2"])
    assert sweep.all_seeds == [0, 1, 2]
    only_one = load(tmp_path, workloads, sets=["workloads.mlp.seeds=[3, 4]"])
    assert only_one.all_seeds == [3, 4]


def test_length_of_a_workload_goes_before_that_of_the_sweep(tmp_path: Path) -> None:
    workloads = {"mlp": {"length": {"epochs": 2}, "evaluate": {"steps": 5}}, "cnn": None}
    cells = load(tmp_path, workloads, length={"steps": 60}, evaluate={"steps": 20}).cells
    assert [(str(cell.length), str(cell.evaluate)) for cell in cells] == [
        ("2 epochs", "5 steps"),
        ("60 steps", "20 steps"),
    ]


def test_set_length_is_for_all_workloads(tmp_path: Path) -> None:
    workloads = {"mlp": {"length": "2 epochs", "evaluate": "5 steps"}, "cnn": None}
    cells = load(tmp_path, workloads, sets=["length.steps=60", "evaluate=20 steps"]).cells
    assert [(str(cell.length), str(cell.evaluate)) for cell in cells] == [
        ("60 steps", "20 steps")
    ] * 2
    (mlp, _) = load(tmp_path, workloads, sets=["workloads.mlp.length=40 steps"]).cells
    assert str(mlp.length) == "40 steps"


def test_sweep_survives_the_way_through_json(tmp_path: Path) -> None:
    sweep = load(tmp_path, matrix={"num_threads": [1, 2]}, exclude=[{"num_threads": 2}])
    back = decode_value(Sweep, json.loads(json.dumps(asdict(sweep), default=str)))
    assert [trial.id for trial in back.trials()] == [trial.id for trial in sweep.trials()]
    assert (back.source, back.excluded) == (sweep.source, sweep.excluded)


def test_file_goes_before_a_ready_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart").write_text("name: mine\n", encoding="utf-8")
    assert spec.find_sweep_file("quickstart") == Path("quickstart")


class TestPaths:
    def test_relative_path_is_relative_to_the_sweep_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "sweeps"
        write_images(tmp_path / "images")
        folder.mkdir()
        (tmp_path / "elsewhere").mkdir()
        path = write(folder, {"mlp": {"data": {"source": "idx", "path": "../images"}}})
        monkeypatch.chdir(tmp_path / "elsewhere")
        (cell,) = spec.load_sweep(path).cells
        assert Path(cell.workload.settings["data.path"]).samefile(tmp_path / "images")
        assert spec.load_sweep(path).base_folder == folder

    def test_path_of_a_flag_is_relative_to_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "sweeps").mkdir()
        write_images(tmp_path / "images")
        monkeypatch.chdir(tmp_path)
        sweep = load(tmp_path / "sweeps", {"mlp": {"data": {"source": "idx"}}}, data=["images"])
        assert sweep.cells[0].workload.settings["data.path"] == str(tmp_path / "images")


class TestData:
    def test_flag_without_label_is_for_all(self, tmp_path: Path) -> None:
        folder = write_images(tmp_path / "other")
        workloads = {
            "mlp": {"data": {"source": "idx"}},
            "wide": {**IDX["mlp"], "uses": "mlp", "options": {"hidden": [512]}},
        }
        cells = load(tmp_path, workloads, data=[str(folder)]).cells
        assert [cell.workload.settings["data.path"] for cell in cells] == [str(folder)] * 2

    def test_flag_with_label_is_for_one(self, tmp_path: Path) -> None:
        write_images(tmp_path / "images")
        folder = write_images(tmp_path / "other")
        workloads = {**IDX, "cnn": {"data": {"source": "idx", "path": "images"}}}
        cells = load(tmp_path, workloads, data=[f"cnn={folder}"]).cells
        assert [cell.workload.settings["data.path"] for cell in cells] == [
            str(tmp_path / "images"),
            str(folder),
        ]

    def test_flag_is_for_sources_that_another_flag_chooses(self, tmp_path: Path) -> None:
        """As the ready sweeps `gpt` and `optimizers` tell their users to call them."""
        folder = write_images(tmp_path / "images")
        book = tmp_path / "book.txt"
        book.write_text("What is read once is soon forgotten. " * 400)
        for label, source, path in (("cnn", "idx", folder), ("gpt", "file", book)):
            sets = [f"workloads.{label}.data.source={source}"]
            (cell,) = load(tmp_path, {label: {}}, sets=sets, data=[str(path)]).cells
            assert cell.workload.settings["data.path"] == str(path)


class TestSet:
    @pytest.mark.parametrize(
        "text",
        [
            "num_threads=4,8",
            "num_threads = [4, 8]",
        ],
    )
    def test_axis_takes_several_values(self, tmp_path: Path, text: str) -> None:
        assert [cell.axes.num_threads for cell in load(tmp_path, sets=[text]).cells] == [4, 8]

    def test_axis_replaces_that_of_axes_and_of_a_workload(self, tmp_path: Path) -> None:
        workloads = {"mlp": {"axes": {"num_threads": 2}}, "cnn": None}
        sweep = load(
            tmp_path, workloads, matrix={"num_threads": 3, "num_workers": 1}, sets=["num_threads=4"]
        )
        assert [(cell.axes.num_threads, cell.axes.num_workers) for cell in sweep.cells] == [
            (4, 1),
            (4, 1),
        ]

    def test_axis_replaces_that_of_a_zip(self, tmp_path: Path) -> None:
        both = {"strategy": ["single", "ddp"], "world_size": [1, 2]}
        sweep = load(tmp_path, zip=[both], sets=["strategy=ddp"])
        assert [(cell.axes.strategy, cell.axes.world_size) for cell in sweep.cells] == [
            ("ddp", 1),
            ("ddp", 2),
        ]
        assert len(load(tmp_path, zip=[{"num_threads": [1, 2]}], sets=["num_threads=4"]).cells) == 1

    def test_one_value_holds_for_included_points_without_their_own(self, tmp_path: Path) -> None:
        workloads = {"mlp": {"options": {"hidden": [64]}}, "cnn": None}
        rules = [{"strategy": "ddp", "world_size": 2}, {"num_threads": 8}]
        sets = ["num_threads=4", "lr=0.1", "options.hidden=[32]"]
        axes = {"num_threads": 2, "lr": 0.01}
        cells = load(tmp_path, workloads, matrix=axes, include=rules, sets=sets).cells
        assert [cell.axes.lr for cell in cells] == [0.1] * 5
        # The cnn has no `hidden`, so its point of the matrix is left out.
        assert [cell.axes.num_threads for cell in cells] == [4, 4, 8, 4, 8]
        assert [cell.workload.options.get("hidden") for cell in cells[:3]] == [(32,)] * 3

    def test_an_included_point_that_has_a_conflict_with_a_value_is_left_out(
        self, tmp_path: Path
    ) -> None:
        zipped = {"strategy": ["single", "ddp"], "world_size": [1, 2]}
        rules = [{"precision": "bf16"}]
        sweep = load(tmp_path, zip=[zipped], include=rules, sets=["world_size=2"])
        assert [cell.axes.strategy for cell in sweep.cells] == ["ddp"]
        assert [point.axes["precision"] for point in sweep.excluded] == ["fp32", "bf16"]
        with pytest.raises(BadInput, match=r"include\[0\].*world_size is 2"):
            load(tmp_path, include=[{"world_size": 2}])

    def test_length_replaces_the_other_unit(self, tmp_path: Path) -> None:
        sweep = load(tmp_path, length={"steps": 60}, sets=["length.epochs=3", "evaluate.steps=7"])
        assert sweep.cells[0].length == Length(epochs=3)
        assert sweep.cells[0].evaluate == Length(steps=7)

    def test_any_other_key(self, tmp_path: Path) -> None:
        sets = [
            "seeds=4,5",
            "repeats=2",
            "warmup=3",
            "timeout=60",
            "checkpoint=best",
            "profile=5",
            "name=other",
            "workloads.mlp.options.hidden=[8, 8]",
            "workloads.mlp.options.lr=1e-2",
            "workloads.mlp.length.steps=40",
        ]
        sweep = load(tmp_path, {"mlp": None}, sets=sets)
        (cell,) = sweep.cells
        assert (sweep.name, sweep.seeds, sweep.repeats) == ("other", [4, 5], 2)
        assert (sweep.timeout, sweep.checkpoint.best, cell.warmup) == (60.0, True, 3)
        assert sweep.profile == 5
        assert list(cell.workload.options["hidden"]) == [8, 8]
        assert cell.workload.options["lr"] == 0.01
        assert cell.length == Length(steps=40)
