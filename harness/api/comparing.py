"""Verdicts on results: faster, slower, same or inconclusive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.compare import (
    CellComparison,
    Rules,
    Side,
    compare_by,
)
from harness.analysis.compare import compare as compare_sides
from harness.analysis.questions import ACCURACY_MARGIN, SPEED
from harness.analysis.selection import select
from harness.core.errors import BadInput
from harness.core.paths import Results, results_folder
from harness.core.text import counted
from harness.view.compare import comparison_rows

if TYPE_CHECKING:
    import pandas as pd

    from harness.api.data import SweepData

TABLE_COLUMNS = [
    "cell", "reference", "b_side", "metric", "higher_is_better", "relative", "a", "b", "value", "low",
    "high", "confidence", "count", "paired", "verdict", "outcome", "p_change", "p_same", "min_detectable_effect",
]  # fmt: skip
Names = str | Sequence[str]  # of axes: one, several, or several in a text with commas


@dataclass(frozen=True, kw_only=True)
class Verdicts(CellComparison):
    """A comparison of results, A being the reference and B what is judged.

    Each of its `verdicts` is on one metric of a pair of cells; `matches` has them by pair.
    """

    a: str  # the name of A
    b: Sequence[str]  # the names of what is compared with it

    @cached_property
    def table(self) -> pd.DataFrame:
        """The verdicts, a row each.

        | column | meaning |
        | --- | --- |
        | `cell`, `reference` | the labels of B's cell and of A's |
        | `b_side` | the name of B's side |
        | `metric` | samples/s, the target metric, or the steps to a goal |
        | `a`, `b` | both means, in the metric's unit; geometric for samples/s |
        | `value` | B over A where `relative`, else B - A |
        | `low`, `high`, `confidence` | its interval, as the test behind the verdict has it |
        | `verdict` | faster, slower, `better NAME` or `worse NAME`, converges faster or slower, same, inconclusive |
        | `outcome` | the same in one word for all metrics: better, worse, same, inconclusive |
        | `p_change`, `p_same` | p-values, corrected for all questions together |
        | `min_detectable_effect` | the change that would be detected 80% of the time |
        | `count`, `paired` | pairs of trials, and whether they are pairs |
        """
        import pandas as pd

        return pd.DataFrame(comparison_rows(self), columns=TABLE_COLUMNS)

    def __repr__(self) -> str:
        lines = [f"{', '.join(self.b)} against {self.a}"]
        for match in self.matches:
            for verdict in match.verdicts:
                text = f"{verdict.metric.name} {verdict.label} ({verdict.effect:.3g})"
                lines.append(f"  {match.b.cell.label}: {text}")
        return "\n".join([*lines, *(f"  missing {text}" for text in self.missing)])


def compare(
    *sides: str | Path | SweepData,
    by: Names = (),
    across: Names = (),
    min_effect: float = SPEED.min_effect,
    accuracy_margin: float = ACCURACY_MARGIN,
    to_reach: float | None = None,
    results: str | Path | None = None,
) -> Verdicts:
    """Compare results with the first of them, or the values of an axis within one.

    A side is a name that `harness compare` takes (a sweep, a cell, a trial, a baseline, a path)
    or what `load` returns. `by` are the axes whose values are compared within one side.
    `across` are the differences between sides that are the question, such as `hardware` or an axis.
    `min_effect` is a fraction of throughput, `accuracy_margin` in the metric's unit, and `to_reach` a
    value of the target metric, the steps to which are compared too.

    Raises BadInput for results of other hardware, data or settings, unless that is the question, and
    for a mistake in an argument.

    >>> import harness
    >>> verdicts = harness.compare("demo", by="precision")
    >>> speed = verdicts.verdicts[0]
    >>> speed.label, round(speed.effect, 2), speed.p_change < 0.05
    ('faster', 1.25, True)
    >>> verdicts.table[["metric", "verdict"]].values.tolist()
    [['samples/s', 'faster'], ['accuracy', 'same']]
    >>> harness.compare("demo")
    Traceback (most recent call last):
    ...
    harness.core.errors.BadInput: compare: found 1 side; allowed: several, or one with `by`
    """
    axes = _listed(by)
    if bool(axes) == (len(sides) > 1) or not sides:
        and_by = " with `by`" if axes else ""
        found = f"{counted(len(sides), 'side')}{and_by}"
        raise BadInput(f"compare: found {found}; allowed: several, or one with `by`")
    if not 0 <= min_effect < 1:
        allowed = "a fraction of at least 0 and below 1, such as 0.05"
        raise BadInput(f"compare: min_effect: found {min_effect}; allowed: {allowed}")
    if not accuracy_margin >= 0:  # as NaN is not
        raise BadInput(f"compare: accuracy_margin: found {accuracy_margin}; allowed: at least 0")
    selected = _select(sides, results_folder(results))
    rules = Rules(
        across=_listed(across),
        min_effect=min_effect,
        accuracy_margin=accuracy_margin,
        goal=to_reach,
    )
    first, *others = selected
    if axes:  # both A and B are cells of the one side
        comparison = compare_by(first, axes, rules)
        return Verdicts(**vars(comparison), a=first.name, b=[f"{first.name} by {','.join(axes)}"])
    comparison = compare_sides(first, others, rules)
    return Verdicts(**vars(comparison), a=first.name, b=[side.name for side in others])


def _select(sides: Sequence[str | Path | SweepData], results: Results) -> list[Side]:
    """Return the sides, each of which is a name or a sweep that was loaded.

    All names are looked up together: what `baseline` means depends on the others.
    """
    names = [str(side) for side in sides if isinstance(side, str | Path)]
    loaded = [side.side for side in sides if not isinstance(side, str | Path)]
    named = iter(select(results, names, loaded))
    selected = []
    for side in sides:
        selected.append(next(named) if isinstance(side, str | Path) else side.side)
    return selected


def _listed(names: Names) -> list[str]:
    """Return names as a list, each without blanks."""
    texts = names.split(",") if isinstance(names, str) else names
    return [text.strip() for text in texts if text.strip()]
