"""Chromium without a screen, driven through Playwright: for VS Code and for the demo."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ..audit import calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

# Nothing but the page is asked for: no updates, no field trials, no start page.
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The Chromium of this machine, with a profile of its own; the test fails with a sentence where there is none."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if not path:
        pytest.fail("Chromium is needed: put chromium on PATH.", pytrace=False)
    from playwright.sync_api import sync_playwright  # of the extra `real`: the suite collects this file without it

    with sync_playwright() as playwright:
        # It asks after its maker's services, which it cannot be told to leave: what a page asks for is looked at in it.
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIET), env=calls.unheard())
        try:
            yield browser
        finally:
            browser.close()
