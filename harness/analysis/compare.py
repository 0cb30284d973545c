"""Compares the results of cells: which cells may be compared, and the verdicts.

A comparison is made in three steps. Cells are matched: two match if they differ in nothing but what
the question is about (`match_cells` across two sides, `compare_by` within one). Each match asks two
questions, on throughput and on the target metric (`harness.analysis.questions`). All questions are
then judged together (`harness.statistics.verdict`), so that many cells raise no more false alarms
than one.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from harness.analysis.cells import differing_axes, varying_axes
from harness.analysis.convergence import convergence_difference, obstacles
from harness.analysis.questions import (
    ACCURACY_MARGIN,
    SPEED,
    MetricDifference,
    metric_difference,
    paired_trials,
    same_bits,
    throughput_difference,
)
from harness.analysis.result import UNKNOWN, CellResult
from harness.core.errors import BadInput, did_you_mean
from harness.core.text import counted
from harness.records.differences import as_text, code_fields, differences, shown
from harness.spec.axes import AXES
from harness.spec.cell import SECTIONS, THROUGHPUT_UNITS, Cell, axis_names, setting_of
from harness.spec.environment import PREFIX, variable_of
from harness.statistics.estimate import FEWEST_SESSIONS, Estimate
from harness.statistics.verdict import ALPHA, Metric, MetricVerdict, judge

# Reads all axes of a cell. `vars` would lack an axis that a recorded cell does not have.
READ_AXES = attrgetter(*AXES)
# Besides the axes.
IDENTITY = ("workload", "options", "data", "length", "evaluate", "stop", "warmup")
DIFFERENCES = ("hardware", *IDENTITY, *AXES)  # the values of --across, besides variables
ABSENT = object()  # in place of a setting that a cell's identity lacks: null is a value
NOT_INTERLEAVED = (
    "not interleaved: what the machine did between the two counts as a difference of them"
)
LONGEST_VALUE = 60  # characters of a setting in an error message
KEPT_CELLS = 2**14  # of which the settings are kept; commands ask for them several times
# Fields that differ if the code differs, which is often the question.
CODE_FIELDS = ("code", "harness.", "repository.")
FIELDS_OF_STACK = "software."  # prefix of the fields that differ with another stack


# Conditions that follow from an axis, and are not listed again for cells that differ in it.
FIELDS_OF_AXES: Mapping[str, Sequence[str]] = {
    "num_threads": ("settings.threads", "variables.OMP_NUM_THREADS"),
    "precision": ("settings.float32_matmul_precision",),
    "env.ATEN_CPU_CAPABILITY": ("settings.cpu_capability",),
    "deterministic": (
        "settings.deterministic_algorithms",
        "variables.CUBLAS_WORKSPACE_CONFIG",
        "variables.NCCL_NVLS_ENABLE",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the results that are compared."""

    name: str  # as the user named it: a sweep, a cell, a baseline, …
    cells: Sequence[CellResult]  # the first of a group is the reference in `compare_by`

    @property
    def hardware(self) -> set[str]:
        """The keys of all hardware that its cells were measured on."""
        return hardware_of([self])


def hardware_of(sides: Iterable[Side]) -> set[str]:
    """Return the keys of all hardware that any of the sides was measured on."""
    keys: set[str] = set()
    for side in sides:
        for cell in side.cells:
            keys.update(cell.hardware)
    return keys


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What counts as a difference."""

    across: Sequence[str] = ()  # the differences that are the question
    min_effect: float = SPEED.min_effect  # smallest change that matters, a fraction of throughput
    accuracy_margin: float = ACCURACY_MARGIN  # and in the target metric's unit
    alpha: float = ALPHA  # chance of a false alarm, over all questions together
    goal: float | None = None  # of the target metric; the steps to reach it are compared too
    # min_effect and accuracy_margin of single cells, by the id of B's cell
    overrides: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def limits(self, cell: Cell) -> tuple[float, float]:
        """Return the min_effect and the accuracy_margin of a cell."""
        return self.overrides.get(cell.id, (self.min_effect, self.accuracy_margin))


@dataclass(frozen=True, kw_only=True)
class Match:
    """Two cells that are compared with each other."""

    a: CellResult  # the reference
    b: CellResult  # the cell that is judged
    b_side: str  # the name of B's side
    same_bits: int  # pairs of trials that ended with the same parameters
    pairs: int  # pairs of trials with the same seed and repeat
    rows: Sequence[MetricRow] = ()  # one for each metric, throughput first; empty until judged

    @staticmethod
    def of(a: CellResult, b: CellResult, b_side: str) -> Match:
        """Return the match of two cells."""
        pairs = paired_trials(a, b)
        return Match(a=a, b=b, b_side=b_side, same_bits=same_bits(pairs), pairs=len(pairs))

    @property
    def has_other_lanes(self) -> bool:
        """Whether the two cells' trials, if both have any, ran next to different numbers of others."""
        return bool(self.a.lanes and self.b.lanes) and self.a.lanes != self.b.lanes

    @property
    def hardware(self) -> list[str]:
        """The keys of all hardware that the two were measured on."""
        return [*self.a.hardware, *self.b.hardware]

    @property
    def sides(self) -> tuple[tuple[str, CellResult], tuple[str, CellResult]]:
        """The two cells with the letters that messages call them by."""
        return ("A", self.a), ("B", self.b)


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One metric of two cells; the verdict is on B against A."""

    a: CellResult  # the reference
    b: CellResult  # the cell that is judged
    b_side: str  # the name of B's side
    mean_a: float  # in the metric's unit; geometric for throughput
    mean_b: float  # and that of B
    verdict: MetricVerdict  # with the effect, its interval and what could have been detected

    @property
    def metric(self) -> Metric:
        """The metric that the cells are compared in."""
        return self.verdict.metric

    @property
    def is_throughput(self) -> bool:
        """Whether it is throughput that is compared."""
        return self.metric.name in THROUGHPUT_UNITS

    @property
    def is_target_metric(self) -> bool:
        """Whether it is the target metric at the end; the steps to a goal are a ratio too."""
        return not self.metric.relative


@dataclass(frozen=True, kw_only=True)
class CellComparison:
    """Cells that were compared, with a verdict on each of their metrics."""

    matches: Sequence[Match]  # cells that were compared
    differences: Sequence[str]  # between the conditions of the sides
    missing: Sequence[str]  # messages on what could not be compared, as cells of one side only
    notes: Sequence[str]  # remarks that change no exit code
    rules: Rules  # by which it was judged

    @property
    def rows(self) -> list[MetricRow]:
        """Return the rows of all matches, in the order of the matches."""
        return [row for match in self.matches for row in match.rows]

    @property
    def exit_code(self) -> int:
        """1 if anything is worse, else 3 if anything is inconclusive or missing, else 0."""
        outcomes = {row.verdict.outcome for row in self.rows}
        if "worse" in outcomes:
            return 1
        if "inconclusive" in outcomes or self.missing:
            return 3
        return 0


def compare(a: Side, other_sides: Sequence[Side], rules: Rules) -> CellComparison:
    """Compare every other side with `a`.

    Code and software may differ and are then named in `CellComparison.differences`. Raises BadInput for
    cells or hardware that differ in something that is not the question (`Rules.across`).
    """
    sides = [a, *other_sides]
    names = dict.fromkeys([*DIFFERENCES, *_axes_of(sides)])  # an ordered set
    for side in sides:
        for result in side.cells:
            names.update(dict.fromkeys(identity_settings(result.cell)))
    check_across(rules.across, list(names))
    matches, missing, differences = [], [], []
    for b in other_sides:
        alike, unmatched = match_cells(a, b, rules.across)
        for cell_a, cell_b in alike:
            differences += _condition_differences(a.name, cell_a, b.name, cell_b, rules.across)
            matches.append(Match.of(cell_a, cell_b, b.name))
        missing += unmatched
    return _judge_matches(matches, missing, list(dict.fromkeys(differences)), rules)


def compare_by(side: Side, axes: Sequence[str], rules: Rules) -> CellComparison:
    """Compare the cells of one side that differ in these axes only, with the first of each group.

    Cells are in one group if they differ in no other setting, except axes that follow these, as those
    under the same `zip`. Raises BadInput for a name that is no axis, and if no group has two cells.
    """
    check_across(axes, _axes_of([side]), "--by")
    cells = [result.cell for result in side.cells]
    together = list(axes)
    for axis in varying_axes(cells):
        if axis not in axes and _follows(cells, axis, axes):
            together.append(axis)
    comparison = _compare_groups(_alike_but_for(side, together), side.name, rules)
    if comparison is None:
        varying = ", ".join(varying_axes(cells)) or "nothing: its cells differ in no axis"
        raise BadInput(
            f"--by {','.join(axes)}: found no cells of {side.name} that differ in that only;"
            f" its cells differ in {varying}"
        )
    return comparison


def _follows(cells: Sequence[Cell], axis: str, axes: Sequence[str]) -> bool:
    """Return whether cells of a workload that are equal in `axes` are equal in `axis` too."""
    levels: dict[Sequence[Hashable], Hashable] = {}
    for cell in cells:
        decisive = (cell.workload.label, *(cell.level(name) for name in axes))
        level = cell.level(axis)
        if levels.setdefault(decisive, level) != level:
            return False
    return True


def _compare_groups(
    groups: Mapping[str, Sequence[CellResult]], side_name: str, rules: Rules
) -> CellComparison | None:
    """Compare the cells of each group with its first; None where no group has two cells."""
    matches = []
    for reference, *other_cells in groups.values():
        for cell in other_cells:
            matches.append(Match.of(reference, cell, side_name))
    if not matches:
        return None
    differences: set[str] = set()
    for match in matches:
        differences.update(_condition_differences("A", match.a, "B", match.b, rules.across))
    return _judge_matches(matches, [], sorted(differences), rules)


def _alike_but_for(side: Side, axes: Iterable[str]) -> dict[str, list[CellResult]]:
    """Return the cells in groups of those that differ in these axes only, by their `matching_key`."""
    across = frozenset(axes)  # which a sweep has many of
    groups: dict[str, list[CellResult]] = {}
    for result in side.cells:
        groups.setdefault(matching_key(result.cell, across), []).append(result)
    return groups


def _axes_of(sides: Iterable[Side]) -> list[str]:
    """Return the names of all axes of the sides' cells."""
    cells = []
    for side in sides:
        cells += [result.cell for result in side.cells]
    return axis_names(cells)


def against_first(side: Side) -> CellComparison | None:
    """Compare each cell of a sweep with the first measured one of its workload.

    This is the comparison of a sweep in the terminal, the report and MLflow. Cells are compared whatever
    hardware they ran on. Returns None if no workload has two cells.
    """
    measured_first = sorted(side.cells, key=lambda cell: not cell.log_throughputs)
    ordered = Side(name=side.name, cells=measured_first)
    groups = _alike_but_for(ordered, _axes_of([side]))
    return _compare_groups(groups, side.name, Rules(across=("hardware",)))


def check_across(names: Sequence[str], allowed: Iterable[str], option: str = "--across") -> None:
    """Raise BadInput for a name that is no difference between cells."""
    for name in names:
        if name not in allowed:
            raise BadInput(f"{option}: found {name!r}; {did_you_mean(name, allowed)}")


@lru_cache(KEPT_CELLS)
def identity_settings(cell: Cell) -> Mapping[str, Any]:
    """Return all settings that decide a cell's result, by their names for --across.

    They are exactly those in the cell's id: without the label of the workload, which the sweep
    chooses, and without absolute paths of data, which belong to one machine.
    """
    identity = cell.workload.identity
    settings: dict[str, Any] = {}
    if cell.stack is not None:
        settings["stack.command"] = str(cell.stack)
    for section in SECTIONS:
        for name, value in (identity.get(section) or {}).items():
            settings[f"{section}.{name}"] = value
    for name in ("arguments", "target"):
        if name in identity:
            settings[name] = identity[name]
    return {
        "workload": identity["uses"],
        **settings,
        **cell.workload.file_digests,
        "length": asdict(cell.length),
        "evaluate": asdict(cell.evaluate),
        "stop": None if cell.stop is None else asdict(cell.stop),
        "warmup": cell.warmup,
        **dict(zip(AXES, READ_AXES(cell.axes), strict=True)),
        **{f"{PREFIX}{name}": value for name, value in cell.variables_set.items()},
    }


def matching_key(cell: Cell, across: Collection[str]) -> str:
    """Return text that is equal for cells that differ only in `across`."""
    settings = {}
    for name, value in identity_settings(cell).items():
        if not _is_across(name, across):
            settings[name] = value
    return msgspec.json.encode(settings, order="sorted").decode()


def _is_across(name: str, across: Collection[str]) -> bool:
    """Return whether a setting, or the section that it is in, is among `across`."""
    return name in across or name.partition(".")[0] in across


def match_cells(
    a: Side, b: Side, across: Sequence[str]
) -> tuple[list[tuple[CellResult, CellResult]], list[str]]:
    """Return the pairs of cells that differ only in `across`, and messages on the other cells.

    A pair is a cell of `a` and one of `b`; pairs are in the order of `a`. Raises BadInput if no
    cells match, or if two cells of a side differ only in `across`.
    """
    cells_a, cells_b = _cells_by_key(a, across), _cells_by_key(b, across)
    matched, unmatched = [], []
    for key, cell in cells_a.items():
        if key in cells_b:
            matched.append((cell, cells_b[key]))
        else:
            unmatched.append(f"{cell.cell.label}: only in {a.name}")
    for key, cell in cells_b.items():
        if key not in cells_a:
            unmatched.append(f"{cell.cell.label}: only in {b.name}")
    if matched:
        return matched, unmatched
    differing = list(setting_differences(a.cells[0].cell, b.cells[0].cell, across))
    raise BadInput(
        f"{a.name} and {b.name} have no cell in common; their first cells differ in"
        f" {', '.join(differing)}; if that is the question: --across {','.join([*across, *differing])}"
    )


def _cells_by_key(side: Side, across: Sequence[str]) -> dict[str, CellResult]:
    """Return the cells of a side by `matching_key`; raises BadInput if two have the same."""
    by_key: dict[str, CellResult] = {}
    for cell in side.cells:
        same = by_key.setdefault(matching_key(cell.cell, across), cell)
        if same is not cell:
            raise BadInput(
                f"--across {','.join(across)}: {side.name} has {same.cell.label} and"
                f" {cell.cell.label}, which differ in nothing else; name one of them, or compare"
                " within one sweep with --by"
            )
    return by_key


def setting_differences(
    cell: Cell, other: Cell, across: Sequence[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Return both values of each setting in which two cells differ, except those in `across`.

    A variable that one of them does not set is None there.
    """
    settings, other_settings = identity_settings(cell), identity_settings(other)
    differences = {}
    for name in {**settings, **other_settings}:
        is_equal = settings.get(name, ABSENT) == other_settings.get(name, ABSENT)
        if is_equal or _is_across(name, across):
            continue
        if setting_of(name) is None or name in cell.workload.file_digests:
            differences[name] = settings.get(name), other_settings.get(name)
        else:  # the identity leaves out defaults
            differences[name] = cell.level(name), other.level(name)
    return differences


def _condition_differences(
    a_name: str, a: CellResult, b_name: str, b: CellResult, across: Sequence[str]
) -> list[str]:
    """Return the conditions in which two cells differ, or which are unknown.

    Each as in `software.torch: 2.12.0 (A), 2.13.0 (B)`, the most likely cause of another result
    first; none for a cell without trials. Raises BadInput for other hardware, unless that is the
    question.
    """
    if not a.trials or not b.trials:
        return []
    hardware_a, hardware_b = _hardware(a), _hardware(b)
    lines: list[str] = []
    if not _is_same_hardware(hardware_a, hardware_b):
        line = f"hardware: {hardware_a} ({a_name}), {hardware_b} ({b_name})"
        if "hardware" not in across:
            raise BadInput(
                f"{a.cell.label}: other hardware: {line};"
                " if that is the question: --across hardware"
            )
        lines.append(line)
    return lines + _detailed_differences(a_name, a, b_name, b)


def _detailed_differences(a_name: str, a: CellResult, b_name: str, b: CellResult) -> list[str]:
    """Return the fields of code and environment in which two cells differ, but not by an axis."""
    table_a, table_b = _code_and_environment(a), _code_and_environment(b)
    if table_a == table_b:
        return []
    fields_of_axes: set[str] = set()  # which follow from axes in which the cells differ
    for axis in differing_axes(a.cell, b.cell):
        fields_of_axes.update(FIELDS_OF_AXES.get(axis, ()))
        variable = variable_of(axis)
        if variable is not None:
            fields_of_axes.add(f"variables.{variable}")
    has_other_stack = a.cell.axes.stack != b.cell.axes.stack
    lines = []
    for difference in differences(table_a, table_b):
        follows_from_stack = has_other_stack and difference.field.startswith(FIELDS_OF_STACK)
        if difference.field not in fields_of_axes and not follows_from_stack:
            value_a, value_b = shown(difference.a), shown(difference.b)
            lines.append(f"{difference.field}: {value_a} ({a_name}), {value_b} ({b_name})")
    return lines


def _code_and_environment(cell: CellResult) -> dict[str, str]:
    """Return the code of a cell's workload and the environment of its trials, as a flat table.

    A field that differs between its trials has all of its values.
    """
    table: dict[str, str] = {}
    for name, value in code_fields(cell.cell).items():
        table[name] = as_text(value)
    for name, values in cell.environment.items():
        table[name] = values[0] if len(values) == 1 else " and ".join(sorted(values))
    return table


def _hardware(cell: CellResult) -> str:
    """Return the keys of a cell's hardware, joined if its trials had several."""
    return " and ".join(sorted(cell.hardware)) or UNKNOWN


def _is_same_hardware(a: str, b: str) -> bool:
    """Return whether the hardware of two cells is known to be equal.

    A cell that was measured on two kinds is a mean over both, which equals nothing.
    """
    return a == b and UNKNOWN not in a and " and " not in a


def _judge_matches(
    matches: Sequence[Match], unmatched: Sequence[str], differences: Sequence[str], rules: Rules
) -> CellComparison:
    """Return the comparison of these matches, with verdicts over all their metrics together.

    `unmatched` are messages on cells that only one side has, `differences` those between the
    conditions of the sides.
    """
    missing = list(unmatched)
    notes: list[str] = []
    numbered: list[tuple[int, MetricDifference]] = []  # each with the number of its match
    for number, match in enumerate(matches):
        min_effect, accuracy_margin = rules.limits(match.b.cell)
        speed = throughput_difference(match.a, match.b, min_effect)
        accuracy = metric_difference(match.a, match.b, accuracy_margin)
        convergence = _convergence(match, rules, missing)
        for difference in (speed, accuracy, convergence):
            if difference is not None:
                numbered.append((number, difference))
        missing += _missing(match, speed, accuracy)
        notes += _notes(match, speed)
    questions = [difference.question for _, difference in numbered]
    verdicts = judge(questions, alpha=rules.alpha)
    rows: list[list[MetricRow]] = [[] for _ in matches]
    for (number, difference), verdict in zip(numbered, verdicts, strict=True):
        match = matches[number]
        rows[number].append(
            MetricRow(
                a=match.a,
                b=match.b,
                b_side=match.b_side,
                mean_a=difference.mean_a,
                mean_b=difference.mean_b,
                verdict=verdict,
            )
        )
    judged = []
    for match, rows_of_match in zip(matches, rows, strict=True):
        judged.append(replace(match, rows=rows_of_match))
    return CellComparison(
        matches=judged,
        differences=differences,
        missing=missing,
        notes=list(dict.fromkeys(notes)),
        rules=rules,
    )


def _convergence(match: Match, rules: Rules, missing: list[str]) -> MetricDifference | None:
    """Return the difference in steps to the goal, None without a goal.

    The reasons why there is none despite a goal are added to `missing`.
    """
    if rules.goal is None:
        return None
    for obstacle in obstacles(match.a, match.b, rules.goal):
        missing.append(f"{match.b.cell.label}: {obstacle}")
    return convergence_difference(match.a, match.b, rules.goal)


def _missing(
    match: Match, speed: MetricDifference | None, accuracy: MetricDifference | None
) -> list[str]:
    """Return messages on missing measurements of a match, with which the comparison can't pass.

    `speed` and `accuracy` are the differences that could be estimated. Trials that failed, were
    interrupted or never ran could have changed the verdict; invalid ones are left out on purpose
    and only noted (`_notes`).
    """
    problems = []
    unmeasured = _unmeasured_sides(match)
    if speed is None and not unmeasured:
        units = " and ".join(f"{side.throughput_unit} in {letter}" for letter, side in match.sides)
        problems.append(f"throughput is in {units}, which can't be compared")
    elif speed is None:
        problems.append(f"no measured throughput in {unmeasured}")
    else:
        if accuracy is None and (match.a.target or match.b.target):
            problems.append("no target metric that both sides have")
        if match.a.trials == match.b.trials:
            problems.append("both sides are the same trials, so there is nothing to compare")
        for letter, side in match.sides:
            for status, count in side.left_out.items():
                if status != "invalid":
                    problems.append(f"{counted(count, f'{status} trial')} of {letter}")
    return [f"{match.b.cell.label}: {problem}" for problem in problems]


def _unpaired_notes(match: Match, estimate: Estimate) -> list[str]:
    """Return the note on throughputs that were not compared in pairs, none that has no use."""
    if estimate.unit == "trials":
        return [NOT_INTERLEAVED]
    if estimate.unit == "sessions" and estimate.standard_error is None:
        count = counted(estimate.count, "session")
        problem = f"a verdict on speed takes {FEWEST_SESSIONS}, saved at different times"
        return [f"{match.b.cell.label}: the baseline has {count}; {problem}"]
    return []


def _notes(match: Match, speed: MetricDifference | None) -> list[str]:
    """Return notes on a match.

    They say that its sides were not measured in turn or ran next to different numbers of trials,
    that trials of one side ran under different versions, that trials were unsteady, and that invalid
    trials are left out of the means.
    """
    notes = []
    if speed is not None:
        notes += _unpaired_notes(match, speed.question.estimate)
    if match.a.has_unsteady_trials or match.b.has_unsteady_trials:
        notes.append(f"{match.b.cell.label}: some trials never reached a steady state")
    for letter, side in match.sides:
        for name, values in side.mixed.items():
            listed = " and ".join(map(shown, values))
            notes.append(
                f"{match.b.cell.label}: trials of {letter} are of different {name}: {listed}"
            )
    if speed is None:
        return notes
    if match.has_other_lanes:
        lanes = [f"{' and '.join(map(str, side.lanes))} ({letter})" for letter, side in match.sides]
        notes.append(
            f"{match.b.cell.label}: trials side by side: {', '.join(lanes)}, which may have caused a"
            " difference; --parallel 1 measures each trial alone"
        )
    for letter, side in match.sides:
        invalid = side.left_out.get("invalid")
        if invalid:
            left_out = counted(invalid, "invalid trial")
            notes.append(f"{match.b.cell.label}: left out {left_out} of {letter}")
    return notes


def _unmeasured_sides(match: Match) -> str:
    """Return the sides without a measured throughput, and why: `A (2 failed) and B (too few
    steps)`.
    """
    sides = []
    for letter, side in match.sides:
        if not side.log_throughputs:
            sides.append(f"{letter} ({side.describe_left_out() or 'too few steps'})")
    return " and ".join(sides)
