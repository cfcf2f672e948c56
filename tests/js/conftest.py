"""Pages of Debian's Chromium, at `BLINDTALLY_CHROMIUM` or where it usually is."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright


@pytest.fixture(scope="module")  # its event loop would stop asynchronous tests of other modules
def browser() -> Iterator[Browser]:
    path = os.environ.get("BLINDTALLY_CHROMIUM") or shutil.which("chromium")
    if path is None:  # CI installs it
        pytest.skip("NO BROWSER: install Debian's chromium, or name one in BLINDTALLY_CHROMIUM")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page()
    yield opened
    opened.close()
