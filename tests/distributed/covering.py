"""Few rows of settings that cover every pair of values that makes sense, in `covering.json`.

`python -m tests.distributed.covering` finds them anew, in about a minute: after a new axis or value, or
a new rule of what goes with what.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.sweep.axes import Axes, find_conflict

Row = dict[str, Any]
Pair = tuple[str, str]  # two axes with their values, each as JSON, so that True is not 1

PATH = Path(__file__).with_name("covering.json")
VALUES: dict[str, list[Any]] = {
    "strategy": ["ddp", "fsdp2"],
    "execution": ["eager", "compile"],
    "precision": ["fp32", "bf16", "fp16", "bf16:fsdp2"],
    "grad_accum_steps": [1, 2],
    "input": ["loader", "resident"],
    "num_workers": [0, 2],
    "loader.persistent_workers": [True, False],
    "loader.prefetch_factor": [2, 1],
    "ddp.bucket_cap_mb": [None, 1e-4],  # 104 bytes: the model's gradients have 644
    "ddp.gradient_as_bucket_view": [False, True],
    "ddp.static_graph": [False, True],
    "fsdp.reshard_after_forward": [None, True, False],
    "compile.dynamic": [None, False],
    "activation_checkpointing": [False, True],
    "max_grad_norm": [None, 1e6],
    "optimizer_impl": ["for-loop", "foreach", "fused"],
}
# Those that compile take several times as long. Each precision needs one.
COMPILING_ROWS = 5
EAGER_ROWS = 9
MOVES = 200_000  # that are tried
HOTTEST, COLDEST = 1.0, 0.05  # temperatures, in pairs that a move may lose


def read() -> list[Row]:
    """Return the rows."""
    rows: list[Row] = json.loads(PATH.read_text(encoding="utf-8"))
    return rows


def fits(row: Row) -> bool:
    """Return whether settings go together, on two ranks."""
    return find_conflict(Axes.of({"batch_size": 32, "world_size": 2, **row})) is None


def pairs_of(row: Row) -> set[Pair]:
    """Return every pair of settings in a row."""
    settings = [json.dumps([axis, row[axis]]) for axis in VALUES]
    return set(itertools.combinations(settings, 2))


def possible_pairs() -> set[Pair]:
    """Return the pairs that go with some choice of the axes that others need."""
    needed = ("strategy", "execution", "input", "num_workers", "grad_accum_steps")
    pairs: set[Pair] = set()
    for axis, other_axis in itertools.combinations(VALUES, 2):
        free = [name for name in needed if name not in (axis, other_axis)]
        choices = list(itertools.product(*(VALUES[name] for name in free)))
        for value, other_value in itertools.product(VALUES[axis], VALUES[other_axis]):
            settings = {axis: value, other_axis: other_value}
            if any(fits(settings | dict(zip(free, choice, strict=True))) for choice in choices):
                pairs.add((json.dumps([axis, value]), json.dumps([other_axis, other_value])))
    return pairs


def missing_pairs(rows: Sequence[Row]) -> set[Pair]:
    """Return the possible pairs that are in no row."""
    return possible_pairs().difference(*map(pairs_of, rows))


def search(rows: list[Row], rng: random.Random) -> None:
    """Change rows, which must fit, until they cover all possible pairs or `MOVES` are spent.

    By simulated annealing: a move changes up to three settings of a row. One that loses pairs is made
    by chance, the more rarely the more it loses and the later it comes.
    """
    possible = possible_pairs()
    covered = [pairs_of(row) & possible for row in rows]
    counts = Counter(itertools.chain.from_iterable(covered))
    for move in range(MOVES):
        if len(+counts) == len(possible):
            break
        temperature = HOTTEST + (COLDEST - HOTTEST) * move / MOVES
        number = rng.randrange(len(rows))
        row = changed(rows[number], rng)
        if not fits(row):
            continue
        pairs = pairs_of(row) & possible
        won = sum(counts[pair] == 0 for pair in pairs - covered[number])
        lost = sum(counts[pair] == 1 for pair in covered[number] - pairs)
        if won >= lost or rng.random() < math.exp((won - lost) / temperature):
            counts.subtract(covered[number])
            counts.update(pairs)
            rows[number], covered[number] = row, pairs


def changed(row: Row, rng: random.Random) -> Row:
    """Return a row with up to three other settings; whether it compiles stays."""
    axes = rng.sample([axis for axis in VALUES if axis != "execution"], rng.randint(1, 3))
    return row | {axis: rng.choice(VALUES[axis]) for axis in axes}


def main() -> None:
    """Write rows that cover all pairs; raises RuntimeError if so few rows do not.

    Starts from the rows that are there, with the default of an axis that is new to them.
    """
    default = {axis: values[0] for axis, values in VALUES.items()}
    compiling = default | {"execution": "compile"}
    rows = [compiling] * COMPILING_ROWS + [default] * EAGER_ROWS
    if PATH.exists():
        rows = [default | row for row in read()]
    search(rows, random.Random(0))
    missing = missing_pairs(rows)
    if missing:
        raise RuntimeError(f"{len(missing)} pairs are in none of {len(rows)} rows: {missing}")
    lines = ",\n".join(json.dumps(row) for row in rows)
    PATH.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
