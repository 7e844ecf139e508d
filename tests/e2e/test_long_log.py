"""A log of 200,000 lines that comes while somebody looks at it."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.e2e.test_portal import PATIENCE_MS, sign_in, submit
from tests.support.patience import patience
from tests.support.stack import Stack

LINES = 200_000
MOST_HEAP_MIB = 300
LEAST_FRAMES_A_SECOND = 30

#: Scrolls from end to end for a second, a step with each frame, and counts the frames.
SCROLL = """() => new Promise((done) => {
  const log = document.getElementById('log');
  const begin = performance.now();
  let frames = 0;
  function step(now) {
    frames += 1;
    log.scrollTop = (frames % 60) / 60 * log.scrollHeight;
    if (now - begin < 1000) requestAnimationFrame(step); else done(1000 * frames / (now - begin));
  }
  requestAnimationFrame(step);
})"""


def test_t30_a_log_of_200_000_lines_that_comes_live_can_be_scrolled_and_stays_small(
    page: Page, live_stack: Stack
) -> None:
    """As many lines as a busy job prints in an hour, in the time that they need to get here."""
    assert live_stack.open_folder is not None
    go_on = live_stack.open_folder / "long-log-goes-on"
    sign_in(page)
    command = (
        f"echo first; until [ -e {go_on} ]; do sleep 0.1; done;"
        f" seq -f 'line %.0f of a log with some words after the number' {LINES}; echo the last one"
    )
    submit(page, command, name="prints much")
    log = page.locator("#log")
    expect(log).to_contain_text("first", timeout=patience(PATIENCE_MS))
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    go_on.touch()
    expect(log).to_contain_text("the last one", timeout=patience(4 * PATIENCE_MS))

    characters = log.evaluate("node => node.textContent.length")
    assert log.get_attribute("data-log-cut") == "1", "the page keeps the end of it"
    assert "line 200000 of" in log.evaluate("node => node.textContent.slice(-500)")
    assert characters <= 4_000_000
    session.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    assert metrics["JSHeapUsedSize"] / 2**20 < MOST_HEAP_MIB
    frames = max(page.evaluate(SCROLL) for _ in range(3))
    assert frames >= LEAST_FRAMES_A_SECOND / patience(1), f"{frames:.0f} frames a second"
