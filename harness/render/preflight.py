"""Shows `harness check` and `harness find-lr`: mistakes in workloads, and learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.markup import escape

from harness.core.text import counted
from harness.preflight.rates import (
    HIGHEST,
    LOWEST,
    CellRates,
    RateCurve,
    RateSearch,
)
from harness.preflight.report import ParameterNorms, Preflight
from harness.render import chart
from harness.render.console import TerminalConsole, print_json, show_table, styled
from harness.render.format import MISSING, rate_spread
from harness.render.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NAME_WIDTH = 16  # columns, more than any name of a check
MARKS = {
    "passed": styled("✓", "better"),
    "problem": styled("✗", "failed"),
    "noted": styled("!", "open"),
    "skipped": styled("–", "quiet"),
}


def show_preflight(preflight: Preflight, *, verbose: bool, as_json: bool) -> None:
    """Print the problems and notes of each workload with their advice, and how many mistakes there are.

    With `verbose`, all checks are printed.
    """
    if as_json:
        print_json(asdict(preflight))
        return
    console = TerminalConsole()
    for workload in preflight.workloads:
        passed_count = sum(finding.status == "passed" for finding in workload.findings)
        console.print_markup(
            f"[bold]{escape(workload.label)}[/]: {passed_count} of {len(workload.findings)} checks"
            f" passed, seed {workload.seed}, {workload.device}, {workload.seconds:.1f} s"
        )
        for finding in workload.findings:
            if not verbose and finding.status not in ("problem", "noted"):
                continue
            text = escape(f"{finding.check:{NAME_WIDTH}}{finding.measured}")
            console.print_markup(f"  {MARKS[finding.status]} {text}")
            if finding.advice:
                console.print_text(f"{'':{NAME_WIDTH + 4}}→ {finding.advice}")
        if verbose and workload.norms:
            show_table(console, norm_table(workload.norms))
    problems = preflight.problem_count
    if problems:
        console.print(f"[red]{counted(problems, 'mistake')} found.[/]")
    else:
        console.print("[green]No mistake found.[/]")


def norm_table(norms: Sequence[ParameterNorms]) -> Table:
    """Return a table with the norms of parameters and gradients of a new model."""
    table = Table(["parameter", "norm", "norm of gradient"], ["norm", "norm of gradient"])
    for parameter in norms:
        gradient = MISSING if parameter.gradient is None else f"{parameter.gradient:.3g}"
        table.add_row(parameter.name, f"{parameter.parameter:.3g}", gradient)
    return table


WIDTH, HEIGHT = 71, 10  # of the plot, in characters; ten columns for each power of ten
PEAK, STEEPEST, TENTH = "◆", "▲", "△"
COLUMNS = (
    "cell", "now", f"{PEAK} suggested", f"{STEEPEST} steepest", f"{TENTH} tenth of the lowest",
)  # fmt: skip


def draw_rates(rates: CellRates, width: float, height: float) -> Figure:
    """Return a figure with the smoothed losses of all seeds; width and height are in inches.

    Vertical lines mark the suggestions.
    """
    figure = chart.new_figure(width, height)
    axes = figure.subplots()
    for curve in rates.curves:
        axes.plot(curve.rates, curve.smoothed, color=chart.COLORS[0], linewidth=1.1)
    for number, spread in enumerate((rates.peak, rates.steepest, rates.tenth)):
        if spread is not None:
            color = chart.COLORS[number + 1]
            # The first is wider, so that it is visible below an equal second one.
            axes.axvline(spread.mean, color=color, linewidth=1.1 if number else 3.0)
            axes.axvspan(spread.low, spread.high, color=color, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(chart.power_tick)
    chart.style_axes(axes, "", "learning rate", "training loss")
    return figure


def show_rates(search: RateSearch, *, as_json: bool) -> None:
    """Print a plot for each cell, and the suggestions for all of them."""
    if as_json:
        print_json(asdict(search))
        return
    console = TerminalConsole()
    table = Table(COLUMNS, ["now"])
    for rates in search.cells:
        console.print(f"[bold]{escape(rates.cell.label)}[/]")
        for line in plot_lines(rates):
            console.print_text(line)
        console.print()
        table.add_row(
            rates.cell.label,
            f"{rates.curves[0].current:.2g}",
            rate_spread(rates.peak),
            rate_spread(rates.steepest),
            rate_spread(rates.tenth),
        )
    show_table(console, table)


def plot_lines(rates: CellRates) -> list[str]:
    """Return the smoothed losses of all seeds over the rate, as lines of text.

    The height is from the lowest loss to that of the start; what is above is left out. The line
    below has marks at what is suggested.
    """
    curves = [curve for curve in rates.curves if len(curve.losses)]
    if not curves:
        return ["no loss was finite"]
    lowest = min(float(curve.smoothed.min()) for curve in curves)
    top = max(float(curve.smoothed[0]) for curve in curves)
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for curve in curves:
        _draw(grid, curve, lowest, max(top - lowest, 1e-12))
    lines = []
    for number, row in enumerate(grid):
        label = {0: f"{top:.3g}", HEIGHT - 1: f"{lowest:.3g}"}.get(number, "")
        lines.append(f"{label:>8} │{''.join(row)}".rstrip())
    axis = ["─"] * WIDTH
    # The peak is last, so that it covers others.
    for spread, mark in ((rates.tenth, TENTH), (rates.steepest, STEEPEST), (rates.peak, PEAK)):
        if spread is not None:
            axis[_column(spread.mean)] = mark
    lines.append(f"{'':8} └{''.join(axis)}")
    powers = range(round(math.log10(LOWEST)), round(math.log10(HIGHEST)) + 1)
    ticks = "".join(f"{f'1e{power}':<10}" for power in powers)
    lines.append(f"{'':9} {ticks}".rstrip())
    return lines


def _draw(grid: list[list[str]], curve: RateCurve, lowest: float, height: float) -> None:
    """Draw a curve into a grid whose last row is the lowest loss."""
    for rate, loss in zip(curve.rates, curve.smoothed, strict=True):
        share = (float(loss) - lowest) / height
        row = HEIGHT - 1 - round(share * (HEIGHT - 1))
        if 0 <= row < HEIGHT:
            grid[row][_column(rate)] = "•"


def _column(rate: float) -> int:
    """Return the column of a rate."""
    share = math.log(rate / LOWEST) / math.log(HIGHEST / LOWEST)
    return min(WIDTH - 1, max(0, round(share * (WIDTH - 1))))
