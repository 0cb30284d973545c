"""Sweep files that say what can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_input.refusals import GOOD, check, param, refused

BOOLEAN = "(on, off, yes and no are booleans too: put quotes around a word)"

UNKNOWN_KEYS = [
    param(
        "workloads",
        "name: demo\nworkload:\n  mlp: {data: {source: digits}}\n",
        "sweep.yaml:2: workload: unknown key; did you mean 'workloads'? allowed: checkpoint, evaluate, exclud",
    ),
    param(
        "name",
        "nmae: demo\nworkloads: {mlp: {data: {source: digits}}}\n",
        "sweep.yaml:1: nmae: unknown key; did you mean 'name'? allowed: ",
    ),
    param(
        "sweep",
        GOOD + "seed: [0]\n",
        "sweep.yaml:4: seed: unknown key; did you mean 'seeds'? allowed: ",
        "repeats",
    ),
    param(
        "workload",
        "name: demo\nworkloads:\n  mlp:\n    dat: {source: digits}\n",
        "sweep.yaml:4: workloads.mlp.dat: unknown key; did you mean 'data'? allowed: ",
        "options, seeds, stop, target, uses",
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
        "sweep.yaml:5: matrix.exection: unknown axis; did you mean 'execution'?",
    ),
    param(
        "axes",
        GOOD + "matrix: {world-size: 2}\n",
        "sweep.yaml:4: matrix.world-size: unknown axis; did you mean 'world_size'?",
    ),
    param(
        "workload-axes",
        "name: demo\nworkloads:\n  mlp:\n    axes: {batchsize: 2}\n",
        "sweep.yaml:4: workloads.mlp.axes.batchsize: unknown axis; did you mean 'batch_size'?",
    ),
    param(
        "zip",
        GOOD + "zip:\n  - stratgy: [ddp]\n",
        "sweep.yaml:5: zip[0].stratgy: unknown axis; did you mean 'strategy'?",
    ),
    param(
        "exclude",
        GOOD + "exclude:\n  - precision: bf16\n  - worklod: mlp\n",
        "sweep.yaml:6: exclude[1].worklod: unknown axis; did you mean 'workload'?",
    ),
    param(
        "include",
        GOOD + "include:\n  - presicion: bf16\n",
        "sweep.yaml:5: include[0].presicion: unknown axis; did you mean 'precision'?",
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
        "sweep.yaml:5: exclude[0].workload: found \"mpl\"; did you mean 'mlp'? allowed: mlp",
    ),
    param(
        "no-excluded-workload",
        GOOD + "exclude: [{workload: []}]\n",
        "sweep.yaml:4: exclude[0].workload: found []; allowed: mlp",
    ),
    param(
        "empty-rule",
        GOOD + "exclude: [{}]\n",
        "sweep.yaml:4: exclude[0]: found an empty rule; allowed: activation_checkpointing",
    ),
    param(
        "checkpoint",
        GOOD + "checkpoint: beste\n",
        "sweep.yaml:4: checkpoint: found 'beste'; did you mean 'best'? allowed: best, {every: 10m, keep: 2}",
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
        GOOD + "matrix: {strategy: off}\n",
        'sweep.yaml:4: matrix.strategy: found "off"; allowed: ddp, fsdp2, hsdp, single',
    ),
    param(
        "execution-on",
        GOOD + "matrix: {execution: [on]}\n",
        'sweep.yaml:4: matrix.execution[0]: found "on"; allowed: compile, compile:max-autotune, compile:reduc',
    ),
    param("name-number", GOOD.replace("demo", "3"), "sweep.yaml:1: name: found 3; allowed: text"),
    param(
        "name-blank",
        GOOD.replace("demo", "'  '"),
        'sweep.yaml:1: name: found " "; allowed: letters, digits, ., - and _, at most 200',
    ),
    param(
        "no-workloads",
        "name: demo\n",
        "sweep.yaml: workloads: missing; it has no default",
    ),
    param(
        "none",
        "name: demo\nworkloads: {}\n",
        "sweep.yaml:2: workloads: found none; allowed: cnn, distilbert, gpt, mlp",
    ),
    param(
        "workload-list",
        "name: demo\nworkloads: [mlp]\n",
        'sweep.yaml:2: workloads: found ["mlp"]; allowed: keys with values',
    ),
    param(
        "workload",
        "name: demo\nworkloads:\n  mpl: {}\n",
        "sweep.yaml:3: workloads.mpl: found no workload 'mpl' (did you mean 'mlp'?)",
        "allowed: cnn, distilbert, gpt, mlp, ",
    ),
    param(
        "float",
        GOOD + "matrix: {batch_size: 64.0}\n",
        "sweep.yaml:4: matrix.batch_size: found 64.0; allowed: a whole number",
    ),
    param(
        "text",
        GOOD + "matrix: {batch_size: '64'}\n",
        'sweep.yaml:4: matrix.batch_size: found "64"; allowed: a whole number',
    ),
    param(
        "negative",
        GOOD + "matrix: {batch_size: -3}\n",
        "sweep.yaml:4: matrix.batch_size: found -3; allowed: at least 1",
    ),
    param(
        "zero",
        GOOD + "matrix: {world_size: [1, 0]}\n",
        "sweep.yaml:4: matrix.world_size[1]: found 0; allowed: at le",
    ),
    param(
        "nan",
        GOOD + "matrix: {batch_size: .nan}\n",
        "sweep.yaml:4: matrix.batch_size: found nan; allowed: a finite number",
    ),
    param(
        "infinite",
        GOOD + "timeout: .inf\n",
        "sweep.yaml:4: timeout: found inf; allowed: a finite number",
    ),
    param(
        "no-repeats", GOOD + "repeats: 0\n", "sweep.yaml:4: repeats: found 0; allowed: at least 1"
    ),
    param(
        "negative-warmup",
        GOOD + "warmup: -1\n",
        "sweep.yaml:4: warmup: found -1; allowed: at least 0",
    ),
    param(
        "no-value",
        GOOD + "matrix: {execution: }\n",
        "sweep.yaml:4: matrix.execution: found null; allowed: compile, compile:max-autotune, compile:reduce-o",
    ),
    param(
        "no-values",
        GOOD + "matrix: {execution: []}\n",
        "sweep.yaml:4: matrix.execution: found an empty list; allowed",
    ),
    param(
        "null", GOOD + "matrix:\n", "sweep.yaml:4: matrix: found null; allowed: keys with values"
    ),
    param(
        "no-seed",
        GOOD + "seeds: 0\n",
        "sweep.yaml:4: seeds: found 0; allowed: how many seeds, from 1 to 10,000, or a list",
    ),
    param(
        "seeds-mapping",
        GOOD + "seeds: {a: 1}\n",
        'sweep.yaml:4: seeds: found {"a": 1}; allowed: a list',
    ),
    param(
        "seeds-text",
        GOOD + "seeds: three\n",
        'sweep.yaml:4: seeds: found "three"; allowed: a list',
    ),
    param(
        "length-number",
        GOOD + "length: 5\n",
        "sweep.yaml:4: length: found 5; allowed: a length such as 5 epochs or 300 steps",
    ),
    param(
        "length-text",
        GOOD + "evaluate: 5 hours\n",
        'sweep.yaml:4: evaluate: found "5 hours"; allowed: a length such as 5 epochs or 300 steps',
    ),
    param(
        "length-zero",
        GOOD + "length: 0 epochs\n",
        'sweep.yaml:4: length: found "0 epochs"; allowed: a length such as 5 epochs or 300 steps',
    ),
    param(
        "seeds-none",
        GOOD + "seeds: []\n",
        "sweep.yaml:4: seeds: found []; allowed: at least one, each once",
    ),
    param(
        "seeds-twice",
        GOOD + "seeds: [4, 4]\n",
        "sweep.yaml:4: seeds: found [4, 4]; allowed: at least one, each once",
    ),
    param(
        "seeds-negative",
        GOOD + "seeds: [0, -1]\n",
        "sweep.yaml:4: seeds[1]: found -1; allowed: at least 0",
    ),
    param(
        "dropout",
        GOOD + "  cnn: {options: {dropout: 1.5}}\n",
        "sweep.yaml:4: workloads.cnn.options.dropout: found 1.5",
    ),
    param(
        "vocabulary-of-a-folder",
        "name: demo\nworkloads:\n  distilbert:\n    options: {vocabulary: 512, pretrained: model}\n",
        "sweep.yaml:4: workloads.distilbert.options: found vocabulary and pretrained",
    ),
]

COMBINATIONS = [
    param(
        "steps-and-epochs",
        GOOD + "length: {steps: 30, epochs: 3}\n",
        "sweep.yaml:4: length: found both steps and epochs; allowed: one of them",
    ),
    param(
        "more-steps-than-a-record-holds",
        GOOD + "length: {steps: 1000000000000}\n",
        "sweep.yaml:4: length.steps: found 1000000000000; allowed: at most 16777216",
    ),
    param(
        "neither-steps-nor-epochs",
        GOOD + "evaluate: {}\n",
        "sweep.yaml:4: evaluate: found neither steps nor epochs; allowed: one of them",
    ),
    param(
        "a-rule-that-stops-nothing",
        GOOD + "stop: {metric: target}\n",
        "sweep.yaml:4: stop: found neither patience nor goal; allowed: one of them, or both",
    ),
    param(
        "patience-of-nothing",
        GOOD + "stop: {patience: 0}\n",
        "sweep.yaml:4: stop.patience: found 0; allowed: at least 1",
    ),
    param(
        "stop-on-an-unknown-metric",
        GOOD + "stop: {patience: 2, metric: accuracy}\n",
        'sweep.yaml:4: stop.metric: found "accuracy"; allowed: loss, target',
    ),
    param(
        "stop-without-a-validation-set",
        GOOD + "stop: {patience: 2}\n",
        "sweep.yaml:3: workloads.mlp.data.validation: found 0; allowed: more, such as 0.15: stop looks at",
    ),
    param(
        "warmup",
        GOOD + "length: {steps: 30}\nwarmup: 30\n",
        "sweep.yaml:5: warmup: found 30; allowed: fewer than the 30 steps of mlp",
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
        "all-excluded",
        GOOD + "matrix: {precision: [fp32, bf16]}\nexclude:\n  - workload: mlp\n",
        "sweep.yaml: found no cell to run: 2 left out by exclude[0]: the sweep says so; allowed: at least one cell",
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
