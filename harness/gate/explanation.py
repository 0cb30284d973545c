"""What `harness explain` has found out: the differences of a step's parts, and their file.

The file of a sweep has the last explanation that was made of two of its cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from harness.core.paths import SweepFolder, write_atomically
from harness.measure.step_parts import Kind
from harness.records.decode import FileFormat, decode_file
from harness.records.seal import sealed_text
from harness.spec.cell import Cell

SCHEMA = "2.0"
EXPLANATION_FORMAT = FileFormat(
    name="explanation",
    schema=SCHEMA,
    remedy="harness explain A B measures it again",
    is_sealed=True,
)
HERE = "."  # in place of a revision the working tree, of a stack the cell's own
SMALL = "parts below 1% of a step each"
SLOW_STEPS = "longer steps"  # mostly the work of other programs
# Of a step; smaller differences are those of windows, as at the end of an epoch.
CALLS_DIFFER = 0.02
SHAPES_DIFFER = 0.5  # calls a step of the same shapes


@dataclass(frozen=True, kw_only=True)
class PartDifference:
    """A part of a step in both arms, in seconds a step."""

    name: str
    kind: Kind
    a: float
    b: float
    low: float  # of the interval of b - a
    high: float
    a_calls: float = 0.0  # a step
    b_calls: float = 0.0
    # Calls a step, by the tensors' shapes.
    a_shapes: Mapping[str, float] = field(default_factory=dict)
    b_shapes: Mapping[str, float] = field(default_factory=dict)
    most_of_it: str = ""  # of longer steps, the part that they differ in most

    @property
    def seconds(self) -> float:
        """How much longer the part takes in B."""
        return self.b - self.a

    @property
    def is_certain(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0

    @property
    def calls_differ(self) -> bool:
        """Whether the arms call it a different number of times."""
        return abs(self.b_calls - self.a_calls) > CALLS_DIFFER * max(self.a_calls, self.b_calls)

    @property
    def does_other_work(self) -> bool:
        """Whether the arms call it differently often, or with tensors of other shapes.

        That is certain however much times vary, and what merely moves may move because of it.
        """
        shapes_differ = more_often(self.a_shapes, self.b_shapes) and more_often(
            self.b_shapes, self.a_shapes
        )
        return self.calls_differ or bool(shapes_differ)

    @property
    def least_difference(self) -> float:
        """The seconds by which it differs at least, 0 where that is not certain."""
        return max(self.low, -self.high, 0.0)


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why B's steps take longer, or shorter, than A's."""

    schema: str = SCHEMA
    a_name: str
    b_name: str
    cell: Cell  # of A
    plain: PartDifference  # whole steps without the profiler
    whole: PartDifference  # whole steps with it, to which the parts and what is left over add up
    parts: Sequence[PartDifference]  # those that are likeliest to be the cause first
    left_over: PartDifference
    ranks: int
    pairs: int
    steps: int  # profiled, of each arm
    seconds: float  # in all
    confidence: float  # of all intervals of the parts together


def more_often(shapes: Mapping[str, float], others: Mapping[str, float]) -> list[str]:
    """Return the shapes that are called more often than in `others`, the most frequent first."""
    more = {}
    for text, calls in shapes.items():
        difference = calls - others.get(text, 0.0)
        if text and difference > SHAPES_DIFFER:
            more[text] = difference
    return sorted(more, key=lambda text: -more[text])


def by_likelihood(part: PartDifference) -> tuple[float, bool, float]:
    """Return what parts are sorted by, the likeliest cause first.

    A part in which the arms do other work counts with its difference, and one that merely moves with
    what of it is certain. Of few pairs, the difference of a part that happened to be disturbed may be
    the largest of all; those that are not certain come last, by size, and what has no single cause after the others.
    """
    counted_seconds = abs(part.seconds) if part.does_other_work else part.least_difference
    return -counted_seconds, part.name in (SMALL, SLOW_STEPS), -abs(part.seconds)


def write_explanation(folder: SweepFolder, explanation: Explanation) -> None:
    """Leave the explanation of two cells in the folder of their sweep, in place of the last one."""
    write_atomically(folder.explanation_path, sealed_text(asdict(explanation)))


def read_explanation(folder: SweepFolder) -> Explanation | None:
    """Return the last explanation of two cells, None if there is none; raises BadFile."""
    if not folder.explanation_path.exists():
        return None
    return decode_file(Explanation, folder.explanation_path, EXPLANATION_FORMAT)
