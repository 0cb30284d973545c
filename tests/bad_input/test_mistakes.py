"""Natural mistakes: each is answered by one line that says what to write instead."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.core.paths import Results
from tests.factories import make_cell, make_record, write_sweep
from tests.support.commands import harness

GOOD = "name: demo\nworkloads:\n  mlp: {data: {source: digits}}\n"
OWN = "name: demo\nworkloads: {lm: {uses: lm.py}}\n"
LM = """\
import torch
from torch import nn
from workloads import Classifier, Splits, TensorSamples


class LM(Classifier):
    batch_size = 32

    def splits(self):
        x = torch.randn(640, 8)
        y = (x.sum(1) > 0).long()
        return Splits(TensorSamples((x[:512], y[:512])), TensorSamples((x[512:], y[512:])))

    def build_model(self):
        return nn.Linear(8, 2)
"""


@dataclass(frozen=True)
class Mistake:
    """A command with its files, and what the answer must have."""

    command: str
    answer: str
    spec: str = GOOD  # the content of demo.yaml
    files: Mapping[str, str] = field(default_factory=dict)


def in_file(line: str, answer: str) -> Mistake:
    """Return the mistake of a line at the end of a sweep file."""
    return Mistake("plan demo.yaml", answer, f"{GOOD}{line}\n")


def in_code(before: str, after: str, answer: str) -> Mistake:
    """Return the mistake of a change to a workload of one's own."""
    assert before in LM
    return Mistake("plan demo.yaml", answer, OWN, {"lm.py": LM.replace(before, after, 1)})


MISTAKES = {
    # wrong keys
    "epochs as an axis": Mistake("plan demo.yaml --set epochs=3", "did you mean 'length.epochs'?"),
    # wrong values
    "fsdp": Mistake("plan demo.yaml --set strategy=fsdp", "did you mean 'fsdp2'?"),
    "a range of seeds": Mistake("plan demo.yaml --set seeds=1-3", "seeds: found \"1-3\"; allowed: a list"),
    # wrong units
    "a fraction for a percentage": Mistake("run demo.yaml --until 0.05", "did you mean '5%' or '0.05%'?"),
    "a budget without --until": Mistake("run demo.yaml --budget 30m", "--budget: found without --until"),
    # wrong commands
    "an axis as an option": Mistake(
        "plan demo.yaml --batch-size 32", "did you mean --set batch_size=VALUE?"
    ),
    "an axis as an argument": Mistake(
        "plan demo.yaml precision=bf16", "unexpected extra argument(s) (precision=bf16)"
    ),
    "a blank for =": Mistake("plan demo.yaml --set lr 0.1", "unexpected extra argument(s) (0.1)"),
    "no sweep": Mistake("run", "Missing argument 'SWEEP'"),
    "a gate against nothing": Mistake(
        "gate demo.yaml", "Missing option '--against'"
    ),
    "a server without http": Mistake(
        "run demo.yaml --tracking-uri localhost:5000", "allowed: http://…, https://…"
    ),
    "several trials to export": Mistake("export recorded --to onnx", "allowed: one: --best"),
    # wrong files
    "a file without its ending": Mistake("run demo", "did you mean 'demo.yaml'?"),
    "another ending": Mistake("run demo.yml", "did you mean 'demo.yaml'?"),
    "a misspelt sweep": Mistake("show recordde", "did you mean 'recorded'?"),
    # wrong Python
    "a package that is not there": in_code(
        "import torch\n", "import torhc\n", "lm.py:1: ModuleNotFoundError: No module named 'torhc'"
    ),
    "half a sample": in_code(
        "batch_size = 32", "batch_size = 32.5", "LM.batch_size: found 32.5; allowed: a whole number"
    ),
    "a script that exits": in_code("class LM", "raise SystemExit(3)\n\n\nclass LM", "SystemExit: 3"),
    "a file that is not there": Mistake(
        "plan demo.yaml",
        "lm.py: found no such file (did you mean 'ml.py'?)",
        OWN,
        {"ml.py": LM},
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=list(MISTAKES))
def test_a_natural_mistake_is_answered_by_the_line_that_mends_it(mistake: Mistake) -> None:
    for name, text in ({"demo.yaml": mistake.spec} | dict(mistake.files)).items():
        Path(name).write_text(text, encoding="utf-8")
    if "record" in mistake.command:
        records = [make_record(make_cell(), seed=seed, sweep="recorded") for seed in (0, 1)]
        write_sweep(Results(Path("results")).sweep_folder("recorded"), records)
    ended = harness(*shlex.split(mistake.command))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert mistake.answer in ended.err
