"""A real Chromium for the tests of pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = Path(os.environ.get("HARNESS_CHROMIUM", "/usr/bin/chromium"))


@pytest.fixture(scope="session", autouse=True)
def browser() -> Iterator[Browser]:
    """Start Chromium. Tests are skipped without it, except in CI, where that is a failure."""
    if not CHROMIUM.exists():
        reason = f"no browser at {CHROMIUM}: install Chromium or set HARNESS_CHROMIUM"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    from playwright.sync_api import sync_playwright

    flags = [
        "--disable-background-networking",
        "--disable-gpu",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield chromium
        chromium.close()
