"""The page of a response in a browser: texts that grow, and what stays unfolded."""

import asyncio
import re

from playwright.async_api import Browser, expect

from tests.support.browser import logged_in
from tests.support.fake_upstream import (
    FakeUpstream,
    finish,
    reasoning,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.fake_upstream import done as end_of_stream
from tests.support.stack import Stack

_EVIL = "<img src=x onerror=alert(1)>"
_WITHIN = 20_000
"""Milliseconds."""


async def test_a_text_grows_in_one_place_and_is_rendered_at_its_end(
    watched: Stack, browser: Browser, fake: FakeUpstream
) -> None:
    more, end = asyncio.Event(), asyncio.Event()
    model = fake.script(
        [
            *(reasoning("A thought."), text("The **first** ", "half, ")),
            *(wait_for(more), text("the second ", f"{_EVIL} half."), wait_for(end)),
            *(finish(), usage(), end_of_stream()),
        ],
        name="slow-model",
    )
    response_id = await watched.api().create_background(model)
    async with logged_in(browser, watched) as operator:
        tab = operator.tab
        await operator.open(f"/console/responses/{response_id}")
        await expect(tab.locator(".waterfall .turn")).to_have_count(1, timeout=_WITHIN)
        await expect(tab.get_by_text("First output within")).to_be_visible(timeout=_WITHIN)
        assert "**first**" not in await tab.content()
        await tab.get_by_role("button", name="Show input and output").click()
        growing = tab.locator("[data-shown] .of-model .text")
        await expect(growing).to_have_text("The **first** half, ", timeout=_WITHIN)
        await expect(tab.locator("[data-shown] .entry")).to_have_count(2)
        steps = tab.locator("#steps")
        await steps.locator("summary").click()
        more.set()
        await expect(growing).to_have_text(re.compile(r"half\.$"), timeout=_WITHIN)
        assert await growing.inner_text() == f"The **first** half, the second {_EVIL} half."
        # The part around it has been refreshed meanwhile, or is now.
        await tab.evaluate("htmx.trigger(document.querySelector('[data-live]'), 'refresh')")
        await tab.wait_for_load_state("networkidle")
        await expect(steps).to_have_attribute("open", "")
        end.set()
        answer = tab.locator("#conversation .of-model .markdown")
        await expect(answer.locator("strong")).to_have_text("first", timeout=_WITHIN)
        await expect(tab.locator("[data-shown]")).to_have_count(0)
        await expect(tab.locator(".now")).to_contain_text("completed", timeout=_WITHIN)
        await tab.get_by_text("Every event, by number").click()
        deltas = tab.locator(".events .type", has_text="output_text.delta")
        await expect(deltas).to_have_count(1)
        await expect(tab.locator("[data-tail-state]")).to_have_text("complete")


async def test_earlier_responses_of_a_chain_are_read_when_they_are_opened(
    watched: Stack, browser: Browser, fake: FakeUpstream
) -> None:
    api = watched.api()
    model = fake.script(reply("One."), reply("Two."), name="chain-model")
    first = await api.create(model, input="The first question.")
    second = await api.create(model, previous_response_id=first["id"])
    async with logged_in(browser, watched, width=375) as operator:
        tab = operator.tab
        await operator.open(f"/console/responses/{second['id']}")
        await tab.get_by_role("button", name="Show input and output").click()
        earlier = tab.locator(".chain details")
        await expect(earlier).not_to_contain_text("The first question.")
        await earlier.locator("summary").focus()
        await tab.keyboard.press("Enter")
        await expect(earlier).to_contain_text("The first question.")
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 375
        await earlier.get_by_role("link").first.click()
        await expect(tab.get_by_role("heading", level=1)).to_have_text(first["id"])
