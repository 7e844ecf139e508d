"""The admin in a real browser: it works under our content policy, without any outside host."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.support.stack import Stack


def test_an_admin_signs_in_and_finds_the_models(page: Page, live_stack: Stack) -> None:
    page.goto("/admin/")
    page.get_by_label("Username", exact=True).fill("admin")
    page.get_by_label("Password", exact=True).fill(live_stack.credentials["admin"])
    page.get_by_role("button", name="Sign in", exact=True).click()

    expect(page).to_have_url(f"{live_stack.base_url}/admin/")
    expect(page.get_by_role("link", name="Nodes").first).to_be_visible()
    expect(page.locator("body")).to_contain_text("Site administration")


def test_a_limit_is_saved_after_its_effect_was_shown(page: Page, live_stack: Stack) -> None:
    page.goto("/admin/")
    page.get_by_label("Username", exact=True).fill("operator")
    page.get_by_label("Password", exact=True).fill(live_stack.credentials["operator"])
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.goto("/admin/quotas/quota/?resource__exact=memory_mib")
    page.locator("#result_list a[href*='/change/']").first.click()
    before = int(page.locator("input[name=hard]").input_value().removesuffix(" GiB"))
    page.locator("input[name=hard]").fill(f"{before + 1} GiB")
    page.locator("input[name=reason]").fill("a little more")
    page.locator("[name=_save]").click()

    expect(page.locator("#preview")).to_contain_text("Nothing is saved yet")
    expect(page.locator("#preview")).to_contain_text("All projects' limits add up to")
    assert page.locator("input[name=hard]").input_value() == f"{before + 1} GiB"
    page.locator("[name=_save]").click()
    expect(page.locator("body")).to_contain_text("was changed successfully")
