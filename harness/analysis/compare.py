"""Compares the results of cells: which cells may be compared, and the verdicts.

A comparison is made in three steps. Cells are matched: two match if they differ in nothing but what
the question is about (`compare` across two sides, `compare_by` within one). Each match asks two
questions, on throughput and on the target metric (`harness.analysis.questions`). All questions are
then judged together (`harness.statistics.verdict`), so that many cells raise no more false alarms
than one.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

import msgspec

from harness.analysis.cells import differing_axes, varying_axes
from harness.analysis.questions import (
    ACCURACY_MARGIN,
    SPEED,
    TrialPair,
    metric_question,
    paired_trials,
    steps_question,
    throughput_question,
)
from harness.analysis.result import CellResult
from harness.core.errors import BadInput, did_you_mean
from harness.core.text import counted
from harness.records.differences import differences, identity_settings, shown
from harness.statistics.estimate import FEWEST_SESSIONS
from harness.statistics.verdict import MetricVerdict, Question, judge
from harness.sweep.axes import PREFIX
from harness.sweep.cell import THROUGHPUT_UNITS, Cell, axis_names, is_setting

ABSENT = object()  # in place of a setting that a cell's identity lacks: null is a value
NOT_INTERLEAVED = (
    "not interleaved: what the machine did between the two counts as a difference of them"
)
# Fields that differ if the code differs, which is often the question.
CODE_FIELDS = ("code", "harness.", "repository.")
# What the fields begin with that follow from an axis, and are not listed again for cells that differ in it.
FIELDS_OF_AXES: Mapping[str, Sequence[str]] = {
    "num_threads": ("settings.threads", "variables.OMP_NUM_THREADS"),
    "precision": ("settings.float32_matmul_precision",),
    "env.ATEN_CPU_CAPABILITY": ("settings.cpu_capability",),
    "deterministic": (
        "settings.deterministic_algorithms",
        "variables.CUBLAS_WORKSPACE_CONFIG",
        "variables.NCCL_NVLS_ENABLE",
    ),
    "stack": ("software.",),
}


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the results that are compared."""

    name: str  # as the user named it: a sweep, a cell, a baseline, …
    cells: Sequence[CellResult]  # the first of a group is the reference in `compare_by`

    @property
    def hardware(self) -> set[str]:
        """The keys of all hardware that its cells were measured on."""
        keys: set[str] = set()
        for cell in self.cells:
            keys.update(cell.hardware)
        return keys

    @property
    def all_cells(self) -> list[Cell]:
        """The cells without their results."""
        return [result.cell for result in self.cells]

    @property
    def axes(self) -> list[str]:
        """The names of all axes of its cells."""
        return axis_names(self.all_cells)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What counts as a difference."""

    across: Sequence[str] = ()  # the differences that are the question
    min_effect: float = SPEED.min_effect  # smallest change that matters, a fraction of throughput
    accuracy_margin: float = ACCURACY_MARGIN  # and in the target metric's unit
    goal: float | None = None  # of the target metric; the steps to reach it are compared too
    # min_effect and accuracy_margin of single cells, by the id of B's cell
    overrides: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def limits(self, cell: Cell) -> tuple[float, float]:
        """Return the min_effect and the accuracy_margin of a cell."""
        general = (self.min_effect, self.accuracy_margin)
        return self.overrides.get(cell.id, general)


@dataclass(frozen=True, kw_only=True)
class Match:
    """Two cells that are compared with each other."""

    a: CellResult  # the reference
    b: CellResult  # the cell that is judged
    a_side: str  # the name of A's side
    b_side: str  # and that of B's, which is the same for cells of one side
    # One on each metric of B against A, throughput first; empty until judged.
    verdicts: Sequence[MetricVerdict] = ()

    @cached_property
    def pairs(self) -> Sequence[TrialPair]:
        """The trials of both cells with the same seed and repeat."""
        return paired_trials(self.a, self.b)

    @property
    def side_names(self) -> tuple[str, str]:
        """The names of the sides in messages, the letters for cells of one side."""
        if self.a_side == self.b_side:
            return "A", "B"
        return self.a_side, self.b_side

    @property
    def sides(self) -> Sequence[tuple[str, CellResult]]:
        """The two cells with the letters that messages call them by."""
        return ("A", self.a), ("B", self.b)

    @property
    def speed(self) -> MetricVerdict | None:
        """The verdict on throughput, None where it can't be compared."""
        return next(filter(is_throughput, self.verdicts), None)

    @property
    def accuracy(self) -> MetricVerdict | None:
        """The verdict on the target metric, None where a side has none."""
        for verdict in self.verdicts:
            if not verdict.metric.relative:  # unlike throughput and the steps to a goal
                return verdict
        return None

    @property
    def has_other_lanes(self) -> bool:
        """Whether the two cells' trials ran next to different numbers of others."""
        trials = (*self.a.measured_trials, *self.b.measured_trials)
        return len({trial.lanes for trial in trials}) > 1


def is_throughput(question: Question) -> bool:
    """Return whether it is throughput that is compared."""
    return question.metric.name in THROUGHPUT_UNITS


@dataclass(frozen=True, kw_only=True)
class CellComparison:
    """Cells that were compared, with a verdict on each of their metrics."""

    matches: Sequence[Match]  # cells that were compared
    missing: Sequence[str]  # messages on what could not be compared, as cells of one side only
    rules: Rules  # by which it was judged

    @cached_property
    def differences(self) -> list[str]:
        """The conditions in which the two cells of any match differ."""
        return _each_once(map(_condition_differences, self.matches))

    @cached_property
    def notes(self) -> list[str]:
        """Remarks that change no exit code."""
        return _each_once(map(_notes, self.matches))

    @property
    def verdicts(self) -> list[MetricVerdict]:
        """The verdicts on all matches, in the order of the matches."""
        verdicts: list[MetricVerdict] = []
        for match in self.matches:
            verdicts += match.verdicts
        return verdicts

    @property
    def exit_code(self) -> int:
        """1 if anything is worse, else 3 if anything is inconclusive or missing, else 0."""
        outcomes = {verdict.outcome for verdict in self.verdicts}
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
    names = {"hardware", "options", "data"}
    for side in (a, *other_sides):
        names.update(side.axes)
        for result in side.cells:
            names.update(identity_settings(result.cell))
    check_across(rules.across, names)
    matches: list[Match] = []
    missing: list[str] = []
    cells_a = _cells_by_key(a, rules.across)
    for b in other_sides:
        cells_b = _cells_by_key(b, rules.across)
        if cells_a.keys().isdisjoint(cells_b):
            raise _no_common_cell(a, b, rules.across)
        for key, cell in cells_a.items():
            if key not in cells_b:
                missing.append(f"{cell.cell.label}: only in {a.name}")
                continue
            match = Match(
                a=cell,
                b=cells_b[key],
                a_side=a.name,
                b_side=b.name,
            )
            matches.append(match)
        for key, cell in cells_b.items():
            if key not in cells_a:
                missing.append(f"{cell.cell.label}: only in {b.name}")
    return _judge_matches(matches, missing, rules)


def _no_common_cell(a: Side, b: Side, across: Sequence[str]) -> BadInput:
    """Return the error for two sides of which no cells match, with what their first cells differ in."""
    first_a, first_b = a.cells[0].cell, b.cells[0].cell
    differing = setting_differences(first_a, first_b, across)
    listed = ", ".join(differing)
    suggested = ",".join([*across, *differing])
    return BadInput(
        f"{a.name} and {b.name} have no cell in common; their first cells differ in"
        f" {listed}; if that is the question: --across {suggested}"
    )


def compare_by(side: Side, axes: Sequence[str], rules: Rules) -> CellComparison:
    """Compare the cells of one side that differ in these axes only, with the first of each group.

    Cells are in one group if they differ in no other setting, except axes that follow these, as those
    under the same `zip`. Raises BadInput for a name that is no axis, and if no group has two cells.
    """
    check_across(axes, side.axes, "--by")
    cells = side.all_cells
    together = list(axes)
    for axis in varying_axes(cells):
        if axis not in axes and _follows(cells, axis, axes):
            together.append(axis)
    matches = _match_with_first(side, together)
    if not matches:
        by = ",".join(axes)
        varying = ", ".join(varying_axes(cells)) or "nothing: its cells differ in no axis"
        raise BadInput(
            f"--by {by}: found no cells of {side.name} that differ in that only;"
            f" its cells differ in {varying}"
        )
    return _judge_matches(matches, [], rules)


def _follows(
    cells: Sequence[Cell],
    axis: str,
    axes: Sequence[str],
) -> bool:
    """Return whether cells of a workload that are equal in `axes` are equal in `axis` too."""
    levels: dict[Sequence[Hashable], Hashable] = {}
    for cell in cells:
        decisive = (cell.workload.label, *map(cell.level, axes))
        level = cell.level(axis)
        if levels.setdefault(decisive, level) != level:
            return False
    return True


def _match_with_first(side: Side, across: Collection[str]) -> list[Match]:
    """Return the match of each cell with the first of those that it differs from in these axes only."""
    first: dict[str, CellResult] = {}
    matches = []
    for cell in side.cells:
        key = matching_key(cell.cell, across)
        reference = first.setdefault(key, cell)
        if reference is cell:
            continue
        match = Match(
            a=reference,
            b=cell,
            a_side=side.name,
            b_side=side.name,
        )
        matches.append(match)
    return matches


def against_first(side: Side) -> CellComparison:
    """Compare each cell of a sweep with the first measured one of its workload.

    This is the comparison of a sweep in the terminal, the report and MLflow. Cells are compared whatever
    hardware they ran on. There are no matches if no workload has two cells.
    """
    measured_first = sorted(side.cells, key=lambda cell: not cell.log_throughputs)
    ordered = Side(name=side.name, cells=measured_first)
    matches = _match_with_first(ordered, frozenset(side.axes))
    return _judge_matches(matches, [], Rules(across=("hardware",)))


def check_across(
    names: Sequence[str],
    allowed: Iterable[str],
    option: str = "--across",
) -> None:
    """Raise BadInput for a name that is no difference between cells."""
    for name in names:
        if name not in allowed:
            suggestion = did_you_mean(name, allowed)
            raise BadInput(f"{option}: found {name!r}; {suggestion}")


def matching_key(cell: Cell, across: Collection[str]) -> str:
    """Return text that is equal for cells that differ only in `across`."""
    settings = {}
    for name, value in identity_settings(cell).items():
        if not _is_across(name, across):
            settings[name] = value
    return msgspec.json.encode(settings, order="sorted").decode()


def _is_across(name: str, across: Collection[str]) -> bool:
    """Return whether a setting, or the section that it is in, is among `across`."""
    section, _, _ = name.partition(".")
    return name in across or section in across


def _cells_by_key(side: Side, across: Sequence[str]) -> dict[str, CellResult]:
    """Return the cells of a side by `matching_key`; raises BadInput if two have the same."""
    by_key: dict[str, CellResult] = {}
    for cell in side.cells:
        key = matching_key(cell.cell, across)
        same = by_key.setdefault(key, cell)
        if same is not cell:
            listed = ",".join(across)
            raise BadInput(
                f"--across {listed}: {side.name} has {same.cell.label} and"
                f" {cell.cell.label}, which differ in nothing else; name one of them, or compare"
                " within one sweep with --by"
            )
    return by_key


def setting_differences(
    cell: Cell,
    other: Cell,
    across: Sequence[str] = (),
) -> dict[str, tuple[Any, Any]]:
    """Return both values of each setting in which two cells differ, except those in `across`.

    A variable that one of them does not set is None there.
    """
    settings = identity_settings(cell)
    other_settings = identity_settings(other)
    differences = {}
    for name in {**settings, **other_settings}:
        value = settings.get(name, ABSENT)
        other_value = other_settings.get(name, ABSENT)
        if value == other_value or _is_across(name, across):
            continue
        if not is_setting(name) or name in cell.workload.file_digests:
            differences[name] = settings.get(name), other_settings.get(name)
        else:  # the identity leaves out defaults
            differences[name] = cell.level(name), other.level(name)
    return differences


def _condition_differences(match: Match) -> list[str]:
    """Return the conditions in which two cells differ.

    Each as in `software.torch: 2.12.0 (A), 2.13.0 (B)`, the most likely cause of another result
    first; none for a cell without trials.
    """
    a, b = match.a, match.b
    if not a.trials or not b.trials:
        return []
    name_a, name_b = match.side_names
    lines = list(filter(None, [_hardware_difference(match)]))
    differing = differences(a.conditions, b.conditions)
    explained = _fields_of_axes(differing_axes(a.cell, b.cell)) if differing else ()
    for difference in differing:
        if difference.field.startswith(explained):
            continue
        value_a, value_b = shown(difference.a), shown(difference.b)
        lines.append(f"{difference.field}: {value_a} ({name_a}), {value_b} ({name_b})")
    return lines


def _each_once(groups: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of all groups in their order, each once."""
    return list(dict.fromkeys(chain.from_iterable(groups)))


def _hardware_difference(match: Match) -> str | None:
    """Return on what hardware two cells with trials ran, None if it was the same.

    A cell that was measured on two kinds is a mean over both, which equals nothing.
    """
    if not match.a.trials or not match.b.trials:
        return None
    kinds_a, kinds_b = sorted(match.a.hardware), sorted(match.b.hardware)
    if kinds_a == kinds_b and len(kinds_a) <= 1:
        return None
    name_a, name_b = match.side_names
    return f"hardware: {' and '.join(kinds_a)} ({name_a}), {' and '.join(kinds_b)} ({name_b})"


def _fields_of_axes(axes: Sequence[str]) -> tuple[str, ...]:
    """Return what the fields begin with that differ because these axes do."""
    prefixes: list[str] = []
    for axis in axes:
        prefixes += FIELDS_OF_AXES.get(axis, ())
        prefixes.append(f"variables.{axis.removeprefix(PREFIX)}")
    return tuple(prefixes)


def _judge_matches(
    matches: Sequence[Match],
    unmatched: Sequence[str],
    rules: Rules,
) -> CellComparison:
    """Return the comparison of these matches, with verdicts over all their metrics together.

    `unmatched` are messages on cells that only one side has. Raises BadInput for other hardware, unless
    that is the question.
    """
    missing = list(unmatched)
    questions: list[Question] = []
    counts = []  # of the questions on each match
    for match in matches:
        on_match, problems = _ask(match, rules)
        questions += on_match
        counts.append(len(on_match))
        missing += problems
        hardware = _hardware_difference(match)
        if hardware is not None and "hardware" not in rules.across:
            raise BadInput(
                f"{match.a.cell.label}: other hardware: {hardware}; if that is the question: --across"
                " hardware"
            )
    verdicts = iter(judge(questions))
    judged = []
    for match, count in zip(matches, counts, strict=True):
        on_metrics = list(islice(verdicts, count))
        judged.append(replace(match, verdicts=on_metrics))
    return CellComparison(
        matches=judged,
        missing=missing,
        rules=rules,
    )


def _ask(match: Match, rules: Rules) -> tuple[list[Question], list[str]]:
    """Return the questions on a match, and what is missing for others: with it, nothing can pass.

    Trials that failed, were interrupted or never ran could have changed the verdict; invalid ones are
    left out on purpose and only noted (`_notes`).
    """
    a, b = match.a, match.b
    min_effect, accuracy_margin = rules.limits(b.cell)
    speed = throughput_question(a, b, min_effect)
    accuracy = metric_question(a, b, accuracy_margin)
    questions = list(filter(None, (speed, accuracy)))
    problems = []
    if rules.goal is not None:
        steps = steps_question(a, b, rules.goal)
        if isinstance(steps, Question):
            questions.append(steps)
        else:
            problems.append(steps)
    if speed is None:
        problems.append(_describe_unmeasured(match))
    else:
        if accuracy is None and (a.target or b.target):
            problems.append("no target metric that both sides have")
        if a.trials == b.trials:
            problems.append("both sides are the same trials, so there is nothing to compare")
        problems += _describe_incomplete(match)
    return questions, [f"{b.cell.label}: {problem}" for problem in problems]


def _describe_incomplete(match: Match) -> list[str]:
    """Return how many trials of each side could have changed the verdict: `2 failed trials of A`."""
    incomplete = []
    for letter, side in match.sides:
        for status, count in side.left_out.items():
            if status != "invalid":
                trials = counted(count, f"{status} trial")
                incomplete.append(f"{trials} of {letter}")
    return incomplete


def _describe_unmeasured(match: Match) -> str:
    """Return why throughputs can't be compared: `no measured throughput in A (2 failed)`."""
    unmeasured = []
    for letter, side in match.sides:
        if not side.log_throughputs:
            reason = side.describe_left_out() or "too few steps"
            unmeasured.append(f"{letter} ({reason})")
    if unmeasured:
        listed = " and ".join(unmeasured)
        return f"no measured throughput in {listed}"
    units = f"{match.a.throughput_unit} in A and {match.b.throughput_unit} in B"
    return f"throughput is in {units}, which can't be compared"


def _notes(match: Match) -> list[str]:
    """Return notes on a match: what a reader should know who believes its verdicts."""
    label = match.b.cell.label
    notes = []
    for question in filter(is_throughput, match.verdicts):
        estimate = question.estimate
        if estimate.unit == "trials":
            notes.append(NOT_INTERLEAVED)
        elif estimate.unit == "sessions" and estimate.standard_error is None:
            sessions = counted(estimate.count, "session")
            notes.append(
                f"{label}: the baseline has {sessions}; a verdict on speed"
                f" takes {FEWEST_SESSIONS}, saved at different times"
            )
    if match.has_other_lanes:
        notes.append(
            f"{label}: A and B ran next to other numbers of trials, which may have caused a difference;"
            " `parallel: 1` in the profile measures each alone"
        )
    for letter, side in match.sides:
        if any(trial.settled is False for trial in side.trials):
            notes.append(f"{label}: some trials of {letter} never reached a steady state")
        for name, values in side.mixed.items():
            listed = " and ".join(map(shown, values))
            notes.append(f"{label}: trials of {letter} are of different {name}: {listed}")
        if "invalid" in side.left_out:
            invalid = counted(side.left_out["invalid"], "invalid trial")
            notes.append(f"{label}: left out {invalid} of {letter}")
    return notes
