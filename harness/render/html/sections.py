"""The sections that show measurements, each as the rows of its groups; one without data is empty."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from harness.measure.memory import training_bytes
from harness.records.record import Record
from harness.render.chart import COLORS, INK
from harness.render.html.facts import CellFacts, Facts, telling, words
from harness.render.html.rows import Bar, Group, Part, bars, shade
from harness.tracking.telemetry import joules_per_sample

COLUMNS = 6  # of the heat map at most, where the axes allow it
STRONGEST = 1.2  # the ratio that has the full shade at least, so that noise looks pale
STEP = {  # the phases of a step in their order, and how they look
    "data_wait": COLORS[5], "host_to_device": COLORS[7], "forward": COLORS[2], "backward": COLORS[0],
    "communication": COLORS[1], "optimizer": COLORS[3],
}  # fmt: skip
TRIAL = {  # and those of a trial
    "startup": "#999999", "data": COLORS[5], "build": COLORS[4], "loader": COLORS[7], "compile": COLORS[1],
    "warmup": COLORS[6], "train": COLORS[0], "evaluate": COLORS[2], "checkpoint": COLORS[3],
    "fingerprint": INK, "profile": "#CCCCCC",
}  # fmt: skip
MIB = 2**20
SCALING_ROOM = 1.25  # of ideal scaling that bars have room for


@dataclass(frozen=True, kw_only=True)
class Field:
    """A cell of the heat map: samples/s, ratio to the reference, colour."""

    text: str
    ratio: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Heat:
    """One workload: a row for each head, a field for each column; None where the sweep has no such cell."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Field | None]]]


def heat(facts: Facts) -> list[Heat]:
    """Columns are the last axes that tell, as many as there is room for."""
    return [
        _heat(facts, label)
        for label, cells in facts.workloads.items()
        if any(c.rate for c in cells)
    ]


def _across(cells: Sequence[CellFacts], axes: Sequence[str]) -> Sequence[str]:
    """The longest row of last axes, the first left out, whose values make at most COLUMNS columns."""
    tails = [axes[at:] for at in range(1, len(axes))]
    fitting = [tail for tail in tails if len({words(cell.cell, tail) for cell in cells}) <= COLUMNS]
    return next(iter(fitting), axes[-1:])


def _heat(facts: Facts, label: str) -> Heat:
    axes = telling([cell.cell for cell in facts.workloads[label]])
    across = _across(facts.workloads[label], axes)
    cells, reference = facts.workloads[label], facts.reference(label)
    base = reference.rate.mean if reference and reference.rate else 1.0
    ratios = {cell.cell.id: cell.rate.mean / base for cell in cells if cell.rate}
    strongest = max(STRONGEST, *(max(ratio, 1 / ratio) for ratio in ratios.values()))
    down = [axis for axis in axes if axis not in across]
    columns = list(dict.fromkeys(words(cell.cell, across) for cell in cells))
    rows: dict[str, dict[str, Field]] = {}
    for cell in cells:
        ratio = ratios.get(cell.cell.id)
        text = cell.absent if cell.rate is None else f"{cell.rate.mean:,.0f}"
        colour = "#ffffff" if ratio is None else shade(ratio, strongest)
        row = rows.setdefault(words(cell.cell, down) or label, {})
        row[words(cell.cell, across)] = Field(
            text=text, ratio="" if ratio is None else f"{ratio:.2f}×", colour=colour
        )
    found = [(head, [row.get(column) for column in columns]) for head, row in rows.items()]
    return Heat(title=label, columns=columns or [""], rows=found)


def step_phases(facts: Facts) -> list[Group]:
    """The shares of a step, over the ranks and the measured steps."""
    return _stacked(
        facts, STEP, lambda record: record.summary.shares if record.summary else {}, _step_words
    )


def _step_words(shares: Mapping[str, float]) -> str:
    return f"{shares.get('data_wait', 0.0):.0%} data wait, {shares.get('communication', 0.0):.0%} communication"


def trial_phases(facts: Facts) -> list[Group]:
    """The seconds of a trial, from its start to its record."""
    return _stacked(
        facts, TRIAL, lambda record: record.phases, lambda seconds: f"{sum(seconds.values()):.1f} s"
    )


def _stacked(
    facts: Facts,
    looks: Mapping[str, str],
    read: Callable[[Record], Mapping[str, float]],
    say: Callable[[Mapping[str, float]], str],
) -> list[Group]:
    groups = []
    for label, cells in facts.workloads.items():
        means = [(cell.name, mean) for cell in cells if (mean := _mean(map(read, cell.done)))]
        found = {name for _, mean in means for name in mean}
        names = [name for name in looks if name in found] + sorted(found - looks.keys())
        colours = {name: looks.get(name, INK) for name in names}
        titles = {name: name.replace("_", " ") for name in names}
        longest = max((sum(mean.values()) for _, mean in means), default=1.0)
        rows = []
        for name, mean in means:
            parts = [
                Part(width=100 * mean[n] / longest, colour=colours[n], name=titles[n])
                for n in names
                if n in mean
            ]
            rows.append(Bar(label=name, parts=parts, text=say(mean)))
        if rows:
            groups.append(
                Group(
                    title=label, rows=rows, legend=[(colours[name], titles[name]) for name in names]
                )
            )
    return groups


def _mean(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """By name, of those above zero; what a trial does not have counts as zero."""
    trials = list(found)
    names = dict.fromkeys(name for trial in trials for name in trial)
    means = {name: fmean(trial.get(name, 0.0) for trial in trials) for name in names}
    return {name: mean for name, mean in means.items() if mean > 0}


def scaling(facts: Facts) -> list[Group]:
    """Throughput on more ranks, of what as many times the min_effect number of ranks would do."""
    groups = []
    for label, cells in facts.workloads.items():
        rows: list[Bar] = []
        bases = _fewest_ranks(cells)
        for cell in cells:
            base = bases[_apart_from_ranks(cell)]
            ranks, least = cell.cell.axes.world_size, base.cell.axes.world_size if base else 0
            if base is None or base.rate is None or cell.rate is None or ranks <= least:
                continue
            speedup, ideal = cell.rate.mean / base.rate.mean, ranks / least
            share = speedup / ideal
            part = Part(width=min(100.0, 100 * share / SCALING_ROOM), colour=COLORS[0], name="")
            text = f"{speedup:.2f}× on {ideal:g}× the ranks: {share:.0%} of ideal"
            rows.append(Bar(label=cell.name, parts=[part], text=text))
        if rows:
            groups.append(
                Group(
                    title=label,
                    rows=rows,
                    mark=100 / SCALING_ROOM,
                    note="the line is ideal scaling",
                )
            )
    return groups


def _apart_from_ranks(cell: CellFacts) -> str:
    axes = {n: v for n, v in asdict(cell.cell.axes).items() if n not in ("world_size", "strategy")}
    return json.dumps(axes, sort_keys=True)


def _fewest_ranks(cells: Sequence[CellFacts]) -> dict[str, CellFacts | None]:
    """Of each group of cells that differ in ranks and strategy only, the measured one with the fewest ranks."""
    found: dict[str, CellFacts | None] = {}
    for cell in cells:
        key = _apart_from_ranks(cell)
        best = found.setdefault(key, None)
        if cell.rate and (best is None or cell.cell.axes.world_size < best.cell.axes.world_size):
            found[key] = cell
    return found


def memory(facts: Facts) -> list[Group]:
    """The most that training took at a rank; where that is not known, the resident size."""
    return _measured(
        facts, lambda cell: cell.mean(_memory), lambda cell, value: f"{value:,.0f} MiB"
    )


def _memory(record: Record) -> float | None:
    found = [training_bytes(rank.memory) for rank in record.ranks]
    known = [size / MIB for size in found if size is not None]
    return max(known) if known and len(known) == len(found) else None


def energy(facts: Facts) -> list[Group]:
    """Joules a sample of all ranks' GPUs."""
    return _measured(
        facts, lambda cell: cell.mean(joules_per_sample), lambda cell, value: f"{value:.3g} J"
    )


def _measured(
    facts: Facts, read: Callable[[CellFacts], float | None], say: Callable[[CellFacts, float], str]
) -> list[Group]:
    groups = []
    for label, cells in facts.workloads.items():
        found = [
            (cell.name, value, say(cell, value))
            for cell in cells
            if (value := read(cell)) is not None
        ]
        if found:
            groups.append(Group(title=label, rows=bars(found)))
    return groups
