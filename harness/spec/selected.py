"""A part of a sweep, as `--only` and `--cell` choose it.

A selection changes neither the sweep nor what is recorded of it: `sweep.json` lists all cells, and
`harness show` all recorded trials. A command that is given a `SelectedSweep` runs or shows its trials
only. `--only` takes a condition on trials, as in `strategy=ddp and precision!=fp16`:

    condition   = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation    = {"not"} (comparison | "(" condition ")")
    comparison  = NAME OPERATOR VALUE | NAME ["not"] "in" "(" VALUE {"," VALUE} ")"
    OPERATOR    = "=" | "!=" | "<" | "<=" | ">" | ">="

A text is parsed into objects that compare values. Nothing in it is evaluated as code, and bounds on
its length and depth keep the parser's recursion small.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NoReturn, Protocol

from harness.core.errors import BadInput, did_you_mean
from harness.spec.axes import axis_choices
from harness.spec.cell import SECTIONS, Cell, Trial, axis_names, equals, hashable, is_named
from harness.spec.document import parse_value
from harness.spec.sweep import Sweep
from harness.spec.text import find_control_character

ONLY = "--only"
MOST_CELLS = 10  # that an error lists
MOST_VALUES = 8  # of an axis, that an error lists
MAX_LENGTH = 2000  # characters
MAX_DEPTH = 20  # of parentheses
SHOWN_LENGTH = 100  # characters of a condition in an error
TOKEN = re.compile(
    r"""\s*(?:
        (?P<operator>!=|<=|>=|==|=|<|>)
      | (?P<mark>[(),])
      | (?P<list>\[[^\[\]]*\])
      | (?P<quoted>'[^']*'|"[^"]*")
      | (?P<word>[^\s()\[\],=!<>'"]+)
    )""",
    re.VERBOSE,
)
KEYWORDS = ("and", "or", "not", "in")
OPERATORS = "=, !=, <, <=, >, >=, in, not in"
ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

# Returns the value of an axis, `workload` or `seed` of one trial, by that name.
LevelOf = Callable[[str], Hashable]


@dataclass(frozen=True)
class Token:
    """A piece of a condition."""

    kind: str  # a group of TOKEN, or `end`
    text: str
    column: int  # counted from 1


@dataclass(frozen=True)
class Literal:
    """A value that levels are compared with."""

    text: str  # without quotes
    value: Hashable  # as YAML reads it; text if it is quoted
    column: int

    def equals(self, level: Hashable) -> bool:
        """Return whether a level is this value."""
        return equals(level, self.text, self.value)


class Condition(Protocol):
    """What a trial has to satisfy."""

    def holds(self, level_of: LevelOf) -> bool:
        """Return whether a trial with these levels satisfies it."""

    def comparisons(self) -> Iterator[AxisComparison]:
        """Yield the comparisons that it consists of, from left to right."""


@dataclass(frozen=True)
class AxisComparison:
    """A comparison of one level with a value, or with several."""

    name: str
    column: int  # of the name
    operator: str  # a key of ORDERS, `=` or `!=`; with several values, `=` means any of them
    values: Sequence[Literal]

    def holds(self, level_of: LevelOf) -> bool:
        """Return whether a trial's level compares so.

        A level that is no number is neither below nor above one.
        """
        level = level_of(self.name)
        if self.operator in ORDERS:
            bound = self.values[0].value
            return is_number(level) and ORDERS[self.operator](level, bound)  # type: ignore[arg-type]
        is_equal = any(value.equals(level) for value in self.values)
        return is_equal == (self.operator == "=")

    def comparisons(self) -> Iterator[AxisComparison]:
        """Yield this comparison."""
        yield self


@dataclass(frozen=True)
class Negation:
    """The opposite of a condition."""

    condition: Condition

    def holds(self, level_of: LevelOf) -> bool:
        """Return whether a trial does not satisfy the condition."""
        return not self.condition.holds(level_of)

    def comparisons(self) -> Iterator[AxisComparison]:
        """Yield the comparisons of the condition."""
        return self.condition.comparisons()


@dataclass(frozen=True)
class Combination:
    """Several conditions joined by `and` or `or`."""

    join: Callable[[Iterator[bool]], bool]  # `all` or `any`
    conditions: Sequence[Condition]

    def holds(self, level_of: LevelOf) -> bool:
        """Return whether a trial satisfies all of the conditions, or any of them."""
        return self.join(condition.holds(level_of) for condition in self.conditions)

    def comparisons(self) -> Iterator[AxisComparison]:
        """Yield the comparisons of all conditions."""
        for condition in self.conditions:
            yield from condition.comparisons()


def is_number(level: Hashable) -> bool:
    """Return whether a level is a number, which a boolean is not."""
    return isinstance(level, int | float) and not isinstance(level, bool)


def parse_condition(text: str) -> Condition:
    """Return the condition that a text states; raises BadInput with the column of a mistake.

    Names and values are checked by `check_condition`.
    """
    if find_control_character(text, besides="\n\t"):
        raise BadInput(f"{ONLY} {text!r}: found a control character; allowed: text without any")
    if len(text) > MAX_LENGTH:
        raise BadInput(f"{ONLY}: found {len(text):,} characters; allowed: at most {MAX_LENGTH:,}")
    return _Parser(text).parse()


def check_condition(
    condition: Condition,
    text: str,
    levels: Mapping[str, Collection[Hashable]],
    listed_names: Sequence[str] | None = None,
) -> None:
    """Raise BadInput for a comparison that no trial could satisfy, or that all would.

    `levels` are the values in the sweep by name. A name that is none of them is refused, a word
    that an axis or the sweep does not know, and an order where nothing is a number. The error of a
    name lists `listed_names`, or else all names.
    """
    for comparison in condition.comparisons():
        problem = None
        column = comparison.column
        if comparison.name not in levels:
            hint = did_you_mean(comparison.name, levels, listed_names)
            problem = f"unknown name {comparison.name!r}; {hint}"
        elif comparison.operator in ORDERS:
            problem = _problem_of_order(comparison, levels[comparison.name])
        else:
            unknown = _unknown_word(comparison, levels[comparison.name])
            if unknown is not None:
                problem, column = unknown
        if problem is not None:
            raise _error(text, column, problem)


def _problem_of_order(comparison: AxisComparison, levels: Collection[Hashable]) -> str | None:
    """Return why `<` and its like can't compare, None if they can."""
    bound = comparison.values[0]
    if not is_number(bound.value):
        return (
            f"found {comparison.operator} with {bound.text!r}; allowed: a number after"
            f" {comparison.operator}"
        )
    if not any(is_number(level) for level in levels):
        listed = ", ".join(sorted(map(str, levels)))
        return (
            f"found {comparison.operator} with {comparison.name}, which is no number here"
            f" ({listed}); allowed: =, !=, in"
        )
    return None


def _unknown_word(
    comparison: AxisComparison, levels: Collection[Hashable]
) -> tuple[str, int] | None:
    """Return what is wrong with a word that neither the axis nor the sweep has, and its column.

    Axes that take anything else than a few words have no wrong values.
    """
    choices = {*axis_choices(comparison.name)}
    if comparison.name == "workload":
        choices.update(str(level) for level in levels)
    for value in comparison.values:
        if choices and value.text not in choices:
            hint = did_you_mean(value.text, choices)
            return f"{comparison.name}: found {value.text!r}; {hint}", value.column
    return None


def _error(text: str, column: int, problem: str) -> BadInput:
    """Return the error of a condition with the column at which it is wrong."""
    shown = text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"
    return BadInput(f"{ONLY} {shown!r}: column {column}: {problem}")


class _Parser:
    """Parses one condition by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._index = 0
        self._depth = 0  # of parentheses that are open

    def parse(self) -> Condition:
        """Return the condition; raises BadInput for anything that does not belong to one."""
        condition = self._parse_combination()
        if self._next.kind != "end":
            self._fail("and, or, or the end")
        return condition

    def _split(self) -> list[Token]:
        """Return the tokens of the text, and one that stands for its end."""
        tokens = []
        position = 0
        end = len(self._text.rstrip())
        while position < end:
            match = TOKEN.match(self._text, position)
            if match is None:
                blanks = len(self._text[position:]) - len(self._text[position:].lstrip())
                column = position + blanks + 1
                character = self._text[column - 1]
                problem = f"found {character!r}; allowed: a comparison such as strategy=ddp"
                raise _error(self._text, column, problem)
            kind = str(match.lastgroup)
            tokens.append(Token(kind, match[kind], match.start(kind) + 1))
            position = match.end()
        return [*tokens, Token("end", "", end + 1)]

    @property
    def _next(self) -> Token:
        """The token to read next."""
        return self._tokens[self._index]

    def _take(self) -> Token:
        """Return the next token and go past it."""
        token = self._next
        self._index += 1
        return token

    def _skip(self, *texts: str) -> bool:
        """Go past the next token if it is one of these marks or keywords; return whether it was."""
        is_plain = self._next.kind in ("mark", "word")
        if is_plain and self._next.text in texts:
            self._index += 1
            return True
        return False

    def _fail(self, allowed: str) -> NoReturn:
        """Raise the error of the next token, which is not what may follow."""
        found = repr(self._next.text) if self._next.kind != "end" else "the end"
        problem = f"found {found}; allowed: {allowed}"
        raise _error(self._text, self._next.column, problem)

    def _parse_combination(self) -> Condition:
        """Parse conjunctions that are joined by `or`."""
        conditions = [self._parse_conjunction()]
        while self._skip("or"):
            conditions.append(self._parse_conjunction())
        return conditions[0] if len(conditions) == 1 else Combination(any, conditions)

    def _parse_conjunction(self) -> Condition:
        """Parse conditions that are joined by `and`."""
        conditions = [self._parse_negation()]
        while self._skip("and"):
            conditions.append(self._parse_negation())
        return conditions[0] if len(conditions) == 1 else Combination(all, conditions)

    def _parse_negation(self) -> Condition:
        """Parse a comparison or a condition in parentheses, after any number of `not`."""
        is_negated = False
        while self._skip("not"):
            is_negated = not is_negated
        condition: Condition
        if self._skip("("):
            if self._depth == MAX_DEPTH:
                self._fail(f"at most {MAX_DEPTH} parentheses inside each other")
            self._depth += 1
            condition = self._parse_combination()
            if not self._skip(")"):
                self._fail("and, or, )")
            self._depth -= 1
        else:
            condition = self._parse_comparison()
        return Negation(condition) if is_negated else condition

    def _parse_comparison(self) -> AxisComparison:
        """Parse a name, an operator and what it is compared with."""
        if self._next.kind != "word" or self._next.text in KEYWORDS:
            self._fail("the name of an axis, workload, seed, not, (")
        name = self._take()
        if self._next.kind == "operator":
            symbol = self._take().text.replace("==", "=")
            return AxisComparison(name.text, name.column, symbol, [self._parse_literal()])
        symbol = "!=" if self._skip("not") else "="
        if not self._skip("in"):
            self._fail(OPERATORS if symbol == "=" else "in")
        if not self._skip("("):
            self._fail("( and values, as in (bf16, fp16)")
        values = [self._parse_literal()]
        while self._skip(","):
            values.append(self._parse_literal())
        if not self._skip(")"):
            self._fail("a comma, )")
        return AxisComparison(name.text, name.column, symbol, values)

    def _parse_literal(self) -> Literal:
        """Parse one value."""
        if self._next.kind not in ("word", "quoted", "list"):
            self._fail("a value; one with blanks or brackets in quotes")
        token = self._take()
        if token.kind == "quoted":
            return Literal(token.text[1:-1], token.text[1:-1], token.column)
        source = f"{ONLY} {self._text!r}: column {token.column}"
        value = hashable(parse_value(token.text, source))
        return Literal(token.text, value, token.column)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which trials are chosen: those of some cells that satisfy a condition."""

    condition: Condition | None = None  # None: any
    cell_ids: Collection[str] | None = None  # None: of all cells

    def has(self, cell: Cell, seed: int) -> bool:
        """Return whether a cell's trials of a seed are chosen."""
        if self.cell_ids is not None and cell.id not in self.cell_ids:
            return False
        return self.condition is None or self.condition.holds(levels(cell, seed))


@dataclass(frozen=True, kw_only=True)
class SelectedSweep(Sweep):
    """A sweep of which `cells`, `seeds_of` and `trials` are those that are selected."""

    all_cells: Sequence[Cell]  # of the sweep
    selection: Selection

    def seeds_of(self, cell: Cell) -> Sequence[int]:
        """Return the seeds that a cell is trained with and that are selected."""
        return self._seeds[cell.id]

    @property
    def all_seeds(self) -> list[int]:
        """Return the seeds of any selected trial, in the order in which the whole sweep runs."""
        selected = set(super().all_seeds)
        return [seed for seed in self.whole().all_seeds if seed in selected]

    @cached_property
    def _seeds(self) -> dict[str, list[int]]:
        """The selected seeds by cell id."""
        seeds: dict[str, list[int]] = {}
        for cell in self.all_cells:
            of_cell = super().seeds_of(cell)
            seeds[cell.id] = [seed for seed in of_cell if self.selection.has(cell, seed)]
        return seeds

    def whole(self) -> Sweep:
        """Return the sweep with all of its cells and seeds."""
        settings = {key.name: getattr(self, key.name) for key in fields(Sweep)}
        return Sweep(**{**settings, "cells": self.all_cells})

    def trials_left_out(self) -> list[Trial]:
        """Return the trials of the sweep that are not selected."""
        trials = self.whole().trials()
        return [trial for trial in trials if not self.selection.has(trial.cell, trial.seed)]


def select(sweep: Sweep, only: str, cells: Sequence[str], recorded: Iterable[Trial] = ()) -> Sweep:
    """Return the part of a sweep that `--only` and `--cell` name; the sweep itself without both.

    `cells` are ids, beginnings of ids, labels or settings. `recorded` are further trials of the sweep's cells
    which may be chosen, as those that earlier commands have left.

    Raises BadInput for a mistake in either, and where no trial is chosen.
    """
    if not only and not cells:
        return sweep
    condition = None
    if only:
        condition = parse_condition(only)
        seeds = {*sweep.all_seeds, *(trial.seed for trial in recorded)}
        values = _values(sweep.cells, seeds, condition)
        check_condition(condition, only, values, _listed_names(sweep.cells))
    cell_ids = {find_cell(sweep, name).id for name in cells} if cells else None
    selection = Selection(condition=condition, cell_ids=cell_ids)
    chosen_ids = set()
    for trial in (*sweep.trials(), *recorded):
        if selection.has(trial.cell, trial.seed):
            chosen_ids.add(trial.cell.id)
    if not chosen_ids:
        raise BadInput(_nothing_selected(sweep, only, cells, condition))
    settings = {key.name: getattr(sweep, key.name) for key in fields(Sweep)}
    settings["cells"] = [cell for cell in sweep.cells if cell.id in chosen_ids]
    return SelectedSweep(**settings, all_cells=sweep.cells, selection=selection)


def levels(cell: Cell, seed: int) -> LevelOf:
    """Return a function that returns the values of a trial by the names that conditions use.

    They are the axes, `workload` (its label in the sweep) and `seed`. A setting that the workload
    does not have is None, as is a variable that is unset.
    """

    def level_of(name: str) -> Hashable:
        if name == "seed":
            return seed
        if name == "workload":
            return cell.workload.label
        return cell.level(name)

    return level_of


def _listed_names(cells: Sequence[Cell]) -> list[str]:
    """Return the names that an error lists: those in which cells differ, and where the others are."""
    differing = []
    for axis in axis_names(cells):
        if len({cell.level(axis) for cell in cells}) > 1:
            differing.append(axis)
    return ["workload", "seed", *differing, "and what harness axes and harness workloads list"]


def _values(
    cells: Sequence[Cell], seeds: Collection[int], condition: Condition
) -> dict[str, Collection[Hashable]]:
    """Return the values that trials have, by name; of names that the condition does not use, none.

    The names are all that a condition may use. Every setting of a workload is among them, those too
    that are no axes of the sweep.
    """
    names = ["workload", "seed", *axis_names(cells)]
    values: dict[str, Collection[Hashable]] = dict.fromkeys(names, ())
    for cell in cells:
        for section in SECTIONS:
            for name in getattr(cell.workload, section):
                values[f"{section}.{name}"] = ()
    used = {comparison.name for comparison in condition.comparisons()}
    for name in used & set(values):
        values[name] = {levels(cell, 0)(name) for cell in cells}
    if "seed" in used:
        values["seed"] = seeds
    return values


def find_cell(sweep: Sweep, name: str, option: str = "--cell") -> Cell:
    """Return the cell with this id or label, or the only one that `is_named` so; raises BadInput.

    `option` is where the name was given, for errors.
    """
    matching = []
    for cell in sweep.cells:
        if name in (cell.id, cell.label):
            return cell
        if is_named(cell, name):
            matching.append(cell)
    if len(matching) == 1:
        return matching[0]
    if matching:
        listed = ", ".join(cell.id for cell in matching[:MOST_CELLS])
        raise BadInput(f"{option} {name}: names {len(matching)} cells; allowed: one, of {listed}")
    ids = [cell.id for cell in sweep.cells]
    hint = did_you_mean(name, ids, ids[:MOST_CELLS])
    more = f" and {len(ids) - MOST_CELLS} more" if len(ids) > MOST_CELLS else ""
    raise BadInput(
        f"{option} {name}: no such cell in {sweep.source}; {hint}{more}; or settings that one cell"
        " has, such as strategy=ddp,workload=mlp"
    )


def _nothing_selected(
    sweep: Sweep, only: str, cells: Sequence[str], condition: Condition | None
) -> str:
    """Return the error for a selection without trials, with the values of the names that it uses."""
    options = [f"{ONLY} {only!r}"] if only else []
    options += [f"--cell {name}" for name in cells]
    problem = f"{' '.join(options)}: found none of the {len(sweep.trials())} trials"
    if condition is None:
        return problem
    described = []
    for name, values in _values(sweep.cells, sweep.all_seeds, condition).items():
        texts = sorted(map(str, values))
        if texts:
            more = ", …" if len(texts) > MOST_VALUES else ""
            described.append(f"{name} {', '.join(texts[:MOST_VALUES])}{more}")
    return f"{problem}; allowed: a condition that some satisfy, of {'; '.join(described)}"
