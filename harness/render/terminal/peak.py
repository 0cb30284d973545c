"""`harness peak` as its user sees it: what is being measured, tables, a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.core.paths import Results
from harness.hardware.machine import AllReduce, Copy, Machine, Matmul, Timing
from harness.launch import probe
from harness.render import chart
from harness.render.format import byte_size, counted
from harness.render.terminal.table import show as show_table
from harness.spec.cluster import Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECTIONS = {"memory": "memory copy", "to-device": "host to GPU", "from-device": "GPU to host"}


def run(results: Results, profile: Profile, *, ranks: int | None, quick: bool) -> None:
    """Measure, then show; raises what `probe` raises."""
    console = Console(highlight=False)
    count = probe.choose_rank_count(profile, ranks)
    with console.status("starting") as status:
        path, machine = probe.measure(
            results,
            profile,
            ranks=count,
            quick=quick,
            on_progress=lambda now: status.update(escape(now)),
        )
    plot = path.with_suffix(".png")
    chart.save_png(draw(machine), plot)
    console.print(f"[bold]{escape(title(machine))}[/]", soft_wrap=True)
    for table in tables(machine):
        console.print()
        show_table(console, table)
    console.print(f"\nthe best of {_repeats(machine)} repeats (the median, the worst)", style="dim")
    console.print(f"record: {escape(str(path))}\nplot:   {escape(str(plot))}", soft_wrap=True)
    console.print(
        "next  harness show SWEEP  [dim]where the cells of a sweep stand under these roofs[/]"
    )


def _repeats(machine: Machine) -> str:
    """As in `3–6`: what took long was repeated less often."""
    timings = [one.timing for one in machine.matmuls] + [one.timing for one in machine.copies]
    counts = {len(timing.seconds) for timing in timings}
    return "–".join(str(count) for count in sorted({min(counts), max(counts)}))


def title(machine: Machine) -> str:
    if machine.device == "cuda":
        names = [gpu.name for gpu in machine.hardware.gpus]
        what = ", ".join(f"{names.count(name)} × {name}" for name in sorted(set(names)))
    else:
        what = f"{machine.hardware.cpu}, {machine.hardware.usable_cores} cores"
    return f"{what} · torch {machine.software.torch}" + (" · quick" if machine.quick else "")


def tables(machine: Machine) -> list[Table]:
    """Products, copies, all-reduces."""
    found = [_matmul_table(machine.matmuls), _copy_table(machine.copies)]
    return found + ([_reduce_table(machine.all_reduces)] if machine.all_reduces else [])


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _rates(work: float, timing: Timing) -> str:
    """The best repeat's, the median and the worst."""
    best, middle, worst = (
        work / seconds / 1e9 for seconds in (timing.best, timing.median, timing.worst)
    )
    return f"{best:.3g} [dim]({middle:.3g}, {worst:.3g})[/]"


def _matmul_table(matmuls: Sequence[Matmul]) -> Table:
    found = {(name, one.size): one for name, group in _grouped(matmuls).items() for one in group}
    return _crossed("product, GFLOP/s", found, lambda size: f"{size} × {size}")


def _copy_table(copies: Sequence[Copy]) -> Table:
    found = {(name, one.bytes): one for name, group in _grouped(copies).items() for one in group}
    return _crossed("copy, GB/s", found, byte_size)


def _crossed(what: str, found: Mapping[tuple[str, int], Any], label: Callable[[int], str]) -> Table:
    """A column for each series, a row for each size."""
    names = list(dict.fromkeys(name for name, _ in found))
    table = _table(what, *names)
    for size in sorted({size for _, size in found}):
        cells = (found.get((name, size)) for name in names)
        table.add_row(
            label(size), *("–" if one is None else _rates(one.work, one.timing) for one in cells)
        )
    return table


def _reduce_table(reduces: Sequence[AllReduce]) -> Table:
    table = _table(
        f"all-reduce, {reduces[0].ranks} ranks",
        "median µs",
        "range µs",
        "algorithm GB/s",
        "bus GB/s",
    )
    for one in reduces:
        timing = one.timing
        table.add_row(
            byte_size(one.bytes),
            f"{timing.median * 1e6:,.1f}",
            f"{timing.best * 1e6:,.1f}–{timing.worst * 1e6:,.1f}",
            f"{one.work / timing.median / 1e9:.3g}",
            f"{one.bus_work / timing.median / 1e9:.3g}",
        )
    return table


def _grouped(found: Sequence[Any]) -> dict[str, list[Any]]:
    """Series by their name: dtype or path, and threads."""
    groups: dict[str, list[Any]] = {}
    for one in found:
        what = one.dtype if isinstance(one, Matmul) else DIRECTIONS[one.direction]
        threads = "" if one.threads is None else f", {counted(one.threads, 'thread')}"
        groups.setdefault(what + threads, []).append(one)
    return groups


def draw(machine: Machine) -> Any:
    """Three panels: products by size, copies by size, all-reduces by size; bars reach down to the worst repeat."""
    panels = 3 if machine.all_reduces else 2
    drawn = chart.new_figure(4.9 * panels, 4.6)
    drawn.suptitle(title(machine), x=0.01, ha="left", fontsize=12, color=chart.INK)
    axes = drawn.subplots(1, panels)
    _draw_series(axes[0], _grouped(machine.matmuls), lambda one: one.size)
    _finish(
        axes[0],
        "Matrix product",
        "rows and columns",
        "FLOP/s",
        [one.size for one in machine.matmuls],
        str,
    )
    _draw_series(axes[1], _grouped(machine.copies), lambda one: one.bytes)
    _finish(
        axes[1],
        "Copy",
        "bytes of the array",
        "bytes/s",
        [one.bytes for one in machine.copies],
        byte_size,
    )
    if machine.cache_bytes:
        axes[1].axvline(machine.cache_bytes, color="#888888", linewidth=1, linestyle=":")
        axes[1].text(
            machine.cache_bytes, 0.02, "last-level cache ", rotation=90, ha="right", va="bottom", fontsize=8,
            color="#666666", transform=axes[1].get_xaxis_transform(),
        )  # fmt: skip
    if machine.all_reduces:
        _draw_reduces(axes[2], machine.all_reduces)
    return drawn


def _draw_series(axes: Axes, groups: dict[str, list[Any]], place: Callable[[Any], int]) -> None:
    """A colour for each dtype or path; on a CPU one thread is dashed and hollow."""
    families = list(dict.fromkeys(name.partition(",")[0] for name in groups))
    for name, series in groups.items():
        number = families.index(name.partition(",")[0])
        colour, alone = chart.COLORS[number % len(chart.COLORS)], series[0].threads == 1
        best = [one.work / one.timing.best for one in series]
        down = [high - one.work / one.timing.worst for high, one in zip(best, series, strict=True)]
        axes.errorbar(
            [place(one) for one in series], best, yerr=[down, [0.0] * len(best)], label=name, color=colour,
            linestyle="--" if alone else "-", marker=chart.MARKERS[number % len(chart.MARKERS)], markersize=5.5,
            markerfacecolor="white" if alone else colour, linewidth=1.6, elinewidth=0.9, capsize=2.5,
        )  # fmt: skip


def _draw_reduces(axes: Axes, reduces: Sequence[AllReduce]) -> None:
    """By the medians; at two ranks both bandwidths are the same."""
    ranks = reduces[0].ranks
    works = {"bus, 2(n−1)/n of it": [one.bus_work for one in reduces]} if ranks != 2 else {}
    for number, (name, work) in enumerate(
        {"algorithm": [one.work for one in reduces], **works}.items()
    ):
        rates = [moved / one.timing.median for moved, one in zip(work, reduces, strict=True)]
        label = name if works else "algorithm and bus"
        axes.plot(
            [one.bytes for one in reduces], rates, label=label, color=chart.COLORS[number], linewidth=1.6,
            marker=chart.MARKERS[number], markersize=5.5,
        )  # fmt: skip
    places = [one.bytes for one in reduces]
    _finish(axes, f"All-reduce, {ranks} ranks", "bytes at each rank", "bytes/s", places, byte_size)
    latency = f"{byte_size(places[0])} take {reduces[0].timing.median * 1e6:,.0f} µs"
    axes.text(
        0.97, 0.04, latency, ha="right", fontsize=9, transform=axes.transAxes, color=chart.INK
    )


def _finish(
    axes: Axes, what: str, x: str, y: str, places: Sequence[int], label: Callable[[int], str]
) -> None:
    """Scales, ticks at the sizes that were measured (slanted where they are many), a legend clear of the lines."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom / 1.5, top * (top / bottom) ** 0.35)
    chart.style_axes(axes, what, x, y)
    ticks = sorted(set(places))
    many = len(ticks) > 4
    axes.set_xticks(
        ticks,
        [label(tick) for tick in ticks],
        rotation=35 if many else 0,
        ha="right" if many else "center",
    )
    axes.yaxis.set_major_formatter(chart.si_formatter())
    axes.minorticks_off()
    axes.legend(fontsize=8.5, frameon=False, loc="upper left", ncols=2)
