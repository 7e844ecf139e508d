"""The admin in a real browser: it works under our content policy, without any outside host."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.support.stack import Stack


def test_an_admin_signs_in_and_finds_the_models(page: Page, live_stack: Stack) -> None:
    page.goto("/admin/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password", exact=False).first.fill(live_stack.credentials["admin"])
    page.get_by_role("button", name="Log in").click()

    expect(page).to_have_url(f"{live_stack.base_url}/admin/")
    expect(page.locator("body")).to_contain_text("Periodic tasks")
