"""The report in a real browser: on a desktop, on a phone, and printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.core.paths import Results
from harness.records.store import RecordedSweep
from harness.view.report import render
from harness.view.sweep import FURTHER_NUMBERS, NUMBERS
from tests.support.reports import HOSTILE, make_records, make_sweep, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a sweep with a failed trial and hostile texts."""
    folder = tmp_path_factory.mktemp("report")
    results, sweep = Results(folder / "results"), make_sweep(folder)
    records = make_records(sweep, hostile=True)
    write_run(results, sweep, records, logs=HOSTILE)
    recorded = RecordedSweep(sweep=sweep, records=records, unreadable=())
    (folder / "report.html").write_text(render(results, recorded), encoding="utf-8")
    return folder / "report.html"


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[Page]:
    """Return a window that tests share, because each takes more than a second of CPU time."""
    window = browser.new_page()
    yield window
    window.close()


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(window: Page, written: Path, width: int) -> None:
    window.set_viewport_size({"width": width, "height": 800})
    window.goto(written.as_uri())
    assert window.evaluate("document.documentElement.scrollWidth") <= width


def test_the_table_of_cells_fits_a_desktop_with_all_its_columns(
    window: Page, tmp_path: Path
) -> None:
    results, sweep = Results(tmp_path / "results"), make_sweep(tmp_path)
    columns = {**NUMBERS, **FURTHER_NUMBERS}
    further = {name: 0.123 for name, _ in columns.values()}
    records = [
        replace(record, numbers={**record.numbers, **further}) for record in make_records(sweep)
    ]
    write_run(results, sweep, records)
    recorded = RecordedSweep(sweep=sweep, records=records, unreadable=())
    page = tmp_path / "report.html"
    page.write_text(render(results, recorded), encoding="utf-8")
    window.set_viewport_size({"width": 1280, "height": 800})
    window.goto(page.as_uri())
    assert "scaling" in window.locator("#cells th").all_inner_texts()
    box = window.locator("#cells .wide")
    assert box.evaluate("box => box.scrollWidth - box.clientWidth") == 0


def test_the_page_makes_no_request_runs_no_script_and_logs_nothing(
    browser: Browser, written: Path
) -> None:
    shown = browser.new_page()
    requests: list[str] = []
    messages: list[str] = []
    shown.on("request", lambda request: requests.append(request.url))
    shown.on("console", lambda message: messages.append(message.text))
    shown.on("pageerror", lambda error: messages.append(str(error)))
    shown.goto(written.as_uri())
    assert requests == [written.as_uri()]
    assert messages == []
    assert shown.title() == "demo – report"
    assert shown.locator("script, img").count() == 0
    shown.close()


def test_drawings_are_visible_on_a_phone(window: Page, written: Path) -> None:
    window.set_viewport_size({"width": 360, "height": 800})
    window.goto(written.as_uri())
    for drawn in ("#cells .dot", "#curves figure > svg", "#cells td"):
        box = window.locator(drawn).first.bounding_box()
        assert box is not None, drawn
        assert box["width"] > 2, drawn
        assert box["height"] > 2, drawn
    for table in window.locator("#cells .wide").all():
        assert table.evaluate("box => box.scrollWidth - box.clientWidth") == 0


def test_the_page_can_be_printed(browser: Browser, written: Path) -> None:
    shown = browser.new_page()
    shown.goto(written.as_uri())
    printed = shown.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    shown.emulate_media(media="print")
    assert shown.locator("details pre").first.is_visible()
    style = "heading => getComputedStyle(heading).breakAfter"
    assert shown.locator("#curves h2").evaluate(style) == "avoid"
    shown.close()
