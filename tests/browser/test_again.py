"""Running responses again and comparing them, by clicks."""

import re

import pytest
from playwright.async_api import Browser, expect

from tests.support.browser import logged_in
from tests.support.fake_upstream import FakeUpstream, fail, reply
from tests.support.stack import Stack

WIDTH = 375
"""Pixels of a telephone."""
_EVIL = "<img src=x onerror=alert(1)>"


@pytest.mark.long
async def test_failed_ones_are_selected_run_again_with_another_model_and_compared(
    watched: Stack, browser: Browser, fake: FakeUpstream
) -> None:
    api = watched.api()
    model, other = fake.script([fail()], [fail()]), fake.script(reply(f"Now it works. {_EVIL}"))
    failed = []
    for _ in range(2):
        failed.append(await api.create_background(model, input=_EVIL))
        await api.wait_for_end(failed[-1])
    listed = f"/console/responses?status=failed&model={model}"
    async with logged_in(browser, watched, "dark", WIDTH) as operator:
        tab = operator.tab
        await operator.open(listed)
        again, compare = (tab.get_by_role("button", name=name) for name in ("Run again", "Compare"))
        await expect(again).to_be_disabled()
        await tab.get_by_label("Select all of this page").check()
        await expect(compare).to_be_enabled()
        await again.click()
        await expect(tab.get_by_role("heading")).to_have_text("Run 2 responses again?")
        await operator.check_legible(WIDTH, "run again")
        await tab.get_by_label("Model").fill(other)
        await tab.get_by_role("button", name="Run 2 again").click()
        await expect(tab.get_by_role("status").first).to_contain_text("2 responses run again")
        assert tab.url.endswith(listed), "the filter is kept"
        await operator.check_legible(WIDTH, "notice")
        await tab.reload()
        await expect(tab.locator("main")).not_to_contain_text("2 responses run again")

        await tab.locator(f"#open-{failed[0]}").click()
        await tab.locator("#compare").click()
        await expect(tab).to_have_url(re.compile(r"/responses/compare\?a="))
        await operator.check_legible(WIDTH, "compare")
        new = (await api.get(failed[0]))["retried_by"]
        assert (await api.wait_for_end(new))["model"] == other
        await tab.get_by_role("button", name="Show input and output").click()
        await expect(tab.locator("ins").first).to_contain_text("onerror")
        await operator.check_legible(WIDTH, "compare with content")
