"""Whatever a user can get wrong ends with one line that says where, what was found and what is allowed: exit code 2,
and nothing has started or been written."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.record import SCHEMA
from tests.support.commands import Ended, harness
from tests.support.images import NAMES, idx, write_images

GOOD = "name: demo\nworkloads:\n  mlp: {data: {source: digits}}\n"
BOOLEAN = "(on, off, yes and no are booleans too: put quotes around a word)"
FILES = "name: demo\nworkloads:\n  mlp:\n    data: {source: idx, path: images}\n"
TEXTS = "name: demo\nworkloads:\n  distilbert:\n    data: {source: csv, path: texts.csv}\n"
MINE = "name: demo\nworkloads:\n  mine:\n    uses: mine.py:Mine\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("HARNESS_RESULTS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(*arguments: str) -> str:
    """What the one line says that `harness ARGUMENTS` ends with, having touched nothing."""
    before = tree(Path())
    ended = harness(*arguments)
    assert tree(Path()) == before
    return line_of(ended)


def line_of(ended: Ended) -> str:
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    head, _, line = ended.err.rstrip("\n").partition("harness: ")
    assert head == ""
    return line


def check(line: str, begins: str, *contains: str) -> None:
    assert line.startswith(begins)
    for text in contains:
        assert text in line


def param(name: str, spec: str, begins: str, *contains: str) -> Any:
    return pytest.param(spec, begins, contains, id=name)


UNKNOWN_KEYS = [
    param("sweep", GOOD + "seed: [0]\n", "sweep.yaml:4: seed: unknown key; did you mean 'seeds'? allowed: ", "repeats"),
    param(
        "workload",
        "name: demo\nworkloads:\n  mlp:\n    dat: {source: digits}\n",
        "sweep.yaml:4: workloads.mlp.dat: unknown key; did you mean 'data'? allowed: ",
        "options, uses",
    ),
    param(
        "length",
        GOOD + "length: {step: 60}\n",
        "sweep.yaml:4: length.step: unknown key; did you mean 'steps'? allowed: epochs, steps",
    ),
    param(
        "workload-length",
        "name: demo\nworkloads:\n  mlp:\n    evaluate: {epoch: 1}\n",
        "sweep.yaml:4: workloads.mlp.evaluate.epoch: unknown key; did you mean 'epochs'? allowed: epochs, steps",
    ),
    param(
        "options",
        "name: demo\nworkloads:\n  mlp:\n    options:\n      dropout: 0.1\n      hiden: [64]\n",
        "sweep.yaml:6: workloads.mlp.options.hiden: unknown key; did you mean 'hidden'? allowed: ",
        "batch_norm, dropout",
    ),
    param(
        "data",
        "name: demo\nworkloads:\n  mlp:\n    data: {source: digits, splitseed: 3}\n",
        "sweep.yaml:4: workloads.mlp.data.splitseed: unknown key; did you mean 'split_seed'? allowed: source",
    ),
    param(
        "matrix",
        GOOD + "matrix:\n  exection: [eager]\n",
        "sweep.yaml:5: matrix.exection: unknown axis; did you mean 'execution'? allowed: accumulation, ",
    ),
    param(
        "axes",
        GOOD + "axes: {world-size: 2}\n",
        "sweep.yaml:4: axes.world-size: unknown axis; did you mean 'world_size'? allowed: ",
    ),
    param(
        "workload-axes",
        "name: demo\nworkloads:\n  mlp:\n    axes: {batchsize: 2}\n",
        "sweep.yaml:4: workloads.mlp.axes.batchsize: unknown axis; did you mean 'batch_size'? allowed: ",
    ),
    param(
        "zip",
        GOOD + "zip:\n  - stratgy: [ddp]\n",
        "sweep.yaml:5: zip[0].stratgy: unknown axis; did you mean 'strategy'? allowed: ",
    ),
    param(
        "exclude",
        GOOD + "exclude:\n  - precision: bf16\n  - worklod: mlp\n",
        "sweep.yaml:6: exclude[1].worklod: unknown axis; did you mean 'workload'? allowed: ",
    ),
    param(
        "include",
        GOOD + "include:\n  - presicion: bf16\n",
        "sweep.yaml:5: include[0].presicion: unknown axis; did you mean 'precision'? allowed: ",
    ),
]

VALUES = [
    param(
        "axis-value",
        GOOD + "matrix:\n  execution:\n    - eager\n    - compiled\n",
        "sweep.yaml:7: matrix.execution[1]: found \"compiled\"; did you mean 'compile'? allowed: compile",
        "eager",
    ),
    param(
        "excluded-value",
        GOOD + "exclude:\n  - precision: [fp32, bf17]\n",
        "sweep.yaml:5: exclude[0].precision[1]: found \"bf17\"; did you mean 'bf16'? allowed: bf16, ",
    ),
    param(
        "excluded-workload",
        GOOD + "exclude:\n  - {workload: mpl, precision: bf16}\n",
        "sweep.yaml:5: exclude[0].workload: found 'mpl'; did you mean 'mlp'? allowed: mlp",
    ),
    param(
        "no-excluded-workload",
        GOOD + "exclude: [{workload: []}]\n",
        "sweep.yaml:4: exclude[0].workload: found 'an empty list'; allowed: mlp",
    ),
    param(
        "empty-rule", GOOD + "exclude: [{}]\n", "sweep.yaml:4: exclude[0]: found an empty rule; allowed: accumulation"
    ),
    param(
        "checkpoint",
        GOOD + "checkpoint: beste\n",
        "sweep.yaml:4: checkpoint: found \"beste\"; did you mean 'best'? allowed: best, none",
    ),
    param(
        "profile-steps",
        GOOD + "profile: {steps: 0}\n",
        "sweep.yaml:4: profile.steps: found 0; allowed: at least 1",
    ),
    param(
        "profile-many-steps",
        GOOD + "profile: {steps: 1001}\n",
        "sweep.yaml:4: profile.steps: found 1001; allowed: at most 1000",
    ),
    param("profile-key", GOOD + "profile: {step: 5}\n", "sweep.yaml:4: profile.step"),
    param("profile-nothing", GOOD + "profile: {}\n", "sweep.yaml:4: profile.steps: missing"),
    param(
        "strategy-off",
        GOOD + "axes: {strategy: off}\n",
        f"sweep.yaml:4: axes.strategy: found the YAML boolean false {BOOLEAN}; allowed: ddp, fsdp2, single",
    ),
    param(
        "execution-on",
        GOOD + "matrix: {execution: [on]}\n",
        f"sweep.yaml:4: matrix.execution[0]: found the YAML boolean true {BOOLEAN}; allowed: compile",
    ),
    param(
        "name-yes",
        GOOD.replace("demo", "yes"),
        f"sweep.yaml:1: name: found the YAML boolean true {BOOLEAN}; allowed: text",
    ),
    param("name-number", GOOD.replace("demo", "3"), "sweep.yaml:1: name: found 3; allowed: text"),
    param("name-blank", GOOD.replace("demo", "'  '"), "sweep.yaml:1: name: found an empty name; allowed: any text"),
    param("no-name", "workloads: {mlp: }\n", "sweep.yaml: name: missing; it has no default"),
    param("no-workloads", "name: demo\n", "sweep.yaml: workloads: missing; it has no default"),
    param("none", "name: demo\nworkloads: {}\n", "sweep.yaml:2: workloads: found none; allowed: cnn, distilbert, mlp"),
    param(
        "workload-list",
        "name: demo\nworkloads: [mlp]\n",
        'sweep.yaml:2: workloads: found ["mlp"]; allowed: keys with values',
    ),
    param(
        "workload-text",
        "name: demo\nworkloads: {mlp: digits}\n",
        'sweep.yaml:2: workloads.mlp: found "digits"; allowed: keys with values',
    ),
    param(
        "workload",
        "name: demo\nworkloads:\n  mpl: {}\n",
        "sweep.yaml:3: workloads.mpl: found no workload 'mpl' (did you mean 'mlp'?)",
        "allowed: cnn, distilbert, mlp, ",
    ),
    param(
        "float", GOOD + "axes: {batch_size: 64.0}\n", "sweep.yaml:4: axes.batch_size: found 64.0; allowed: a whole n"
    ),
    param("text", GOOD + "axes: {batch_size: '64'}\n", 'sweep.yaml:4: axes.batch_size: found "64"; allowed: a whole n'),
    param(
        "negative", GOOD + "axes: {batch_size: -3}\n", "sweep.yaml:4: axes.batch_size: found -3; allowed: at least 1"
    ),
    param(
        "zero", GOOD + "matrix: {world_size: [1, 0]}\n", "sweep.yaml:4: matrix.world_size[1]: found 0; allowed: at le"
    ),
    param(
        "nan", GOOD + "axes: {batch_size: .nan}\n", "sweep.yaml:4: axes.batch_size: found nan; allowed: a finite num"
    ),
    param("infinite", GOOD + "timeout: .inf\n", "sweep.yaml:4: timeout: found inf; allowed: a finite number"),
    param("no-repeats", GOOD + "repeats: 0\n", "sweep.yaml:4: repeats: found 0; allowed: at least 1"),
    param("endless", GOOD + f"repeats: {10**12}\n", f"sweep.yaml:4: repeats: found {10**12}; allowed: at most 10000"),
    param("negative-warmup", GOOD + "warmup: -1\n", "sweep.yaml:4: warmup: found -1; allowed: at least 0"),
    param(
        "one-value", GOOD + "matrix: {execution: eager}\n", 'sweep.yaml:4: matrix.execution: found "eager"; allowed: a'
    ),
    param(
        "no-values", GOOD + "matrix: {execution: []}\n", "sweep.yaml:4: matrix.execution: found an empty list; allowed"
    ),
    param("null", GOOD + "matrix:\n", "sweep.yaml:4: matrix: found null; allowed: keys with values"),
    param("seeds-number", GOOD + "seeds: 3\n", "sweep.yaml:4: seeds: found 3; allowed: a list"),
    param("seeds-none", GOOD + "seeds: []\n", "sweep.yaml:4: seeds: found []; allowed: at least one, each once"),
    param(
        "seeds-twice", GOOD + "seeds: [4, 4]\n", "sweep.yaml:4: seeds: found [4, 4]; allowed: at least one, each once"
    ),
    param("seeds-negative", GOOD + "seeds: [0, -1]\n", "sweep.yaml:4: seeds[1]: found -1; allowed: at least 0"),
    param(
        "dropout", GOOD + "  cnn: {options: {dropout: 1.5}}\n", "sweep.yaml:4: workloads.cnn.options.dropout: found 1.5"
    ),
    param(
        "two-architectures",
        "name: demo\nworkloads:\n  distilbert:\n    options: {size: tiny, hub: some/model}\n",
        "sweep.yaml:4: workloads.distilbert.options: found hub and size; allowed: one of them",
    ),
]

COMBINATIONS = [
    param(
        "steps-and-epochs",
        GOOD + "length: {steps: 30, epochs: 3}\n",
        "sweep.yaml:4: length: found both steps and epochs; allowed: one of them",
    ),
    param(
        "neither-steps-nor-epochs",
        GOOD + "evaluate: {}\n",
        "sweep.yaml:4: evaluate: found neither steps nor epochs; allowed: one of them",
    ),
    param(
        "warmup",
        GOOD + "length: {steps: 30}\nwarmup: 30\n",
        "sweep.yaml:5: warmup: found 30; allowed: fewer than the 30 steps of mlp",
    ),
    param(
        "default-warmup",
        GOOD + "length: {steps: 10}\n",
        "sweep.yaml: warmup: found 10, the default; allowed: fewer than the 10 steps of mlp",
    ),
    param(
        "unequal-zip",
        GOOD + "zip:\n  - strategy: [single, ddp]\n    world_size: [1]\n",
        "sweep.yaml:5: zip[0]: found lists of lengths {'strategy': 2, 'world_size': 1}; allowed: equal lengths",
    ),
    param(
        "matrix-and-zip",
        GOOD + "matrix: {strategy: [single]}\nzip: [{strategy: [single]}]\n",
        "sweep.yaml:5: zip[0].strategy: found a second time; allowed: an axis in one place",
    ),
    param(
        "two-zips",
        GOOD + "zip:\n  - {strategy: [single]}\n  - {strategy: [single]}\n",
        "sweep.yaml:6: zip[1].strategy: found a second time; allowed: an axis in one place",
    ),
    param(
        "axes-and-matrix",
        GOOD + "axes: {precision: bf16}\nmatrix: {precision: [fp32]}\n",
        "sweep.yaml:5: matrix.precision: found a second time; allowed: an axis in one place",
    ),
    param(
        "workload-and-matrix",
        "name: demo\nworkloads:\n  mlp:\n    axes: {precision: bf16}\nmatrix: {precision: [fp32]}\n",
        "sweep.yaml:4: workloads.mlp.axes.precision: found in matrix or zip too; allowed: an axis in one place",
    ),
    param(
        "all-excluded",
        GOOD + "matrix: {precision: [fp32, bf16]}\nexclude:\n  - workload: mlp\n",
        "sweep.yaml: found no cell to run: 2 left out by exclude[0]; allowed: at least one cell",
    ),
    param(
        "not-divisible",
        GOOD + "axes: {strategy: ddp, world_size: 2, batch_size: 63}\n",
        "sweep.yaml: found no cell to run: 1 left out because batch_size 63 can't be shared out evenly among 2 ranks",
    ),
    param(
        "senseless-include",
        GOOD + "include:\n  - {strategy: single, world_size: 2}\n",
        "sweep.yaml:5: include[0]: strategy single is one rank, world_size is 2",
    ),
]

YAML = [
    param("empty", "", "sweep.yaml: found nothing; allowed: keys with values"),
    param("comment", "# later\n", "sweep.yaml: found nothing; allowed: keys with values"),
    param("list", "- name: demo\n", "sweep.yaml: found no mapping; allowed: keys with values"),
    param("tab", "name: demo\nworkloads:\n\tmlp:\n", "sweep.yaml:3: no valid YAML: found character '\\t' that cannot"),
    param("open-bracket", "name: [demo\nworkloads: {}\n", "sweep.yaml:2: no valid YAML: expected ',' or ']'"),
    param("two-documents", GOOD + "---\nname: other\n", "sweep.yaml:4: no valid YAML: but found another document"),
    param("tag", GOOD + "axes: !!python/name:os.system\n", "sweep.yaml:4: no valid YAML: could not determine"),
    param("set", GOOD + "axes: !!set {ddp}\n", "sweep.yaml:4: no valid YAML: could not determine"),
    param("not-a-number", GOOD + "warmup: !!int ten\n", "sweep.yaml: no valid YAML: invalid literal for int()"),
    param("control-character", "name: de\x01mo\n", "sweep.yaml: no valid YAML: unacceptable character #x0001"),
    param(
        "endless", GOOD + "axes: &a {x: *a}\n", "sweep.yaml: found an alias inside its own anchor, or endless nesting"
    ),
    param("twice", GOOD + "seeds: [0]\nseeds: [1]\n", "sweep.yaml:5: seeds: given twice; allowed: once"),
    param(
        "twice-inside",
        "name: demo\nworkloads:\n  mlp:\n    data: {source: digits}\n    data: {source: idx}\n",
        "sweep.yaml:5: workloads.mlp.data: given twice; allowed: once",
    ),
    param(
        "boolean-key", GOOD + "  no: {uses: mlp}\n", "sweep.yaml:4: workloads.no: found a key of YAML type bool; allo"
    ),
    param(
        "number-key", GOOD + "matrix: {3: [1]}\n", "sweep.yaml:4: matrix.3: found a key of YAML type int; allowed: text"
    ),
    param("list-key", GOOD + "? [a, b]\n: 3\n", "sweep.yaml:4: ?: found a key of YAML type seq; allowed: text"),
]


@pytest.mark.parametrize(("spec", "begins", "contains"), UNKNOWN_KEYS + VALUES + COMBINATIONS + YAML)
def test_sweep_file(spec: str, begins: str, contains: tuple[str, ...]) -> None:
    Path("sweep.yaml").write_text(spec, encoding="utf-8")
    check(refused("run", "sweep.yaml"), begins, *contains)


def test_sweep_file_that_is_missing() -> None:
    assert refused("run", "swep.yaml") == "swep.yaml: can't be read: No such file or directory; allowed: a YAML file"


def test_sweep_name_that_is_unknown() -> None:
    line = refused("run", "quikstart")
    check(line, "quikstart: no such sweep file or ready sweep; did you mean 'quickstart'? allowed: ")


def test_sweep_file_that_is_a_folder() -> None:
    Path("sweep.yaml").mkdir()
    assert refused("run", "sweep.yaml") == "sweep.yaml: can't be read: Is a directory; allowed: a YAML file"


def test_sweep_file_that_is_not_utf8() -> None:
    Path("sweep.yaml").write_bytes(b"name: demo\ndescription: caf\xe9\n")
    assert refused("run", "sweep.yaml") == "sweep.yaml:2: found byte 0xe9; allowed: UTF-8 text"


@pytest.mark.parametrize("setting", ["precision: tf32", "pin_memory: always", "execution: compile:reduce-overhead"])
def test_what_only_a_gpu_can_do(setting: str) -> None:
    Path("sweep.yaml").write_text(GOOD + f"axes: {{{setting}}}\n", encoding="utf-8")
    Path("cpu.yaml").write_text("device: cpu\n", encoding="utf-8")
    for command in ("plan", "run"):
        line = refused(command, "sweep.yaml", "--cluster", "cpu.yaml")
        assert line.endswith(f"{setting.replace(': ', ': found ', 1)}; needed: a GPU")


def test_world_size_beyond_the_machine() -> None:
    Path("sweep.yaml").write_text(GOOD + "axes: {strategy: ddp, world_size: 2}\n", encoding="utf-8")
    Path("small.yaml").write_text("slots: 1\n", encoding="utf-8")
    line = refused("run", "sweep.yaml", "--cluster", "small.yaml")
    assert "world_size: found 2; allowed: at most 1, the profile's `slots`" in line


@pytest.mark.parametrize(
    ("profile", "begins"),
    [
        ("launchr: torchrun\n", "p.yaml:1: launchr: unknown key; did you mean 'launcher'? allowed: device, "),
        ("launcher: torchrum\n", "p.yaml:1: launcher: found \"torchrum\"; did you mean 'torchrun'? allowed: "),
        ("device: gpu\n", "p.yaml:1: device: found \"gpu\"; did you mean 'cpu'? allowed: auto, cpu, cuda"),
        ("device: auto\nslots: 0\n", "p.yaml:2: slots: found 0; allowed: at least 1"),
        ("environment:\n  NCCL_DEBUG: 1\n", "p.yaml:2: environment.NCCL_DEBUG: found 1; allowed: text"),
        ("- torchrun\n", "p.yaml: found no mapping; allowed: keys with values"),
    ],
)
def test_cluster_profile(profile: str, begins: str) -> None:
    Path("p.yaml").write_text(profile, encoding="utf-8")
    check(refused("run", "quickstart", "--cluster", "p.yaml"), begins)


def test_cluster_profile_that_is_unknown() -> None:
    line = refused("run", "quickstart", "--cluster", "locl")
    check(line, "--cluster locl: no such profile; did you mean 'local'? allowed: ", "local")


def test_cluster_profile_that_is_missing() -> None:
    line = refused("run", "quickstart", "--cluster", "mine.yaml")
    assert line == "mine.yaml: can't be read: No such file or directory; allowed: a YAML file"


@pytest.mark.parametrize(
    ("flags", "begins"),
    [
        (
            ["--set", "precision"],
            "--set precision: found no '='; allowed: --set axis=value[,value…] or --set some.key=",
        ),
        (["--set", "precsion=bf16"], "--set precsion=bf16: unknown axis or key; did you mean 'precision'? allowed: "),
        (
            ["--set", "precision=bf17"],
            "--set precision=bf17: matrix.precision[0]: found \"bf17\"; did you mean 'bf16'?",
        ),
        (
            ["--set", "precision="],
            "--set precision=: matrix.precision: found an empty list; allowed: at least one value",
        ),
        (["--set", "batch_size=32,0"], "--set batch_size=32,0: matrix.batch_size[1]: found 0; allowed: at least 1"),
        (["--set", "precision=[fp32"], "--set precision=[fp32: no valid YAML: expected ',' or ']'"),
        (["--set", "seeds=0,x"], '--set seeds=0,x: seeds[1]: found "x"; allowed: a whole number'),
        (["--set", "length.step=3"], "--set length.step=3: length.step: unknown key; did you mean 'steps'? allowed: "),
        (["--set", "name.first=x"], '--set name.first=x: name: found {"first": "x"}; allowed: text'),
        (["--set", "zip=3", "--set", "precision=bf16"], "--set zip=3: zip: found 3; allowed: a list"),
        (
            ["--set", "workloads.mpl.options.dropout=0"],
            "--set workloads.mpl.options.dropout=0: workloads: found 'mpl'; ",
        ),
        (
            ["--set", "workloads.mlp.options.width=3"],
            "--set workloads.mlp.options.width=3: workloads.mlp.options.width: ",
        ),
        (["--data", "mpl=folder"], "--data mpl=folder: found 'mpl'; did you mean 'mlp'? allowed: mlp"),
        (["--data", "folder"], "--data folder: found no workload whose data lies in files; allowed: LABEL=PATH"),
        (
            ["--data", "mlp=folder"],
            "--data mlp=folder: workloads.mlp.data.path: unknown key; allowed: source, split_seed",
        ),
    ],
)
def test_flag(flags: list[str], begins: str) -> None:
    Path("sweep.yaml").write_text(GOOD, encoding="utf-8")
    check(refused("run", "sweep.yaml", *flags), begins)


@pytest.mark.parametrize(
    ("arguments", "contains"),
    [
        (["plna", "quickstart"], "No such command 'plna'. Did you mean 'plan'?"),
        (["run"], "Missing argument 'SWEEP'."),
        (["run", "quickstart", "other"], "Got unexpected extra argument(s) (other)"),
        (["run", "quickstart", "--fast-fail"], "No such option: --fast-fail"),
        (["run", "quickstart", "--set"], "Option '--set' requires an argument."),
        (["ui", "--port", "http"], "Invalid value for '--port'"),
        (["data", "fetch", "mnist"], "Missing option '--to'."),
        (
            ["data", "fetch", "mnits", "--to", "data"],
            "'mnits': unknown; did you mean 'mnist'? allowed: fashion-mnist, ",
        ),
    ],
)
def test_command_line(arguments: list[str], contains: str) -> None:
    assert contains in refused(*arguments)


def test_source_that_is_unknown() -> None:
    Path("sweep.yaml").write_text("name: demo\nworkloads:\n  mlp:\n    data: {source: digit}\n", encoding="utf-8")
    line = refused("run", "sweep.yaml")
    assert line == "sweep.yaml:4: workloads.mlp.data.source: found 'digit'; did you mean 'digits'? allowed: digits, idx"


def test_path_that_is_missing_from_the_file() -> None:
    Path("sweep.yaml").write_text("name: demo\nworkloads:\n  mlp:\n    data: {source: idx}\n", encoding="utf-8")
    line = refused("run", "sweep.yaml")
    wanted = "sweep.yaml:4: workloads.mlp.data.path: missing; it has no default; give it here or as --data mlp=PATH"
    assert line == wanted


@pytest.mark.parametrize(
    ("damage", "file", "problem"),
    [
        ({NAMES[0]: None}, NAMES[0], "found no such file; allowed: it, or the same gzipped (.gz)"),
        ({NAMES[0]: b""}, NAMES[0], "found an empty file at the start; allowed: 00000803"),
        ({NAMES[0]: idx((10,), bytes(10))}, NAMES[0], "found 00000801 at the start; allowed: 00000803"),
        ({NAMES[0]: idx((10, 2, 2), bytes(39))}, NAMES[0], "found 39 values; allowed: the 10 x 2 x 2 of its header"),
        ({NAMES[0]: b"\0\0\x08\x03\0\0"}, NAMES[0], "found 6 bytes; allowed: at least the 16 of an IDX header"),
        ({NAMES[0]: idx((0, 2, 2), b"")}, NAMES[0], "found no samples; allowed: at least one"),
        ({NAMES[1]: idx((9,), bytes(range(9)))}, NAMES[1], "found 9 labels; allowed: 10, one for each image of "),
        ({NAMES[1]: idx((10,), bytes(range(1, 11)))}, NAMES[1], "found label 10; allowed: 0 to 9, by classes"),
        ({NAMES[1]: idx((10,), bytes([0] * 10))}, NAMES[3], "found label 1; allowed: the labels of training"),
        ({NAMES[2]: idx((2, 3, 3), bytes(18))}, NAMES[2], "found images of 3 x 3; allowed: 2 x 2, as in training"),
        ({NAMES[3]: gzip.compress(idx((2,), b"\0\1"))[:-4]}, NAMES[3], "found a corrupted gzip file (Compressed file"),
    ],
)
def test_images(here: Path, damage: dict[str, bytes | None], file: str, problem: str) -> None:
    folder = write_images(here / "images")
    for name, content in damage.items():
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
    Path("sweep.yaml").write_text(FILES, encoding="utf-8")
    check(refused("run", "sweep.yaml"), f"sweep.yaml:4: workloads.mlp.data.path: {folder / file}: {problem}")


def test_folder_of_images_that_is_missing(here: Path) -> None:
    Path("sweep.yaml").write_text(FILES, encoding="utf-8")
    problem = "found no such folder; allowed: one with IDX files"
    place = "workloads.mlp.data.path"
    assert refused("run", "sweep.yaml") == f"sweep.yaml:4: {place}: {here / 'images'}: {problem}"
    assert refused("run", "sweep.yaml", "--data", "other") == f"--data other: {place}: {here / 'other'}: {problem}"


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (None, "found No such file or directory; allowed: a file that can be read"),
        (b"", "found no single column 'text' (text); allowed: "),
        (b"text,label\n", "found no rows; allowed: a header and at least one row"),
        (b"text,category\nhi,a\n", "found no single column 'label' (label); allowed: one of text, category"),
        (b"text,label\nhi,a\nho\n", "found 1 fields in row 2; allowed: 2, as in the header"),
        (b"text,label\nhi,a\n,b\n", "found an empty 'text' in row 2; allowed: a text and a label in every row"),
        (b"text,label\nhi,a\nho,a\n", "found only the label 'a'; allowed: 2 labels or more"),
        (b"text,label\nhi,a\nho,a\nhm,b\n", "found one row labelled 'b'; allowed: 2 or more, to hold 15% out"),
        (b"text,label\ncaf\xe9,a\n", "found byte 0xe9 in line 2; allowed: UTF-8"),
    ],
)
def test_texts(here: Path, texts: bytes | None, problem: str) -> None:
    if texts is not None:
        Path("texts.csv").write_bytes(texts)
    Path("sweep.yaml").write_text(TEXTS, encoding="utf-8")
    place = f"sweep.yaml:4: workloads.distilbert.data.path: {here / 'texts.csv'}: "
    check(refused("run", "sweep.yaml"), place + problem)


def test_label_of_the_test_set_that_training_lacks(here: Path) -> None:
    Path("texts").mkdir()
    Path("texts/train.csv").write_text("text,label\nhi,a\nho,b\n", encoding="utf-8")
    Path("texts/test.csv").write_text("text,label\nhi,a\nhm,c\n", encoding="utf-8")
    Path("sweep.yaml").write_text(TEXTS.replace("texts.csv", "texts"), encoding="utf-8")
    line = refused("run", "sweep.yaml")
    problem = f"{here / 'texts/test.csv'}: found label 'c' in row 2; allowed: the labels of training"
    assert line == f"sweep.yaml:4: workloads.distilbert.data.path: {problem}"


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (None, "found no such file; allowed: a Python file"),
        ("from workloads import Workload\n", "found no workload 'Mine'; allowed: a class that derives from workloads."),
        ("class Mine: ...\n", "found no workload 'Mine'; allowed: a class that derives from workloads.Workload"),
        ("from workloads import Workload\nclass Mine(Workload): ...\n", "found no build_model, "),
    ],
    ids=["file", "class", "base", "methods"],
)
def test_workload_of_the_user(here: Path, module: str | None, problem: str) -> None:
    if module is not None:
        Path("mine.py").write_text(module, encoding="utf-8")
    Path("sweep.yaml").write_text(MINE, encoding="utf-8")
    check(refused("run", "sweep.yaml"), f"sweep.yaml:4: workloads.mine.uses: {here / 'mine.py'}: {problem}")


def test_workload_of_the_user_that_is_no_valid_python(here: Path) -> None:
    Path("mine.py").write_text("import os\n\nclass Mine(:\n", encoding="utf-8")
    Path("sweep.yaml").write_text(MINE, encoding="utf-8")
    place = f"sweep.yaml:4: workloads.mine.uses: {here / 'mine.py'}:3: "
    assert refused("run", "sweep.yaml") == f"{place}found invalid syntax; allowed: valid Python"


def test_options_of_a_workload_of_the_user() -> None:
    line_fit = Path(__file__).parent / "support" / "line.py"
    spec = f"name: demo\nworkloads:\n  mine:\n    uses: {line_fit}:LineFit\n    options: {{sample: 3}}\n"
    Path("sweep.yaml").write_text(spec, encoding="utf-8")
    wanted = "sweep.yaml:5: workloads.mine.options.sample: unknown key; did you mean 'samples'? allowed: "
    check(refused("run", "sweep.yaml"), wanted)


@pytest.mark.parametrize("command", ["show", "sync"])
def test_sweep_that_has_not_run(command: str) -> None:
    Path("results/runs/nightly").mkdir(parents=True)
    Path("results/runs/nightly/sweep.json").write_text("{}", encoding="utf-8")
    line = refused(command, "nightli")
    wanted = "nightli: no records of such a sweep in results/runs; did you mean 'nightly'? allowed: nightly"
    assert line == wanted


@pytest.mark.parametrize("command", ["show", "sync"])
def test_sweep_whose_folder_is_damaged(command: str) -> None:
    Path("results/runs/nightly").mkdir(parents=True)
    Path("results/runs/nightly/sweep.json").write_text('{"name": ', encoding="utf-8")
    check(refused(command, "nightly"), "results/runs/nightly/sweep.json: can't be read as a sweep: ")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (f'{{"schema": {SCHEMA}, "sweep": "demo"', "can't be read as a record: Expecting ',' delimiter"),
        ('{"schema": 99}', f"schema: found 99; allowed: {SCHEMA}"),
        ("[]", f"schema: found None; allowed: {SCHEMA}"),
        (f'{{"schema": {SCHEMA}}}', "no whole Record: "),
    ],
    ids=["truncated", "schema", "list", "incomplete"],
)
def test_record_that_stands_in_the_way(content: str, problem: str) -> None:
    from harness import spec

    Path("sweep.yaml").write_text(GOOD, encoding="utf-8")
    trial = spec.load(Path("sweep.yaml")).trials()[0]
    path = Path("results/runs/demo") / trial.id / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    ended = harness("run", "sweep.yaml")
    assert ended.code == 2
    assert ended.err.startswith(f"harness: {path}: {problem}")
    assert ended.err.count("\n") == 1
    assert path.read_text(encoding="utf-8") == content
    assert not list(path.parent.glob("trial.json"))


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["run"], "harness: Missing argument 'SWEEP'. (see harness run --help)\n"),
        (
            ["run", "sweep.yaml"],
            "harness: sweep.yaml:5: matrix.precision[1]: found \"bf61\"; did you mean 'bf16'? allowed: bf16, ",
        ),
        (
            ["show", "demo"],
            "harness: demo: no records of such a sweep in results/runs; allowed: nothing\n",
        ),
    ],
)
def test_installed_command(here: Path, arguments: list[str], wanted: str) -> None:
    Path("sweep.yaml").write_text(GOOD + "matrix:\n  precision: [fp32, bf61]\n", encoding="utf-8")
    before = tree(here)
    variables = {name: value for name, value in os.environ.items() if name != "HARNESS_RESULTS"}
    command = [str(Path(sys.executable).with_name("harness")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(wanted)
    assert done.stderr.count("\n") == 1
    assert tree(here) == before
