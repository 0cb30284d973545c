"""Sweep files that say what can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_input.refusals import GOOD, check, param, refused

UNKNOWN_KEYS = [
    param(
        "workloads",
        "name: demo\nworkload:\n  mlp: {data: {source: digits}}\n",
        "sweep.yaml:2: workload: unknown key; did you mean 'workloads'? allowed: checkpoint, evaluate, exclud",
    ),
    param(
        "workload",
        "name: demo\nworkloads:\n  mlp:\n    dat: {source: digits}\n",
        "sweep.yaml:4: workloads.mlp.dat: unknown key; did you mean 'data'? allowed: ",
        "options, seeds, stop, target, uses",
    ),
    param(
        "matrix",
        GOOD + "matrix:\n  exection: [eager]\n",
        "sweep.yaml:5: matrix.exection[0]: unknown axis; did you mean 'execution'?",
    ),
    param(
        "workload-axes",
        "name: demo\nworkloads:\n  mlp:\n    axes: {batchsize: 2}\n",
        "sweep.yaml:4: workloads.mlp.axes.batchsize: unknown axis; did you mean 'batch_size'?",
    ),
    param(
        "exclude",
        GOOD + "exclude:\n  - precision: bf16\n  - worklod: mlp\n",
        "sweep.yaml:6: exclude[1].worklod: unknown axis; did you mean 'workload'?",
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
        "excluded-workload",
        GOOD + "exclude:\n  - {workload: mpl, precision: bf16}\n",
        "sweep.yaml:5: exclude[0].workload[0]: found \"mpl\"; did you mean 'mlp'? allowed: mlp",
    ),
    param(
        "checkpoint",
        GOOD + "checkpoint: beste\n",
        'sweep.yaml:4: checkpoint: found "beste"; allowed: keys with values',
    ),
    param(
        "profile-steps",
        GOOD + "profile: 0\n",
        "sweep.yaml:4: profile: found 0; allowed: at least 1",
    ),
    param(
        "execution-on",
        GOOD + "matrix: {execution: [on]}\n",
        'sweep.yaml:4: matrix.execution[0]: found "on"; allowed: compile, compile:max-autotune, compile:reduc',
    ),
    param(
        "no-workloads",
        "name: demo\n",
        "sweep.yaml: workloads: missing; it has no default",
    ),
    param(
        "none",
        "name: demo\nworkloads: {}\n",
        "sweep.yaml:2: workloads: found {}; allowed: at least 1",
    ),
    param(
        "workload",
        "name: demo\nworkloads:\n  mpl: {}\n",
        "sweep.yaml:3: workloads.mpl.uses: found no workload 'mpl' (did you mean 'mlp'?)",
        "allowed: cnn, distilbert, gpt, mlp, ",
    ),
    param(
        "no-values",
        GOOD + "matrix: {execution: []}\n",
        "sweep.yaml:4: matrix.execution: found an empty list; allowed",
    ),
    param(
        "no-seed",
        GOOD + "seeds: 0\n",
        "sweep.yaml:4: seeds: found []; allowed: at least 1",
    ),
    param(
        "length-number",
        GOOD + "length: 5\n",
        "sweep.yaml:4: length: found 5; allowed: a length such as 5 epochs or 300 steps",
    ),
    param(
        "seeds-twice",
        GOOD + "seeds: [4, 4]\n",
        "sweep.yaml:4: seeds: found [4, 4]; allowed: each once",
    ),
]

COMBINATIONS = [
    param(
        "a-rule-that-stops-nothing",
        GOOD + "stop: {}\n",
        "sweep.yaml:4: stop: found neither patience nor goal; allowed: one of them, or both",
    ),
    param(
        "steps-and-epochs",
        GOOD + "length: {steps: 30, epochs: 3}\n",
        "sweep.yaml:4: length: found both steps and epochs, or neither; allowed: one of them",
    ),
    param(
        "more-steps-than-a-record-holds",
        GOOD + "length: {steps: 1000000000000}\n",
        "sweep.yaml:4: length.steps: found 1000000000000; allowed: at most 16777216",
    ),
    param(
        "stop-without-a-validation-set",
        GOOD + "stop: {patience: 2}\n",
        "sweep.yaml:3: workloads.mlp.data.validation: found 0; allowed: more, such as 0.15: stop looks at",
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
        "set-by-the-workload",
        GOOD.replace("mlp: {", "mlp: {axes: {batch_size: 32}, ")
        + "matrix: {batch_size: [64, 256]}\n",
        "sweep.yaml:4: matrix.batch_size: found what the workloads set themselves; allowed: one of the two",
    ),
    param(
        "all-excluded",
        GOOD + "matrix: {precision: [fp32, bf16]}\nexclude:\n  - workload: mlp\n",
        "sweep.yaml: found no cell to run: 2 left out by exclude[0]: the sweep says so",
    ),
    param(
        "not-divisible",
        GOOD + "matrix: {strategy: ddp, world_size: 2, batch_size: 63}\n",
        "sweep.yaml: found no cell to run: 1 left out by conflict: batch_size 63 can't be shared out evenly among 2",
    ),
    param(
        "senseless-include",
        GOOD + "include:\n  - {strategy: single, world_size: 2}\n",
        "sweep.yaml:5: include[0]: strategy single is one rank, world_size is 2",
    ),
]


@pytest.mark.parametrize(("spec", "begins", "contains"), UNKNOWN_KEYS + VALUES + COMBINATIONS)
def test_sweep_file(spec: str, begins: str, contains: tuple[str, ...]) -> None:
    Path("sweep.yaml").write_text(spec, encoding="utf-8")
    check(refused("run", "sweep.yaml"), begins, *contains)
