"""What MLflow's own pages show in a real browser, of records in the database of a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING

import pytest

from harness.core.paths import Results
from harness.tracking import Delivery, Tracker, page
from harness.tracking.ui import serve
from tests.factories import make_cell, make_record, write_sweep

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

TIMEOUT = 40_000  # milliseconds for a page to show its content
NAMES = [  # sorted by name, and from the newest to the oldest
    f"{workload} {precision} {ranks}"
    for workload, precision, ranks in product(("cnn", "mlp"), ("bf16", "fp32"), ("ddp×2", "single"))
]
FASTEST_FIRST = NAMES[::-1]
# The verdict, the speed with its interval and the throughput: before the axes, and without scrolling.
ANSWER_COLUMNS = (
    "tags.`harness.verdict`",
    "tags.`harness.speed`",
    "metrics.`throughput_samples_per_s`",
)
WIDTHS = (1280, 1500, 1920)  # pixels of a laptop's window, and of larger ones


@pytest.fixture(scope="module")
def delivery(served_results: Results) -> Delivery:
    """Deliver two workloads by two precisions by two strategies, two seeds each; one trial failed.

    Into the server's own database, as commands do whose results `harness ui` shows.
    """
    axes = product(("mlp", "cnn"), ("fp32", "bf16"), (("single", 1), ("ddp", 2)))
    cells = [
        make_cell(label, precision=precision, steps=60, strategy=strategy, world_size=ranks)
        for label, precision, (strategy, ranks) in axes
    ]
    records = [
        make_record(
            cell,
            seed=seed,
            sweep="pages",
            started=1_700_000_000.0 + 100 * at,
            step_seconds=0.001 * (at + 1),
        )
        for at, (cell, seed) in enumerate(product(cells, (0, 1)))
    ]
    records[-1] = make_record(
        cells[-1], seed=1, sweep="pages", status="failed", started=1_700_009_000.0
    )
    write_sweep(served_results.sweep_folder("pages"), records)
    return Tracker(served_results).deliver(served_results.sweep_folder("pages"))


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[Page]:
    """Return a window of a browser that has never seen MLflow.

    MLflow's pages are a single document, which takes seconds of CPU time to load: tests share it.
    """
    with new_window(browser) as opened_window:
        yield opened_window


@contextmanager
def new_window(browser: Browser) -> Iterator[Page]:
    """Open a window that has no state of others, and close it."""
    context = browser.new_context(viewport={"width": 1700, "height": 1150})
    context.set_default_timeout(TIMEOUT)
    yield context.new_page()
    context.close()


@pytest.fixture
def cells(window: Page, mlflow_server: str, delivery: Delivery) -> Page:
    """Return the window with the page of the sweep's cells, as `harness ui` opens it at first."""
    window.goto(page(delivery.experiment_id, base=mlflow_server))
    wait_for_rows(window, FASTEST_FIRST)
    return window


def rows(shown: Page) -> list[str]:
    """Return the names of the runs in the table, from the top."""
    indexed_names = shown.locator(".ag-row").evaluate_all(
        "rows => rows.map(row => [+row.getAttribute('row-index'), row.querySelector('a')?.innerText])"
    )
    return [name for _, name in sorted((index, name) for index, name in indexed_names if name)]


def wait_for_rows(shown: Page, expected: list[str]) -> None:
    """Wait until these are the runs in the table, in this order."""
    for _ in range(TIMEOUT // 250):
        if rows(shown) == expected:
            return
        shown.wait_for_timeout(250)
    assert rows(shown) == expected


def test_the_sweeps_page_opens_on_its_cells(cells: Page) -> None:
    verdicts = cells.locator("[role=gridcell][col-id='tags.`harness.verdict`']").all_inner_texts()
    assert (len(verdicts), verdicts.count("first")) == (len(NAMES), 2)
    for width in WIDTHS:
        cells.set_viewport_size({"width": width, "height": 900})
        cells.get_by_text("fastest is fp32 single with").wait_for()
        for column in ANSWER_COLUMNS:
            column_cells = cells.locator(f"[role=gridcell][col-id='{column}']")
            box = column_cells.first.bounding_box()
            assert box is not None
            # Of the last one the value has to fit, not its column.
            assert box["x"] + 60 < width, (column, width)
    cells.locator("label:has(input[name=runs-view-mode][value=CHART])").click()
    cells.locator(".js-plotly-plot .bars").first.wait_for()


@pytest.mark.nightly
def test_trials_unfold_below_their_cell_and_cells_below_their_sweep(
    browser: Browser, mlflow_server: str, delivery: Delivery
) -> None:
    nested = ["pages", *NAMES, *(f"seed {seed} {NAMES[-1]}" for seed in (1, 0))]
    with new_window(browser) as shown:  # the other one keeps its view of the cells
        shown.goto(f"{mlflow_server}/#/experiments/{delivery.experiment_id}/runs")
        wait_for_rows(shown, ["pages"])
        unfold(shown, "pages")
        wait_for_rows(shown, ["pages", *NAMES])
        unfold(shown, NAMES[-1])
        wait_for_rows(shown, nested)
        assert rows(shown) == nested


def unfold(shown: Page, name: str) -> None:
    """Show the runs below the run of this name."""
    row = shown.locator(".ag-row", has=shown.get_by_text(name, exact=True))
    row.locator("[col-id='attributes.`Run Name`'] button").click()


def test_an_axis_filters(cells: Page) -> None:
    box = cells.get_by_test_id("search-box")
    box.fill('params.precision = "bf16" and tags.`harness.kind` = "cell"')
    box.press("Enter")
    wait_for_rows(cells, [label for label in FASTEST_FIRST if "bf16" in label])
    box.fill('params.precision = "bf16"')
    box.press("Enter")
    cells.get_by_text("12 matching runs").wait_for()
    assert all("bf16" in name for name in rows(cells))


@pytest.mark.nightly
def test_two_cells_compare(cells: Page) -> None:
    for label in FASTEST_FIRST[1:4:2]:
        cells.locator(".ag-row", has=cells.get_by_text(label, exact=True)).locator(
            ".ag-selection-checkbox input"
        ).click()
    cells.get_by_role("button", name="Compare", exact=True).click()
    cells.wait_for_url(re.compile("compare-runs"))
    cells.get_by_text("Comparing 2 Runs").first.wait_for()
    body = cells.locator("body")
    body.get_by_text("precision", exact=True).first.wait_for()
    for text in (*FASTEST_FIRST[1:4:2], "throughput_samples_per_s"):
        body.get_by_text(text, exact=True).first.wait_for()


@pytest.mark.nightly
def test_a_trials_page_shows_its_curves_its_files_and_why_it_failed(cells: Page) -> None:
    box = cells.get_by_test_id("search-box")
    box.fill("tags.`harness.status` = 'failed'")
    box.press("Enter")
    wait_for_rows(cells, ["seed 1 cnn bf16 ddp×2"])
    cells.get_by_text("seed 1 cnn bf16 ddp×2").click()
    cells.get_by_text("ValueError: no such thing").first.wait_for()
    cells.get_by_role("tab", name="Artifacts").click()
    names = [cells.get_by_text("record.json").first, cells.get_by_text("logs", exact=True).first]
    for name in names:
        name.wait_for()
    assert all(name.is_visible() for name in names)


def test_the_addresses_on_a_running_server_are_printed(
    results: Results, mlflow_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here, where there is a server already."""
    write_sweep(results.sweep_folder("pointed"), [make_record(sweep="pointed")])
    delivery = Tracker(results, mlflow_server).deliver(results.sweep_folder("pointed"))
    serve(results, mlflow_server)
    address = f"{mlflow_server}/#/experiments/{delivery.experiment_id}/runs"
    assert f"pointed: {address}" in capsys.readouterr().out
