"""One whole portal and one browser for all end-to-end tests.

Both end with the last test of this folder: the browser's driver keeps an event loop in this thread for as long
as it lives, and tests that come after must find none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.embedded import give_migrated_data
from tests.support.otlp import Collector, collecting
from tests.support.patience import patience
from tests.support.stack import Stack, make_open_folder, scratch_state

WINDOW = {"width": 1280, "height": 900}
PATIENCE_MS = 30_000
EXPECT_MS = 10_000


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    """What the portal sends its traces to."""
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="package")
def live_stack(collector: Collector) -> Iterator[Stack]:
    """A real `manage.py up` with demo data and its four nodes, on a scratch state folder and a free port."""
    state = scratch_state("e2e")
    give_migrated_data(state)
    env = {
        "MUSTER_NOTIFY_SECONDS": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "500",
    }  # fmt: skip
    stack = Stack(state, env=env, open_folder=make_open_folder("e2e-jobs"))
    try:
        yield stack.start()
    finally:
        stack.stop()
        stack.remove_folders()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, driven for real."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        say = "NO CHROMIUM FOUND, so nothing was tried in a browser. On Debian: apt install chromium"
        if os.environ.get("MUSTER_REQUIRE_BROWSER"):
            pytest.fail(say)
        pytest.skip(say)
    expect.set_options(timeout=patience(EXPECT_MS))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            chromium_sandbox=os.geteuid() != 0,
            args=[
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-dev-shm-usage",
            ],
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, live_stack: Stack) -> Iterator[Page]:
    """A fresh window on the portal; fails the test if the page asked an outside host or broke its policy."""
    context = browser.new_context(base_url=live_stack.base_url, viewport=WINDOW)
    context.set_default_timeout(patience(PATIENCE_MS))
    page = context.new_page()
    outside: list[str] = []
    broken: list[str] = []
    page.on("request", lambda request: outside.append(request.url) if is_outside(request.url) else None)
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on(
        "console",
        lambda message: broken.append(message.text) if "Content Security Policy" in message.text else None,
    )
    yield page
    context.close()
    assert outside == []
    assert broken == []


def is_outside(url: str) -> bool:
    where = urlsplit(url)
    return where.scheme in ("http", "https", "ws", "wss") and where.hostname not in ("127.0.0.1", "localhost")
