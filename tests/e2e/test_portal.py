"""People at a browser: the first job, why one waits, a phone, the keyboard, dark colours, an operator's day."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.e2e.conftest import PATIENCE_MS
from tests.support.patience import patience
from tests.support.stack import Stack

SBATCH = """#!/bin/sh
#SBATCH --job-name=slurm-style
#SBATCH --gres=gpu:1
#SBATCH --mail-type=END
echo gpu $CUDA_VISIBLE_DEVICES
"""
#: Elements that one presses or types into and that are smaller than a fingertip may hit.
TOO_SMALL = """() => Array.from(document.querySelectorAll(
    'button, .btn, input:not([type=checkbox]):not([type=radio]), select, summary, .nav a, .tabs a, .cell'
  )).filter(node => node.offsetParent && !node.closest('.legend'))
    .map(node => [node.outerHTML.slice(0, 80), node.getBoundingClientRect()])
    .filter(([, box]) => box.height < 24 || box.width < 24).map(([html]) => html)"""
PHONE = {"width": 375, "height": 760}
PAGES = ["/", "/submit/", "/jobs/", "/cluster/", "/cluster/?view=table", "/queues/", "/quota/", "/tokens/",
         "/settings/", "/projects/", "/projects/vision/", "/notifications/preferences/", "/webhooks/"]  # fmt: skip


def sign_in(page: Page, name: str = "alice") -> None:
    page.goto("/signin/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(f"{name}-demo")
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url("**/")


def submit(page: Page, command: str, **fields: str) -> int:
    """Fill in the form, send it, and answer the number of the job one is led to."""
    page.goto("/submit/")
    page.locator("#f-what").fill(command)
    for name, value in fields.items():
        field = page.locator(f"#f-{name}")
        if not field.is_visible():
            page.locator("details.advanced > summary").click()
        if field.evaluate("node => node.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    return int(page.url.rstrip("/").rsplit("/", 1)[1])


def state(page: Page) -> Locator:
    return page.locator("[data-job-state]")


def cancel(page: Page, number: int) -> None:
    page.goto(f"/jobs/{number}/")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(state(page)).to_have_attribute("data-job-state", "cancelled")


def test_the_zone_of_the_browser_is_offered_only_where_it_is_not_set(page: Page) -> None:
    """A browser in UTC has nothing to offer an account in UTC."""
    sign_in(page)
    page.goto("/settings/")
    offer, field = page.locator("[data-browser-zone]"), page.locator("#time_zone")
    own = page.evaluate("Intl.DateTimeFormat().resolvedOptions().timeZone")

    field.fill("Asia/Tokyo")
    expect(offer).to_be_visible()
    offer.click()

    expect(field).to_have_value(own)
    expect(offer).to_be_hidden()


def test_the_bell_counts_a_job_that_failed_without_a_reload(page: Page, live_stack: Stack) -> None:
    sign_in(page)
    page.goto("/notifications/")
    if (read := page.get_by_role("button", name="Mark all as read")).is_visible():
        read.click()
    number = submit(page, "exit 3", name="breaks")
    bell = page.locator("#bell")

    expect(bell.locator("b")).to_have_text(re.compile("[1-9]"), timeout=patience(PATIENCE_MS))
    bell.get_by_role("link").click()
    expect(page.get_by_role("link", name=f"Job {number} breaks failed")).to_be_visible()
    page.get_by_role("button", name="Mark all as read").click()
    expect(bell.locator("b")).to_have_count(0)


def test_a_first_job_from_sign_in_to_its_last_line_without_a_reload(page: Page, live_stack: Stack) -> None:
    sign_in(page)
    page.goto("/submit/")
    assert live_stack.open_folder is not None
    go_on = live_stack.open_folder / "first-job-goes-on"
    page.locator("#f-what").fill(f"echo hello; until [ -e {go_on} ]; do sleep 0.1; done; echo bye")
    page.locator("#f-name").fill("my first job")
    page.locator("#f-cpu_cores").fill("1")
    expect(page.locator("[data-verdict]")).to_have_attribute("data-verdict", "starts_now")

    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    page.evaluate("window.thisVeryPage = true")
    seen = set()
    while (now := state(page).get_attribute("data-job-state")) != "completed":
        seen.add(now)
        if now == "running":
            go_on.touch()
        page.wait_for_timeout(50)

    expect(page.locator("#log")).to_have_text("hello\nbye\n")
    assert seen <= {"queued", "scheduled", "running"}
    assert "running" in seen
    assert page.evaluate("window.thisVeryPage") is True
    expect(page.locator("#live-dot")).to_have_attribute("data-state", "live")


def test_a_job_that_waits_says_why_and_its_copy_can_be_changed(page: Page) -> None:
    sign_in(page)
    number = submit(page, "true", name="needs a label", node_selector="arch=riscv64")

    expect(page.get_by_text("lacks arch=riscv64").first).to_be_visible()
    expect(page.locator("#job-sentence")).to_contain_text(
        "Blocked: No node that could hold the job has the label arch=riscv64."
    )
    page.get_by_role("link", name=re.compile("Copy.*edit")).first.click()
    page.wait_for_url(f"**/submit/?copy={number}")
    page.locator("#f-node_selector").fill("")
    expect(page.locator("[data-verdict]")).to_have_attribute("data-verdict", "starts_now")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    expect(state(page)).to_have_attribute("data-job-state", "completed")

    cancel(page, number)


def test_a_thousand_gpus_are_refused_with_the_number_that_exists(page: Page) -> None:
    sign_in(page)
    page.goto("/submit/")
    page.locator("#f-what").fill("true")
    page.locator("#f-gpu_count").fill("1000")

    expect(page.locator("[data-verdict]")).to_have_attribute("data-verdict", "never")
    page.get_by_role("button", name="Submit", exact=True).click()

    expect(page.locator("#e-gpu_count")).to_contain_text("1000")
    expect(page.locator("#f-what")).to_have_value("true")
    expect(page.locator("#f-gpu_count")).to_be_focused()


def test_an_sbatch_script_runs_on_a_demo_gpu(page: Page) -> None:
    sign_in(page)
    page.goto("/submit/")
    page.locator("#f-what").fill(SBATCH)
    expect(page.locator("#preview")).to_contain_text("sbatch")
    expect(page.locator("#preview")).to_contain_text("mail-type")

    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))

    expect(state(page)).to_have_attribute("data-job-state", "completed")
    expect(page.locator("#log")).to_have_text(re.compile(r"gpu \d"))
    expect(page.get_by_title(re.compile(r"demo GPU \(computes nothing\)")).first).to_be_visible()


def test_a_running_job_is_cancelled_after_a_question(page: Page) -> None:
    sign_in(page)
    number = submit(page, "echo started; sleep 600", name="long one")
    expect(page.locator("#log")).to_contain_text("started")

    cancel(page, number)

    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)


def test_the_list_follows_a_job_by_itself(page: Page, live_stack: Stack) -> None:
    sign_in(page)
    assert live_stack.open_folder is not None
    go_on = live_stack.open_folder / "watched-job-goes-on"
    number = submit(page, f"until [ -e {go_on} ]; do sleep 0.1; done", name="watched from the list")
    page.goto("/jobs/")

    row = page.locator(f"#job-row-{number}")
    expect(row).to_contain_text(re.compile("running|scheduled|queued"))
    go_on.touch()
    expect(row).to_contain_text("completed")


@pytest.fixture
def phone(browser: Browser, live_stack: Stack) -> Iterator[Page]:
    context = browser.new_context(
        base_url=live_stack.base_url, viewport=PHONE, has_touch=True, is_mobile=True
    )
    context.set_default_timeout(patience(PATIENCE_MS))
    yield context.new_page()
    context.close()


def overflow(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_no_page_scrolls_sideways_on_a_phone(phone: Page) -> None:
    sign_in(phone)
    number = submit(phone, "for i in 1 2 3; do echo " + "long-line-" * 30 + "; done", name="n" * 120)
    expect(state(phone)).to_have_attribute("data-job-state", "completed")

    wide = {}
    tabs = [f"/jobs/{number}/?tab={tab}" for tab in ("overview", "why", "log", "events")]
    for address in [*PAGES, *tabs]:
        phone.goto(address)
        if overflow(phone) > 0:
            wide[address] = overflow(phone)

    assert wide == {}


def test_on_a_phone_reason_and_cancel_are_at_the_thumb(phone: Page) -> None:
    sign_in(phone)
    number = submit(phone, "sleep 600", name="from a phone")

    button = phone.get_by_role("button", name="Cancel", exact=True)
    box = button.bounding_box()

    assert box is not None
    assert box["y"] + box["height"] <= PHONE["height"]
    assert box["y"] > PHONE["height"] - 120
    assert box["height"] >= 40
    cancel(phone, number)


def test_a_job_is_submitted_and_cancelled_with_the_keyboard_alone(page: Page) -> None:
    sign_in(page)
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_url("**/submit/")
    page.keyboard.press("/")
    expect(page.locator("#f-what")).to_be_focused()
    page.keyboard.type("sleep 600")
    page.keyboard.press("Tab")
    page.keyboard.type("typed")
    while page.evaluate("document.activeElement.id") != "submit-button":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))

    expect(state(page)).to_have_attribute("data-job-state", "running")
    page.keyboard.press("w")
    expect(page.locator(".tabs [aria-current]")).to_have_text("Why")
    page.keyboard.press("c")
    expect(page.locator("#cancel-reason")).to_be_focused()
    page.keyboard.press("Enter")
    expect(state(page)).to_have_attribute("data-job-state", "cancelled")


def test_the_first_tab_stop_skips_to_the_content_and_focus_can_be_seen(page: Page) -> None:
    sign_in(page)
    page.goto("/jobs/")
    page.keyboard.press("Tab")

    expect(page.locator(".skip")).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"


def test_targets_are_large_enough_to_hit(page: Page) -> None:
    sign_in(page)

    small = {}
    for address in PAGES:
        page.goto(address)
        small[address] = page.evaluate(TOO_SMALL)

    assert {address: found for address, found in small.items() if found} == {}


@pytest.mark.parametrize(("scheme", "ground"), [("dark", "rgb(14, 17, 22)"), ("light", "rgb(246, 247, 249)")])
def test_colours_follow_the_system_from_the_first_paint(
    browser: Browser, live_stack: Stack, scheme: str, ground: str
) -> None:
    context = browser.new_context(base_url=live_stack.base_url, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    sign_in(page)

    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    context.close()


def test_the_switch_is_kept_on_the_account(page: Page) -> None:
    sign_in(page, "carol")
    ground = "getComputedStyle(document.body).backgroundColor"

    with page.expect_response("**/settings/theme/"):
        page.get_by_role("button", name=re.compile("Theme: system")).click()
    assert page.evaluate(ground) == "rgb(14, 17, 22)"
    page.goto("/jobs/")
    assert page.evaluate(ground) == "rgb(14, 17, 22)"

    for _ in range(2):  # dark, light, and back to the system
        with page.expect_response("**/settings/theme/"):
            page.get_by_role("button", name=re.compile("Theme: ")).click()


def test_an_operator_drains_a_node_and_its_tile_says_so(page: Page) -> None:
    sign_in(page, "operator")
    page.goto("/cluster/")
    page.get_by_role("link", name="node-2", exact=True).click()
    page.get_by_role("button", name="Drain").click()
    page.get_by_label("Reason").last.fill("replace a fan")
    page.locator("#drain-dialog").get_by_role("button", name="Drain").click()
    expect(page.locator("#node-live")).to_contain_text("replace a fan")

    page.goto("/cluster/")
    tile = page.get_by_role("row", name=re.compile("node-2"))
    expect(tile).to_contain_text("draining")

    tile.get_by_role("link", name="node-2").click()
    page.get_by_role("button", name="Uncordon").click()
    expect(page.locator("#node-live")).to_contain_text("up")


def test_arrow_keys_walk_the_grid_of_gpus(page: Page) -> None:
    sign_in(page)
    page.goto("/cluster/")
    cells = page.get_by_role("gridcell")
    cells.first.focus()
    first = page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("ArrowRight")
    second = page.evaluate("document.activeElement.getAttribute('aria-label')")

    assert re.match(r"node-\d, GPU 0, ", first)
    assert re.match(r"node-\d, GPU 1, ", second)


def test_a_token_is_made_shown_once_and_revoked(page: Page, live_stack: Stack) -> None:
    sign_in(page)
    page.goto("/tokens/")
    page.get_by_label("Token name").fill("from the browser")
    page.get_by_role("button", name="Create token").click()
    plain = page.locator("#plain-token").inner_text()
    headers = {"Authorization": f"Bearer {plain}"}

    assert page.request.get("/api/v1/jobs", headers=headers).status == 200
    page.goto("/tokens/")
    expect(page.get_by_text(plain)).to_have_count(0)
    page.get_by_role("row", name=re.compile("from the browser")).get_by_role("button", name="Revoke").click()
    page.locator("dialog[open]").get_by_role("button", name="Revoke").click()
    expect(page.get_by_text("programs that use it are refused")).to_be_visible()
    assert page.request.get("/api/v1/jobs", headers=headers).status == 401


def test_the_description_of_the_api_is_drawn(page: Page) -> None:
    page.goto("/api/v1/docs")

    expect(page.locator("#operations-jobs-api_v1_jobs_create, .opblock-post").first).to_be_visible()
    preview = page.get_by_text("/api/v1/jobs/preview", exact=False).first
    for _ in range(40):  # what is far below is drawn when somebody scrolls there
        if preview.count():
            break
        page.mouse.wheel(0, 600)
        page.wait_for_timeout(100)
    expect(preview).to_be_visible()
