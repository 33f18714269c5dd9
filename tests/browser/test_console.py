"""The console in a browser: what operators see, and what pages do without being loaded again."""

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from features.console.access import Role
from features.console.app import MENU
from tests.support.browser import Operator, logged_in
from tests.support.fake_upstream import FakeUpstream, finish, hang, reply, text, usage, wait_for
from tests.support.fake_upstream import done as end_of_stream
from tests.support.stack import ROOT, Stack

_EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
_WITHIN = 20_000
"""Milliseconds."""


@pytest.fixture
def pictures(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where pictures are saved: those of the README only if that is asked for."""
    return ROOT / "docs/images" if request.config.getoption("--screenshots") else tmp_path


async def _owner(stack: Stack, response_id: str) -> int:
    """The process that runs a response."""
    query = "SELECT w.pid FROM responses r JOIN workers w ON w.id = r.worker WHERE r.id = %s"
    pid: int = await stack.value(query, response_id.removeprefix("resp_"))
    return pid


@pytest.mark.long
async def test_a_killed_worker_is_a_story_and_the_tail_goes_on(
    watched: Stack, browser: Browser, fake: FakeUpstream, pictures: Path
) -> None:
    released = asyncio.Event()
    model = fake.script(
        [text("The first half"), hang()],
        [text("The whole ", "answer."), wait_for(released), finish(), usage(), end_of_stream()],
        name="large-model",
    )
    response_id = await watched.api().create_background(model, metadata={"team": "research"})
    async with logged_in(browser, watched) as operator:
        tab = operator.tab
        await operator.open(f"/console/responses/{response_id}")
        await tab.get_by_text("Every event, by number").click()
        events = tab.locator(".events li")
        await expect(events.filter(has_text="output_text.delta").first).to_be_visible()
        before = await events.count()
        pid = await _owner(watched, response_id)
        [owner] = [worker for worker in watched.workers if worker.pid == pid]
        watched.kill(owner)
        story = tab.locator(".timeline")
        await expect(story).to_contain_text("attempt 2: claimed by worker", timeout=_WITHIN)
        await expect(story).to_contain_text("attempt 1 died with its worker")
        await expect(events.nth(before)).to_be_visible(timeout=_WITHIN)
        released.set()
        await expect(tab.locator("[data-tail-state]")).to_have_text("complete", timeout=_WITHIN)
        await expect(story).to_contain_text("ended as completed", timeout=_WITHIN)
        numbers = await tab.locator(".events .number").all_inner_texts()
        assert _has_no_hole(numbers), numbers
        assert "first half" not in await tab.content()
        await operator.save(pictures, "console-response")


def _has_no_hole(numbers: list[str]) -> bool:
    """Whether `0`, `1`, `2–5`, … continue one another."""
    following = 0
    for each in numbers:
        first, _, last = each.partition("–")
        if int(first) != following:
            return False
        following = int(last or first) + 1
    return bool(numbers)


async def test_the_list_is_live_keeps_what_is_selected_and_can_be_paused(
    watched: Stack, browser: Browser, fake: FakeUpstream, pictures: Path
) -> None:
    model = fake.script([text("x"), hang()], name="slow-model")
    api = watched.api()
    for _ in range(3):
        await api.create(fake.script(reply("Hello."), name="small-model"))
    await api.wait_for_end(await api.create_background("missing-model"))
    running = await api.create_background(model)
    async with logged_in(browser, watched) as operator:
        tab = operator.tab
        await operator.open(f"/console/responses?model={model}")
        rows = tab.locator("tbody tr")
        await expect(rows).to_have_count(1)
        await tab.get_by_label(f"Select {running[:21]}").check()
        other = await api.create_background(model)
        await expect(rows).to_have_count(2, timeout=_WITHIN)
        await expect(tab.get_by_label(f"Select {running[:21]}").first).to_be_checked()
        await expect(tab.locator("[data-selected]")).to_have_text("1 selected")
        await tab.get_by_role("button", name="Pause").click()
        await expect(tab.locator("[data-pause]")).to_have_text("Paused")
        assert f"model={model}" in tab.url
        await tab.get_by_role("button", name="Cancel").click()
        await expect(tab.get_by_role("heading")).to_have_text("Cancel 1 response?")
        await tab.get_by_role("button", name="Cancel").click()
        await expect(tab.locator("main")).to_contain_text("cancel requested")
        assert (await api.wait_for_end(running))["status"] == "cancelled"
        await operator.open("/console/responses")
        await expect(rows.nth(5)).to_be_visible()
        await operator.save(pictures, "console-responses")
        await tab.locator(".counts").get_by_role("link", name="failed").click()
        await expect(tab).to_have_url(re.compile(r"\?status=failed$"))
        await expect(rows.filter(has_text="missing-model")).to_have_count(1)
        await expect(rows.filter(has_text="completed")).to_have_count(0)
        assert (await api.get(other))["status"] in ("queued", "in_progress")
        await api.cancel(other)


@pytest.mark.long
async def test_a_drain_empties_a_worker_and_the_plots_show_what_it_has_done(
    watched: Stack, browser: Browser, fake: FakeUpstream
) -> None:
    api = watched.api()
    done = await api.create_background(fake.script(reply("Hello."), name="small-model"))
    await api.wait_for_end(done)
    pid = await watched.value(
        "SELECT pid FROM attempts WHERE response_id = %s", done.removeprefix("resp_")
    )
    await watched.start_worker()
    async with logged_in(browser, watched) as operator:
        tab = operator.tab
        await operator.open("/console/workers")
        await tab.get_by_label(f"Drain worker {pid}").click()
        await expect(tab.get_by_role("heading")).to_contain_text("Drain the worker")
        [drained] = [worker for worker in watched.workers if worker.pid == pid]
        watched.forget(drained)
        await tab.get_by_role("button", name="Drain").click()
        ended = tab.get_by_label("Processes that have ended")
        await expect(ended.get_by_role("row").filter(has_text=str(pid))).to_contain_text(
            "stopped", timeout=_WITHIN
        )
        await operator.open("/console/activity")
        plot = tab.get_by_role("img", name="Ended, per minute")
        await expect(plot).to_have_attribute("aria-label", re.compile("completed: .*max [1-9]"))


async def test_everything_is_done_with_the_keyboard(
    watched: Stack, browser: Browser, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Hello."))
    made = await watched.api().create(model)
    async with logged_in(browser, watched) as operator:
        tab = operator.tab
        await _tab_to(operator, "Responses")
        await tab.keyboard.press("Enter")
        await expect(tab.get_by_role("heading")).to_have_text("Responses")
        await _tab_to(operator, "model")
        await tab.keyboard.type(model)
        await tab.keyboard.press("Enter")
        await expect(tab.locator("tbody tr")).to_have_count(1)
        await tab.keyboard.press("/")
        assert await _focused(operator) == "text"
        await tab.keyboard.press("j")
        assert await tab.get_by_label("Words of input or output").input_value() == "j"
        await tab.keyboard.press("Escape")
        await tab.keyboard.press("j")
        assert await _focused(operator) == made["id"][:21]
        await operator.open(f"/console/responses?model={model}")
        await _tab_to(operator, made["id"][:21])
        # A refresh in between must not take the focus away.
        await tab.evaluate("htmx.trigger(document.querySelector('[data-live]'), 'refresh')")
        await tab.wait_for_load_state("networkidle")
        assert await _focused(operator) == made["id"][:21]
        await tab.keyboard.press("Enter")
        await expect(tab.get_by_role("heading", level=1)).to_have_text(made["id"])
        # The theme that was chosen stays.
        await _tab_to(operator, "◐")
        await tab.keyboard.press("Enter")
        await operator.open("/console")
        assert await tab.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_a_row_opens_with_a_click_and_a_phone_has_a_folded_menu(
    watched: Stack, browser: Browser, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Hello."))
    made = await watched.api().create(model)
    async with logged_in(browser, watched, width=375) as operator:
        tab = operator.tab
        link = tab.get_by_role("link", name="Responses", exact=True)
        await expect(link).to_be_hidden()
        await tab.get_by_role("button", name="Menu").click()
        await link.click()
        await expect(tab.get_by_role("heading")).to_have_text("Responses")
        await expect(link).to_be_hidden()
        await operator.open(f"/console/responses?model={model}")
        await expect(tab.get_by_text(model, exact=True)).to_be_in_viewport()
        await tab.locator("tbody").get_by_text("completed").click()
        await expect(tab.get_by_role("heading", level=1)).to_have_text(made["id"])


async def _focused(operator: Operator) -> str:
    """The text, or the name, of what has the focus."""
    focused: str = await operator.tab.evaluate(
        "document.activeElement.name || document.activeElement.textContent.trim()"
    )
    return focused


async def _tab_to(operator: Operator, wanted: str) -> None:
    for _ in range(60):
        await operator.tab.keyboard.press("Tab")
        if await _focused(operator) == wanted:
            return
    raise AssertionError(f"the keyboard does not reach {wanted}")


async def test_what_clients_send_runs_nowhere_and_every_page_is_legible(
    watched: Stack, browser: Browser, fake: FakeUpstream
) -> None:
    """Light and dark, wide and on a phone; a fault of a page is an error in its console."""
    api = watched.api()
    model = fake.script(reply(_EVIL))
    answered = (await api.create(model, input=_EVIL, metadata={_EVIL: _EVIL}))["id"]
    failed = await api.create_background(_EVIL, input=_EVIL)
    await api.wait_for_end(failed)
    project = await watched.value("SELECT 'proj_' || replace(min(id::text), '-', '') FROM projects")
    paths = (
        *(f"/console{page.path}" for page in MENU if Role.OPERATOR in page.allowed),
        *("/console/projects/new", f"/console/projects/{project}/keys/new"),
        f"/console/projects/{project}/edit",
        f"/console/responses/{failed}",
        f"/console/responses/act?action=fail&id={failed}",
        f"/console/responses/{answered}",
    )

    async def look(scheme: str, width: int) -> None:
        async with logged_in(browser, watched, scheme, width) as operator:
            tab = operator.tab
            for path in paths:
                await operator.open(path)
                await operator.check_legible(width, path)
            await tab.get_by_role("button", name="Show input and output").click()
            await expect(tab.locator(".of-client .markdown")).to_contain_text("onerror")
            await expect(tab.locator(".of-model .markdown")).to_contain_text("onerror")
            await tab.get_by_text("Every event, by number").click()
            await expect(tab.locator("[data-tail-state]")).to_have_text("complete")
            await expect(tab.locator(".events")).to_contain_text("onerror")
            await operator.check_legible(width, "with content")

    await asyncio.gather(look("light", 1280), look("dark", 375))
