"""`harness explain A B`: says what the difference of two arms' steps consists of.

As in a gate, two arms take turns in pairs of fresh processes. Some of their turns are profiled
(`harness.measure.timeline`), and every part of a step is compared as a paired difference. The parts of
a step add up to the step, so the differences add up to the whole difference, which is measured in the
same turns.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import BadInput
from harness.core.scratch import ScratchFolder
from harness.core.text import counted
from harness.core.worktree import Tree, checked_out, find_repository
from harness.gate.against import WORKING_TREE
from harness.gate.arms import ArmTurn, TrainingArm
from harness.gate.explanation import (
    HERE,
    SLOW_STEPS,
    SMALL,
    Explanation,
    PartDifference,
    by_likelihood,
)
from harness.gate.paired import StartPair, uncounted_steps, warm_up
from harness.gate.pairs import PairStarter
from harness.gate.stacks import stack_trees, under_stack
from harness.measure.step_parts import Kind
from harness.measure.timeline import StepPart
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.selected import find_cell
from harness.spec.sweep import Sweep
from harness.statistics.estimate import paired
from harness.statistics.verdict import ALPHA

ArmKind = Literal["cells", "revisions", "stacks"]

FEWEST_PAIRS = 3  # of processes, also where they take longer than the budget
# Of a pair, which is the unit of the intervals: each arm trains a plain and a profiled turn in each.
ROUNDS = 2
TURN_SECONDS = 0.1  # of a plain turn
MOST_STEPS = 20  # of a turn: a step may have thousands of events
FEWEST_STEPS = 2
SMALL_SHARE = 0.01  # of a step: smaller parts are one line together
SLOWEST_RANK = "wait for the slowest rank"
LEFT_OVER = "left over"
# Of an arm's steps in a pair, in order of their duration: other programs delay the longer ones. What those
# take in addition to these is a part of its own, which also has what happens in few steps.
USUAL_SHARE = 0.25
# The axes in which two cells may not differ: their ranks are forked from one process, and rank by rank
# they share their cores.
COMMON_AXES = ("world_size", "num_threads")


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """The options of `harness explain`, with the defaults of the command line."""

    a: str
    b: str
    arms: ArmKind = "cells"  # what A and B name
    budget_seconds: float = 30.0  # of the whole measurement, the start of ranks included
    order_seed: int | None = None  # of the random order of arms, to repeat a run


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a step of one arm spends on a part, in the mean over the steps of a pair."""

    kind: Kind
    seconds: float = 0.0
    calls: float = 0.0
    shapes: Mapping[str, float] = field(default_factory=dict)  # of the tensors -> calls


@dataclass(frozen=True, kw_only=True)
class ArmProfile:
    """One arm in one pair, in means over its steps."""

    plain_seconds: float  # a step without the profiler
    seconds: float  # a step with it
    usages: Mapping[str, Usage]  # of the usual steps with it, by part
    slow_steps: Mapping[str, float]  # by part, what a step of all takes in addition
    left_over: float  # seconds of a usual step that no part has


def check_comparable(a: Cell, b: Cell) -> None:
    """Raise BadInput for cells that can't take turns."""
    for axis in COMMON_AXES:
        value_a, value_b = getattr(a.axes, axis), getattr(b.axes, axis)
        if value_a != value_b:
            raise BadInput(
                f"A and B: found {axis}={value_a} and {axis}={value_b}; allowed: cells of the same"
                f" {', '.join(COMMON_AXES)}"
            )
    if a.environment != b.environment:
        raise BadInput("A and B: found other environment variables; allowed: the same in both")


def explain(
    sweep: Sweep,
    cell: Cell | None,
    profile: Profile,
    options: ExplainOptions,
    inside: Path,
    on_progress: Callable[[str], None],
) -> Explanation:
    """Measure what the difference of the arms that the options name consists of.

    Revisions and stacks train `cell`; revisions are those of the repository that contains the path
    `inside`. Raises BadInput for names that mean nothing here, HarnessError if a rank fails.
    """
    rng = np.random.default_rng(options.order_seed)
    with _trees(sweep, cell, profile, options, inside) as (cells, trees):
        check_comparable(cells["a"], cells["b"])
        starter = PairStarter(
            cells["a"],
            sweep.seeds[0],
            trees,
            sweep.base_folder,
            profile,
            other_cells={"b": cells["b"]},
        )
        with starter:
            return profile_pairs(cells, starter.pair, options.budget_seconds, rng, on_progress)


@contextmanager
def _trees(
    sweep: Sweep, cell: Cell | None, profile: Profile, options: ExplainOptions, inside: Path
) -> Iterator[tuple[dict[str, Cell], dict[str, Tree]]]:
    """Yield the cell and the files of each arm."""
    names = {"a": options.a, "b": options.b}
    cells: dict[str, Cell] = {}
    trees: dict[str, Tree] = {}
    with ExitStack() as stack:
        if options.arms == "cells":
            for key, name in names.items():
                cells[key] = find_cell(sweep, name, key.upper())
                folder = Path.cwd()
                trees[key] = Tree(name=cells[key].label, top=folder, path=folder)
            if any(of_arm.axes.stack is not None for of_arm in cells.values()):
                stacks = stack_trees(sweep, list(cells.values()), profile)
                trees = {key: stacks[of_arm.axes.stack] for key, of_arm in cells.items()}
            yield cells, trees
            return
        assert cell is not None
        if options.arms == "stacks":
            for key, name in names.items():
                cells[key] = cell
                if name != HERE:
                    (cells[key],) = under_stack(sweep, [cell], name, key.upper())
            stacks = stack_trees(sweep, list(cells.values()), profile)
            yield cells, {key: stacks[of_arm.axes.stack] for key, of_arm in cells.items()}
            return
        repository = find_repository(inside)
        scratch = stack.enter_context(ScratchFolder("explain"))
        for key, name in names.items():
            cells[key] = cell
            if name == HERE:
                trees[key] = Tree(name=WORKING_TREE, top=repository, path=repository)
            else:
                checkout = checked_out(repository, name, scratch.path / key, key.upper())
                trees[key] = stack.enter_context(checkout)
        yield cells, trees


def profile_pairs(
    cells: Mapping[str, Cell],
    start_pair: StartPair,
    seconds: float,
    rng: np.random.Generator,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Explanation:
    """Profile fresh pairs of arms for about `seconds`, their start included.

    After `FEWEST_PAIRS`, a pair begins only if it will be done in time.
    `cells` are those of the arms `a` and `b`. As in a gate, the unit is a pair, and the order of its
    arms is drawn. Raises HarnessError if a rank fails.
    """
    began = time.monotonic()
    pair_seconds = 0.0  # of the last one; the first also loads what all share
    uncounted = max(uncounted_steps(cell) for cell in cells.values())
    names: dict[str, str] = {}
    pairs: list[Mapping[str, ArmProfile]] = []
    steps = 0
    while len(pairs) < FEWEST_PAIRS or time.monotonic() + pair_seconds < began + seconds:
        pair_began = time.monotonic()
        order: list[str] = rng.permutation(["a", "b"]).tolist()
        with start_pair(order) as arms:
            names = {key: arm.name for key, arm in arms.items()}
            counted_steps = _turn_steps(arms, uncounted)
            pairs.append(_profile_pair(arms, uncounted, counted_steps))
        steps += ROUNDS * counted_steps
        pair_seconds = time.monotonic() - pair_began
        on_progress(f"{counted(len(pairs), 'pair')}")
    return _summarize(cells, names, pairs, steps, time.monotonic() - began)


def _turn_steps(arms: Mapping[str, TrainingArm], uncounted: int) -> int:
    """Train the arms until they and their profilers are warm; return the steps of a turn."""
    warm_up(arms)
    longest = 0.0
    for arm in arms.values():
        turn = arm.train(uncounted + FEWEST_STEPS)
        longest = max(longest, float(np.median(turn.seconds[uncounted:])))
        arm.profile(uncounted + FEWEST_STEPS, uncounted)  # the first profile is slow
    return min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(TURN_SECONDS / longest)))


def _profile_pair(
    arms: Mapping[str, TrainingArm], uncounted: int, steps: int
) -> dict[str, ArmProfile]:
    """Train plain and profiled turns of both arms in turn."""
    plain: dict[str, list[ArmTurn]] = {key: [] for key in arms}
    profiled: dict[str, list[ArmTurn]] = {key: [] for key in arms}
    for _ in range(ROUNDS):
        for key, arm in arms.items():
            plain[key].append(arm.train(uncounted + steps))
        for key, arm in arms.items():
            profiled[key].append(arm.profile(uncounted + steps, uncounted))
    reference = arms["a"].batch_size
    profiles = {}
    for key, arm in arms.items():
        scale = reference / arm.batch_size  # a step of A's batch, where the arms' batches differ
        profiles[key] = _arm_profile(plain[key], profiled[key], uncounted, scale)
    return profiles


def _arm_profile(
    plain: Sequence[ArmTurn], profiled: Sequence[ArmTurn], uncounted: int, scale: float
) -> ArmProfile:
    """Return the means over an arm's counted steps, times `scale`.

    The parts are those of its usual steps.
    """
    seconds = np.concatenate([turn.seconds[uncounted:] for turn in profiled])
    usual = np.argsort(seconds)[: max(1, round(USUAL_SHARE * len(seconds)))]
    kinds: dict[str, Kind] = {}
    of_parts: dict[str, list[NDArray[np.float64]]] = {}  # seconds of each step, by turn
    shapes: dict[str, Counter[str]] = defaultdict(Counter)
    calls: Counter[str] = Counter()
    for number, turn in enumerate(profiled):
        counted_steps = len(turn.seconds) - uncounted
        for part in (part for of_rank in turn.parts for part in of_rank):
            kinds[part.name] = part.kind
            calls[part.name] += part.calls
            shapes[part.name].update(part.shapes)
        for name, of_turn in _seconds_by_part(turn.parts, counted_steps).items():
            absent = [np.zeros(len(other.seconds) - uncounted) for other in profiled]
            of_parts.setdefault(name, absent)[number] = of_turn
    per_call = scale / (len(seconds) * len(profiled[0].parts))
    usages = {}
    slow_steps = {}
    for name, of_turns in of_parts.items():
        of_steps = scale * np.concatenate(of_turns)
        usages[name] = Usage(
            kind=kinds.get(name, "wait"),
            seconds=float(of_steps[usual].mean()),
            calls=calls[name] * per_call,
            shapes={text: count * per_call for text, count in shapes[name].items()},
        )
        slow_steps[name] = float(of_steps.mean() - of_steps[usual].mean())
    return ArmProfile(
        plain_seconds=scale
        * fmean(second for turn in plain for second in turn.seconds[uncounted:]),
        seconds=scale * float(seconds.mean()),
        usages=usages,
        slow_steps=slow_steps,
        left_over=scale * float(seconds[usual].mean())
        - math.fsum(usage.seconds for usage in usages.values()),
    )


def _seconds_by_part(
    parts: Sequence[Sequence[StepPart]], steps: int
) -> dict[str, NDArray[np.float64]]:
    """Return the seconds of each step of a turn, in the mean over ranks, (steps,), by part.

    In each step, the rank that waits least for a collective is the one that the others waited for,
    and waits for the collective alone. That much is the collective's; the rest is a wait for the
    slowest rank.
    """
    ranks = len(parts)
    seconds: dict[str, NDArray[np.float64]] = {}
    waits: dict[str, NDArray[np.float64]] = {}  # (ranks, steps)
    for rank, of_rank in enumerate(parts):
        for part in of_rank:
            start = part.first_step
            of_steps = seconds.setdefault(part.name, np.zeros(steps))
            of_steps[start : start + len(part.seconds)] += np.asarray(part.seconds) / ranks
            if part.waited:
                waited = waits.setdefault(part.name, np.zeros((ranks, steps)))
                waited[rank, start : start + len(part.waited)] += part.waited
    for name, waited in waits.items():
        least = waited.min(axis=0)
        seconds[name] += least
        if ranks > 1:
            slowest = seconds.setdefault(SLOWEST_RANK, np.zeros(steps))
            slowest += (waited - least).mean(axis=0)
    return seconds


def _summarize(
    cells: Mapping[str, Cell],
    names: Mapping[str, str],
    pairs: Sequence[Mapping[str, ArmProfile]],
    steps: int,
    seconds: float,
) -> Explanation:
    """Return what all pairs together say."""
    shown = _shown_parts(pairs)
    rows: dict[str, list[tuple[Usage, Usage]]] = defaultdict(list)
    for pair in pairs:
        usages_a, usages_b = (_usages_of_rows(pair[key], shown) for key in ("a", "b"))
        for name in (*shown, SMALL, SLOW_STEPS, LEFT_OVER):
            rows[name].append((usages_a[name], usages_b[name]))
    # Together: each at the level at which no interval of all is wrong more often than ALPHA.
    confidence = 1 - ALPHA / len(rows)
    parts = [_difference(name, usages, confidence) for name, usages in rows.items()]
    left_over = parts.pop()
    parts[-1] = replace(parts[-1], most_of_it=_most_of_slow_steps(pairs))
    plain, whole = [], []
    for pair in pairs:
        plain.append(_whole_usages(pair["a"].plain_seconds, pair["b"].plain_seconds))
        whole.append(_whole_usages(pair["a"].seconds, pair["b"].seconds))
    return Explanation(
        a_name=names["a"],
        b_name=names["b"],
        cell=cells["a"],
        plain=_difference("a step without the profiler", plain, 1 - ALPHA),
        whole=_difference("the whole difference", whole, 1 - ALPHA),
        parts=sorted(parts, key=by_likelihood),
        left_over=left_over,
        ranks=cells["a"].axes.world_size,
        pairs=len(pairs),
        steps=steps,
        seconds=seconds,
        confidence=1 - ALPHA,
    )


def _usages_of_rows(profile: ArmProfile, shown: Mapping[str, Kind]) -> dict[str, Usage]:
    """Return the usage of each row: of shown parts, of all others, and of what is in addition."""
    rows = {}
    for name, kind in shown.items():
        rows[name] = profile.usages.get(name, Usage(kind=kind))
    small = [usage.seconds for name, usage in profile.usages.items() if name not in shown]
    rows[SMALL] = Usage(kind="operator", seconds=math.fsum(small))
    usual = profile.left_over + math.fsum(usage.seconds for usage in profile.usages.values())
    rows[SLOW_STEPS] = Usage(kind="host", seconds=profile.seconds - usual)
    rows[LEFT_OVER] = Usage(kind="host", seconds=profile.left_over)
    return rows


def _most_of_slow_steps(pairs: Sequence[Mapping[str, ArmProfile]]) -> str:
    """Return the part in which the longer steps of both arms differ most."""
    differences: dict[str, float] = defaultdict(float)
    for pair in pairs:
        for name, seconds in pair["b"].slow_steps.items():
            differences[name] += seconds
        for name, seconds in pair["a"].slow_steps.items():
            differences[name] -= seconds
    return max(differences, key=lambda name: abs(differences[name]))


def _whole_usages(a_seconds: float, b_seconds: float) -> tuple[Usage, Usage]:
    """Return whole steps of both arms as if they were a part."""
    return Usage(kind="host", seconds=a_seconds), Usage(kind="host", seconds=b_seconds)


def _shown_parts(pairs: Sequence[Mapping[str, ArmProfile]]) -> dict[str, Kind]:
    """Return the parts that have a line: those of a share that matters of both arms' steps together.

    That both count alike keeps the choice from favoring a direction.
    """
    seconds: dict[str, float] = defaultdict(float)
    kinds: dict[str, Kind] = {}
    total = 0.0
    for pair in pairs:
        for profile in pair.values():
            total += profile.seconds
            for name, usage in profile.usages.items():
                seconds[name] += usage.seconds
                kinds[name] = usage.kind
    return {name: kind for name, kind in kinds.items() if seconds[name] >= SMALL_SHARE * total}


def _difference(
    name: str, usages: Sequence[tuple[Usage, Usage]], confidence: float
) -> PartDifference:
    """Return the difference of a part, with Student's interval over pairs."""
    estimate = paired([b.seconds - a.seconds for a, b in usages])
    low, high = estimate.interval(confidence)
    a_usages = [a for a, _ in usages]
    b_usages = [b for _, b in usages]
    a_seconds = fmean(usage.seconds for usage in a_usages)
    b_seconds = fmean(usage.seconds for usage in b_usages)
    a_calls = fmean(usage.calls for usage in a_usages)
    b_calls = fmean(usage.calls for usage in b_usages)
    return PartDifference(
        name=name,
        kind=a_usages[0].kind,
        a=a_seconds,
        b=b_seconds,
        low=low,
        high=high,
        a_calls=a_calls,
        b_calls=b_calls,
        a_shapes=_mean_shapes(a_usages),
        b_shapes=_mean_shapes(b_usages),
    )


def _mean_shapes(usages: Sequence[Usage]) -> dict[str, float]:
    """Return the calls a step by shapes, in the mean over pairs."""
    total: dict[str, float] = defaultdict(float)
    for usage in usages:
        for shapes, calls in usage.shapes.items():
            total[shapes] += calls / len(usages)
    return dict(total)
