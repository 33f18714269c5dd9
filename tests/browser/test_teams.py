"""A team gets its project by clicks, and looks at it with a login of its own."""

from playwright.async_api import Browser, expect

from models.ids import new_uuid
from tests.support.browser import logged_in
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack


async def test_a_project_a_key_and_a_login_are_made_by_clicks(
    watched: Stack, browser: Browser, fake: FakeUpstream
) -> None:
    name = f"clicked-{new_uuid().hex[-8:]}"
    async with logged_in(browser, watched) as operator:
        tab = operator.tab

        async def key_with(scope: str | None) -> str:
            await tab.get_by_role("link", name="New key").click()
            if scope is not None:
                await tab.get_by_role("checkbox", name="responses").uncheck()
                await tab.get_by_role("checkbox", name=scope).check()
            await tab.get_by_role("button", name="Make the key").click()
            key = await tab.locator("#key").inner_text()
            assert key not in tab.url
            await tab.get_by_role("link", name="To the project").click()
            await expect(tab.get_by_role("region", name="Keys")).to_contain_text(key[:8])
            assert key not in await tab.content()
            return key

        await operator.open("/console/projects")
        await tab.get_by_role("link", name="New project").click()
        await expect(tab.get_by_label("Name", exact=True)).to_be_focused()
        await tab.keyboard.type(name)
        await tab.get_by_label("Running", exact=True).fill("lots")
        await tab.keyboard.press("Enter")
        await expect(tab.get_by_label("Running")).to_be_focused()
        await expect(tab.locator(".wrong")).to_contain_text("valid integer")
        assert all("status of 400" in fault for fault in operator.faults)
        operator.faults.clear()
        await tab.get_by_label("Running").fill("7")
        await tab.get_by_role("button", name="Create the project").click()
        await expect(tab.get_by_role("heading", level=1)).to_have_text(name)
        await expect(tab.get_by_role("row").filter(has_text="running")).to_contain_text("7")
        api = watched.api(key=await key_with(None))
        made = await api.create(fake.script(reply("Of the team."), name="teams-model"))
        login = await key_with("console")
        await tab.get_by_role("button", name="Log out").click()
        await tab.get_by_role("textbox").fill(login)
        await tab.get_by_role("button", name="Log in").click()
        await expect(tab.get_by_role("heading", level=1)).to_have_text(name)
        await tab.get_by_role("link", name="Responses", exact=True).click()
        await tab.get_by_role("link", name=made["id"][:21]).click()
        await expect(tab.locator("main")).to_contain_text("teams-model")
        await expect(tab.get_by_role("link", name="Workers")).to_have_count(0)
