"""Descriptions of runs in Markdown: the leader board, what each axis contributes, a comparison.

MLflow shows a run's description at the top of its page, with Markdown and a little HTML. All
numbers and verdicts come from the model of results, all texts for them from `harness.render`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from harness.analysis.compare import MetricRow
from harness.analysis.sweep_result import SweepResult
from harness.render import format as fmt
from harness.render.findings import findings
from harness.render.table import Table, markdown_lines
from harness.statistics.attribution import Attribution
from harness.statistics.verdict import ALPHA
from harness.tracking.figures import board_path

DESCRIPTION_TAG = "mlflow.note.content"  # of a run or an experiment: what MLflow shows above all
GAP = "&emsp;"  # MLflow's pages leave no room between the columns of a table
NO_BREAK = "&nbsp;"
PARAGRAPH = "\n\n"  # between two of them
MAX_ROWS = (100, 30, 16, 8, 4, 2, 1, 0)  # of each table, tried until a description fits
WINNER_SENTENCES = 2  # of a finding: which cell is fastest, and whether that is certain
EFFECT_COLUMNS = ("levels", "reference", "throughput", "interval", "certain")
NOTE_COLUMNS = ("metric", "this cell", "reference", "difference", "interval", "verdict")


def describe(
    description: str,
    result: SweepResult,
    max_length: int,
) -> str:
    """Return the sweep's description with its winners, leader boards and attributions.

    The tables are as long as `max_length` characters of Markdown allow: MLflow's servers refuse a
    longer tag. Labels of cells vary too much in length to compute that, so lengths are tried.
    """
    text = description
    for max_rows in MAX_ROWS:
        text = _describe(description, result, max_rows)
        if len(text) <= max_length:
            break
    return text


def headline(result: SweepResult, run_id: str, max_length: int) -> str:
    """Return the description of a sweep's experiment: which cells are fastest, and how certainly.

    MLflow shows little more than its first line, above the table of runs. Unfolded, it goes on with
    the winners in detail and with the pictures of the leader boards, which the sweep's run `run_id`
    has. It has at most `max_length` characters.
    """
    answers, paragraphs = [], []
    names = fmt.cell_names(result.all_cells)
    for finding in findings(result, lambda cell: names[cell.id]):
        workload = f"**{escape_markdown(finding.workload)}**"
        answer = f"only {finding.winner} was measured"
        if finding.is_certain is not None:
            certainty = f"certain at {1 - ALPHA:.0%}" if finding.is_certain else "not certain"
            answer = f"fastest is {finding.winner}, {certainty}"
        answers.append(f"{workload}: {escape_markdown(answer)}.")
        winner = escape_markdown(" ".join(finding.sentences[:WINNER_SENTENCES]))
        paragraphs += [f"{workload}: {winner}", picture(finding.workload, run_id)]
    text = " ".join(answers)[:max_length]
    for paragraph in paragraphs:
        if len(text) + len(PARAGRAPH) + len(paragraph) <= max_length:
            text += PARAGRAPH + paragraph
    return text


def picture(workload: str, run_id: str) -> str:
    """Return the picture of a workload's leader board, which is stored with the sweep's run.

    The address is relative, so that it holds wherever MLflow's server is.
    """
    address = f"get-artifact?path={quote(board_path(workload), safe='')}&run_uuid={run_id}"
    return f"![leader board of {escape_markdown(workload)}]({address})"


def _describe(description: str, result: SweepResult, max_rows: int) -> str:
    """Return the description with tables of at most `max_rows` rows each."""
    paragraphs = [description]
    names = fmt.cell_names(result.all_cells)
    for finding in findings(result, lambda cell: names[cell.id]):
        winner = escape_markdown(" ".join(finding.sentences[:WINNER_SENTENCES]))
        board = leader_board(result, finding.workload, max_rows)
        paragraphs += [f"**{escape_markdown(finding.workload)}**", winner, board]
    for workload, attribution in result.attributions.items():
        paragraphs.append(f"**Contribution of each axis: {escape_markdown(workload)}**")
        paragraphs.append(_effects(attribution, max_rows))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def leader_board(result: SweepResult, workload: str, max_rows: int) -> str:
    """Return a table of the measured cells of a workload, from the fastest to the slowest.

    Only the first `max_rows` cells are listed. Without a measured cell the text is empty.
    """
    rows = []
    names = fmt.cell_names(result.all_cells)
    ranking = result.ranking(workload)
    unit = fmt.common_unit(ranking)
    for cell_result in ranking:
        cell = cell_result.cell
        row = result.throughput_row(cell)
        effect, interval = "1×", ""
        verdict = fmt.verdict_label(row)
        if row is not None:
            effect, interval = fmt.effect(row.verdict), fmt.effect_interval(row.verdict)
        rows.append(
            [
                escape_markdown(names[cell.id]),
                fmt.in_column(fmt.throughput(cell_result.throughput), cell_result, unit),
                str(len(cell_result.measured_trials)),
                effect,
                interval,
                verdict,
            ]
        )
    if not rows:
        return ""
    columns = ("cell", unit, "trials", "against reference", "interval", "verdict")
    return _shortened_table(columns, rows, max_rows)


def _effects(attribution: Attribution, max_rows: int) -> str:
    """Return a table of main effects, then of interactions, each the largest first."""
    rows = []
    for effect in [*attribution.main_effects, *attribution.interactions]:
        rows.append(
            [
                _levels(effect.levels),
                _levels(effect.reference),
                fmt.ratio(effect.ratio),
                fmt.effect_bounds(effect).replace(" ", NO_BREAK),
                fmt.certainty(effect),
            ]
        )
    return _shortened_table(EFFECT_COLUMNS, rows, max_rows)


def _levels(levels: Mapping[str, Any]) -> str:
    """Return levels of axes as text: `precision=bf16 with strategy=ddp`."""
    return escape_markdown(fmt.axis_levels(levels))


def comparison_note(rows: Sequence[MetricRow]) -> str:
    """Return the verdicts on a cell against the reference, for the description of the cell's run.

    A row of `rows` is a metric: throughput, and the target metric if there is one.
    """
    lines = []
    for row in rows:
        reference_mean, mean = fmt.mean_values(row)
        lines.append(
            [
                row.metric.name,
                mean,
                reference_mean,
                fmt.effect(row.verdict),
                fmt.effect_interval(row.verdict),
                f"**{row.verdict.label}**",
            ]
        )
    reference = escape_markdown(rows[0].a.cell.label)
    return f"Against `{reference}`:\n\n{_table(NOTE_COLUMNS, lines)}"


def _shortened_table(columns: Sequence[str], rows: Sequence[Sequence[str]], max_rows: int) -> str:
    """Return a table of the first rows, and a line that says how many more there are."""
    text = _table(columns, rows[:max_rows])
    hidden = len(rows) - max_rows
    if hidden > 0:
        text += f"\n\n… and {hidden} more"
    return text


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in the Markdown of GitHub, which MLflow renders."""
    table = Table(columns)
    for row in rows:
        table.add_row(*row)
    return "\n".join(markdown_lines(table, is_markup=True, gap=GAP))


def escape_markdown(text: str) -> str:
    """Return a user's text on one line, without meaning to Markdown or HTML.

    Labels of workloads and names of options are chosen by users: a bar would split a table's cell,
    a tag would be rendered.
    """
    for letter in "\\|`*_[]":
        text = text.replace(letter, f"\\{letter}")
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return " ".join(text.split())
