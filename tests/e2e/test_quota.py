"""Asking for more quota, from the page of limits to the audit trail."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, Page, expect

from tests.e2e.test_portal import PHONE, sign_in
from tests.support.stack import Stack


def gpus_of(page: Page) -> str:
    head = page.locator("#project-vision .bullet .head").filter(has=page.locator("b", has_text="GPUs"))
    return head.first.inner_text()


def bound(page: Page) -> int:
    found = re.search(r"of (\d+)", gpus_of(page))
    assert found, gpus_of(page)
    return int(found.group(1))


def test_f3_a_lead_asks_an_operator_approves_part_and_the_bars_grow_without_a_reload(
    page: Page, browser: Browser, live_stack: Stack
) -> None:
    sign_in(page, "alice")
    page.goto("/quota/")
    before = bound(page)
    page.locator("#project-vision").get_by_role("link", name="Request quota").click()
    expect(page.get_by_text("Attached usage data")).to_be_visible()
    page.locator("#ask-resource").select_option("gpu_millis")
    page.locator("#ask-amount").fill("4")
    page.locator("#ask-reason").fill("Camera-ready figures")
    page.get_by_role("button", name="Send request").click()
    page.wait_for_url(re.compile(r"/quota/requests/\d+/$"))
    request = page.url
    expect(page.locator(".chip").first).to_contain_text("awaiting decision")
    page.goto("/quota/")
    page.evaluate("window.sameDocument = true")

    window = browser.new_context(base_url=live_stack.base_url, viewport=PHONE)
    try:
        theirs = window.new_page()
        sign_in(theirs, "operator")
        theirs.goto("/quota/requests/")
        theirs.get_by_role("link", name=f"Request {request.rstrip('/').rsplit('/', 1)[1]}").click()
        expect(theirs.get_by_text("Impact")).to_be_visible()
        expect(theirs.get_by_text("of the project are affected")).to_be_visible()
        assert theirs.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        theirs.locator("#granted").fill("2")
        theirs.locator("#grant-reason").fill("half for now")
        theirs.get_by_role("button", name="Approve", exact=True).click()
        expect(theirs.locator(".chip").first).to_contain_text("active")
    finally:
        window.close()

    expect(page.locator("#project-vision")).to_contain_text(f"of {before + 2}")
    assert bound(page) == before + 2
    assert page.evaluate("window.sameDocument === true")
    page.goto("/")
    expect(page.get_by_text("was approved in part (2 GPUs)")).to_be_visible()
    page.goto(request)
    page.get_by_role("button", name="Give back").click()
    expect(page.locator(".chip").first).to_contain_text("ended")
    page.goto("/quota/")
    assert bound(page) == before

    page.context.clear_cookies()
    sign_in(page, "admin")
    page.goto("/audit/")
    for action in ("grant.ask", "grant.approve", "grant.end"):
        expect(page.locator("code", has_text=action).first).to_be_visible()
