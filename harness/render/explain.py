"""Shows `harness explain`: what the difference of two arms' steps consists of, as bars and as JSON."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.core.errors import one_line
from harness.core.text import counted
from harness.gate.explanation import HERE, SMALL, Explanation, PartDifference, more_often
from harness.measure.step_parts import COMPILED
from harness.render.console import TerminalConsole, next_lines, show_table
from harness.render.table import Look, Styled, Table

if TYPE_CHECKING:  # it loads torch, which the report and MLflow do without
    from harness.gate.against import CellOutcome, GateOutcome

BAR_WIDTH = 16  # characters of the largest difference
MOST_ROWS = 20  # of parts; JSON has all
MOST_SHAPES = 2  # of the calls that only one arm has
MOST_TENSORS = 4  # of a call; an optimizer's may take all parameters
MAX_NAME = 70  # characters of a part's name; those of CUDA's templates have thousands
SAME_SIZE = 0.01  # of what collectives send: a smaller difference is none
CAUSE = "what differs"
COLUMNS = ["ms a step", "A", "B", "B - A", "interval", "", CAUSE]
NUMBERS = ["A", "B", "B - A", "interval"]


def show(explanation: Explanation) -> None:
    """Print the parts of a step with their differences, the likeliest cause first.

    Causes are sentences, for which a table has no room in a terminal.
    """
    console = TerminalConsole()
    console.print_text(f"A  {one_line(explanation.a_name)}")
    console.print_text(f"B  {one_line(explanation.b_name)}\n")
    show_table(console, difference_table(explanation).without(CAUSE))
    console.print_text("")
    for part in explanation.parts[:MOST_ROWS]:
        cause = describe_cause(part)
        if cause:
            console.print_text(f"{label_of(part)}: {cause}")
    for line in lines(explanation):
        console.print_text(line)


def arms_line(explanation: Explanation) -> str:
    """Return the names of both arms in a line."""
    return f"A: {one_line(explanation.a_name)}; B: {one_line(explanation.b_name)}"


def difference_table(explanation: Explanation) -> Table:
    """Return a row for each part, for what is left over and for the whole difference."""
    table = Table(COLUMNS, NUMBERS, wrapped=[CAUSE])
    largest = max(abs(part.seconds) for part in [*explanation.parts, explanation.whole])
    for part in explanation.parts[:MOST_ROWS]:
        table.add_row(*_row(part, largest))
    rest = explanation.parts[MOST_ROWS:]
    if rest:
        a, b = math.fsum(part.a for part in rest), math.fsum(part.b for part in rest)
        name = counted(len(rest), "smaller difference")
        table.add_row(name, _ms(a), _ms(b), f"{1000 * (b - a):+.3f}", "", "", "")
    table.add_row(*_row(explanation.left_over, largest))
    table.add_row(*_row(explanation.whole, largest))
    return table


def _row(part: PartDifference, largest: float) -> list[str | Styled]:
    """Return the fields of a part, in milliseconds a step."""
    look: Look = "quiet"
    if part.is_certain:  # only such a difference is better or worse
        look = "worse" if part.seconds > 0 else "better"
    bar = "█" * round(BAR_WIDTH * abs(part.seconds) / largest) if largest else ""
    return [
        label_of(part),
        _ms(part.a),
        _ms(part.b),
        Styled(f"{1000 * part.seconds:+.3f}", look),
        _interval(part),
        bar,
        describe_cause(part),
    ]


def label_of(part: PartDifference) -> str:
    """Return the name of a part, without its middle where it is long; JSON has it whole.

    Names of CUDA's kernels often differ at the end alone: in the types that a template is made for.
    """
    name = one_line(part.name.removeprefix("void ").replace("at::native::", ""), len(part.name))
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME // 2]}…{name[-MAX_NAME // 2 + 1 :]}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f}"


def _interval(part: PartDifference) -> str:
    """Return the interval of a difference in milliseconds."""
    return f"{1000 * part.low:+.3f} to {1000 * part.high:+.3f}"


def describe_cause(part: PartDifference) -> str:
    """Return in what the calls of a part differ: in number, in the shapes of their tensors."""
    if part.most_of_it:
        return f"mostly {part.most_of_it}" if part.is_certain else ""
    if part.calls_differ:
        change = f"{_count(part.a_calls)} → {_count(part.b_calls)} calls a step"
        if part.name == COMPILED:
            more = "more" if part.b_calls > part.a_calls else "fewer"
            return f"graph breaks: {change}, {more} compiled regions"
        if part.kind == "collective":
            return f"{change}{_describe_sent(part)}"
        # The shapes of the calls that one arm has more of.
        if part.b_calls < part.a_calls:
            shapes = _only(part.a_shapes, part.b_shapes)
        else:
            shapes = _only(part.b_shapes, part.a_shapes)
        return f"{change}, of {shapes}" if shapes else change
    if part.does_other_work:
        a_only = _only(part.a_shapes, part.b_shapes)
        return f"shapes {a_only} → {_only(part.b_shapes, part.a_shapes)}"
    return ""


def _describe_sent(part: PartDifference) -> str:
    """Return whether collectives together send more, where their shapes are known."""
    if part.a_shapes.get("") or part.b_shapes.get(""):  # NCCL's kernels have none
        return ""
    sent_a, sent_b = _elements(part.a_shapes), _elements(part.b_shapes)
    if not sent_a or not sent_b:
        return ""
    if abs(sent_b / sent_a - 1) < SAME_SIZE:
        return f", of the same {sent_a:,.0f} numbers in other pieces"
    return f", of {sent_a:,.0f} → {sent_b:,.0f} numbers"


def _elements(shapes: Mapping[str, float]) -> float:
    """Return how many numbers the tensors of all calls of a step have."""
    total = 0.0
    for text, calls in shapes.items():
        for shape in filter(None, text.split(", ")):
            total += calls * math.prod(map(int, shape.split("×")))
    return total


def _only(shapes: Mapping[str, float], others: Mapping[str, float]) -> str:
    """Return the most frequent shapes that are called more often than in `others`."""
    return "; ".join(map(_shortened, more_often(shapes, others)[:MOST_SHAPES]))


def _shortened(shapes: str) -> str:
    """Return the shapes of a call's first tensors, and how many more it takes."""
    tensors = shapes.split(", ")
    if len(tensors) <= MOST_TENSORS:
        return shapes
    return f"{', '.join(tensors[:MOST_TENSORS])} and {len(tensors) - MOST_TENSORS:,} more"


def _count(calls: float) -> str:
    """Return calls a step: a whole number unless they are not in every step."""
    return f"{calls:.0f}" if abs(calls - round(calls)) < 0.05 else f"{calls:.1f}"


def headline(explanation: Explanation) -> str:
    """Return how much longer B's steps take, and the part that differs most."""
    whole = explanation.whole
    change = whole.seconds / whole.a
    direction = "longer" if whole.seconds > 0 else "shorter"
    text = f"B's steps take {abs(change):.1%} {direction} than A's with the profiler"
    causes = []
    for part in explanation.parts:
        if part.name != SMALL and (part.is_certain or part.does_other_work):
            causes.append(part)
    if not causes:
        return f"{text}; no part differs with certainty"
    first = causes[0]
    cause = describe_cause(first)
    is_same_direction = (first.seconds > 0) == (whole.seconds > 0)
    share = "no time differs with certainty, but the work does"
    if first.is_certain:
        is_most = is_same_direction and abs(first.seconds) > abs(whole.seconds) / 2
        share = "most of it" if is_most else "the largest part"
    text += f"; {share}: {label_of(first)}, {1000 * first.seconds:+.3f} ms a step"
    return f"{text} ({cause})" if cause else text


def lines(explanation: Explanation) -> list[str]:
    """Return the finding, what the profiler costs, and what the intervals mean."""
    plain, whole = explanation.plain, explanation.whole
    return [
        one_line(headline(explanation)),
        f"without the profiler a step takes {_ms(plain.a)} and {_ms(plain.b)} ms,"
        f" {1000 * plain.seconds:+.3f} ({_interval(plain)}); with it"
        f" {whole.a / plain.a - 1:+.0%} and {whole.b / plain.b - 1:+.0%}",
        f"{counted(explanation.pairs, 'pair')} of processes, {explanation.steps} profiled steps of"
        f" each arm, in {explanation.seconds:.0f} s; the intervals of all parts hold together with"
        f" {explanation.confidence:.0%} confidence; times are means over"
        f" {counted(explanation.ranks, 'rank')}",
    ]


def as_json(explanation: Explanation) -> str:
    """Return all of the explanation as JSON, in seconds a step."""
    return json.dumps(json_content(explanation), indent=1)


def json_content(explanation: Explanation) -> dict[str, Any]:
    """Return all of the explanation as JSON has it, in seconds a step."""
    content = asdict(explanation)
    content["cell"] = {"id": explanation.cell.id, "label": explanation.cell.label}
    rows = [content["plain"], content["whole"], content["left_over"], *content["parts"]]
    differences = [
        explanation.plain,
        explanation.whole,
        explanation.left_over,
        *explanation.parts,
    ]
    for row, difference in zip(rows, differences, strict=True):
        row["difference"] = difference.seconds
        row["cause"] = describe_cause(difference)
    content["summary"] = headline(explanation)
    return content


def show_reasons(
    outcome: GateOutcome, explanations: Mapping[str, Explanation], sweep: str, cluster: str
) -> None:
    """Print why the cells of a gate are slower, or the commands that find out."""
    console = TerminalConsole()
    commands = {}
    for slower in outcome.slower_cells:
        explanation = explanations.get(slower.cell.id)
        if explanation is None:
            command = explain_command(outcome, slower, sweep, cluster)
            commands[command] = "what makes it slower"
        else:
            console.print_text("")
            show(explanation)
    for line in next_lines(commands):
        console.print_markup(line)


def reasons(
    outcome: GateOutcome, explanations: Mapping[str, Explanation], sweep: str, cluster: str
) -> dict[str, str]:
    """Return why each slower cell of a gate is slower, or the command that finds out, by id."""
    texts = {}
    for slower in outcome.slower_cells:
        explanation = explanations.get(slower.cell.id)
        if explanation is None:
            texts[slower.cell.id] = explain_command(outcome, slower, sweep, cluster)
        else:
            texts[slower.cell.id] = headline(explanation)
    return texts


def explain_command(
    outcome: GateOutcome, cell_outcome: CellOutcome, sweep: str, cluster: str
) -> str:
    """Return the command that explains a cell of a gate; `sweep` and `cluster` are as the user named them."""
    options = outcome.options
    command = ["harness", "explain", options.stack or options.revision, HERE, sweep]
    command += ["--stacks" if options.stack else "--revisions", "--cell", cell_outcome.cell.id]
    for setting in options.settings:
        command += ["--set", setting]
    for path in options.data:
        command += ["--data", path]
    if cluster != "local":
        command += ["--cluster", cluster]
    return shlex.join(command)
