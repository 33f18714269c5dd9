"""Who may open the console, and what stops everybody else."""

import asyncio
import subprocess
import sys

import pytest

from features.console.access import OPERATOR_TOKEN as OPERATOR_SESSION
from models.console_links import create_link, hash_token, new_token
from tests.support.console import OPERATOR_TOKEN, READ_ONLY_TOKEN, ConsoleUser, console_user
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_PAGES = ["/console", "/console/responses", "/console/responses/act?action=cancel"]


@pytest.mark.parametrize("path", [*_PAGES, "/console/responses/resp_" + "0" * 32 + "/events"])
async def test_nothing_is_shown_without_a_login(shared_stack: Stack, path: str) -> None:
    async with console_user(shared_stack) as user:
        answer = await user.get(path, follows=False)
        assert answer.status == 303
        assert answer.headers["location"].startswith("/console/login")
        refused = await user.post("/console/responses/act", [("action", "cancel")], follows=False)
        assert refused.status == 303


async def test_a_token_logs_in_until_the_logout(shared_stack: Stack) -> None:
    async with console_user(shared_stack) as user:
        wrong = await user.log_in("wrong-token-of-tests")
        assert (wrong.status, "not valid" in wrong.text) == (403, True)
        assert (await user.get("/console", follows=False)).status == 303
        page = await user.log_in(OPERATOR_TOKEN)
        assert (page.status, "Overview" in page.text) == (200, True)
        [cookie] = [each for each in user.session.cookie_jar if each.key == "backburner-console"]
        assert (cookie["httponly"], cookie["samesite"]) == (True, "strict")
        left = await user.post("/console/logout", [("form_token", page.form_token)])
        assert "Log in" in left.text
        # Also for somebody who has copied the cookie.
        copied = {"cookie": f"backburner-console={cookie.value}"}
        assert (await user.get("/console", copied, follows=False)).status == 303
    actions = "SELECT string_agg(action, ' ' ORDER BY at) FROM audit WHERE os_user = %s"
    done = await shared_stack.value(actions, "console (operator token)")
    assert "console.login" in done
    assert "console.logout" in done


async def test_only_hashes_of_tokens_are_stored(shared_stack: Stack) -> None:
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        [cookie] = [each for each in user.session.cookie_jar if each.key == "backburner-console"]
        stored = await shared_stack.value(
            "SELECT count(*) FROM console_sessions WHERE hash = %s", hash_token(cookie.value)
        )
        assert stored == 1


async def test_a_link_logs_in_once(shared_stack: Stack) -> None:
    token = await asyncio.to_thread(create_link, shared_stack.dsn)
    async with console_user(shared_stack) as first, console_user(shared_stack, web=1) as second:
        answers = await asyncio.gather(
            first.get(f"/console/login?link={token}"), second.get(f"/console/login?link={token}")
        )
        assert sorted(answer.status for answer in answers) == [200, 403]
        used = next(answer for answer in answers if answer.status == 403)
        assert "was used" in used.text
        winner, loser = (first, second) if answers[0].status == 200 else (second, first)
        assert "Overview" in (await winner.get("/console")).text
        assert (await loser.get("/console", follows=False)).status == 303


async def test_an_old_link_does_not_log_in(shared_stack: Stack) -> None:
    token = new_token()
    await shared_stack.value(
        "INSERT INTO console_links VALUES (%s, now() - interval '1 second') RETURNING 1",
        hash_token(token),
    )
    async with console_user(shared_stack) as user:
        assert (await user.get(f"/console/login?link={token}")).status == 403


def test_the_command_prints_a_link(shared_stack: Stack) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "cli.main", "console"],
        env=shared_stack.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "/console/login?link=" in printed.stdout


async def test_guesses_of_an_address_are_slowed_and_then_refused(shared_stack: Stack) -> None:
    async with console_user(shared_stack) as user:
        form = await user.get("/console/login")
        fields = [("form_token", form.form_token), ("token", "guess"), ("next", "")]
        address = {"x-forwarded-for": "203.0.113.77"}

        async def guess() -> int:
            return (await user.post("/console/login", fields, address)).status

        statuses = await asyncio.gather(*(guess() for _ in range(60)))
        assert set(statuses) == {403, 429}
        # A right token is accepted, also from the address of whoever guesses.
        right = [*fields[:1], ("token", OPERATOR_TOKEN), ("next", "")]
        assert (await user.post("/console/login", right, address)).status == 200
        link = await asyncio.to_thread(create_link, shared_stack.dsn)
        assert (await user.get(f"/console/login?link={link}", address)).status == 200


async def _form(user: ConsoleUser) -> str:
    return (await user.get("/console")).form_token


async def test_a_form_of_another_site_changes_nothing(shared_stack: Stack) -> None:
    """Each of these alone stops it: the origin, what the browser says, the token of the form."""
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        right = [("form_token", await _form(user))]
        wrong = [("form_token", "0" * 64)]
        refusals = [
            await user.post("/console/logout", right, {"origin": "https://evil.example"}),
            await user.post("/console/logout", right, {"sec-fetch-site": "cross-site"}),
            await user.post("/console/logout", right, {"origin": "null"}),
            await user.post("/console/logout", wrong),
            await user.post("/console/logout", []),
        ]
        assert [refusal.status for refusal in refusals] == [403] * 5
        assert (await user.get("/console", follows=False)).status == 200


async def test_a_login_leads_nowhere_but_to_the_console(shared_stack: Stack) -> None:
    for target in ("https://evil.example", "//evil.example", "/console//evil.example", "/v1"):
        async with console_user(shared_stack) as user:
            form = await user.get("/console/login")
            fields = [("form_token", form.form_token), ("token", OPERATOR_TOKEN), ("next", target)]
            answer = await user.post("/console/login", fields, follows=False)
            assert (answer.status, answer.headers["location"]) == (303, "/console")


async def test_who_only_looks_cannot_act(shared_stack: Stack, fake: FakeUpstream) -> None:
    model = fake.script(reply("Hello."))
    response_id = (await shared_stack.api().create(model))["id"]
    path = f"/console/responses/{response_id}"
    async with console_user(shared_stack, READ_ONLY_TOKEN) as user:
        page = await user.get("/console/responses")
        assert response_id in page.html
        assert "Requeue" not in page.text
        one = await user.get(path)
        assert "Show input and output" not in one.text
        fields = [("form_token", page.form_token), ("action", "cancel"), ("id", response_id)]
        for answer in (
            await user.get(f"/console/responses/act?action=cancel&id={response_id}"),
            await user.post("/console/responses/act", fields),
            await user.post("/console/reveal", fields),
        ):
            assert (answer.status, "only allows you to look" in answer.text) == (403, True)
        left = await user.post("/console/logout", [("form_token", page.form_token)])
        assert "Log in" in left.text


@pytest.mark.parametrize("path", [*_PAGES, "/console/login", "/console/nothing"])
async def test_pages_allow_nothing_but_their_own_files(shared_stack: Stack, path: str) -> None:
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await user.get(path)
        assert page.headers["content-security-policy"] == _CSP
        assert page.headers["cache-control"] == "no-store"
        assert "<style" not in page.html
        assert " style=" not in page.html
        assert "<script>" not in page.html
        others = page.html.replace("http://www.w3.org", "").replace(user.origin, "")
        assert "://" not in others


async def test_the_host_of_a_request_is_checked(shared_stack: Stack) -> None:
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await user.get("/console", {"host": "evil.example"})
        assert (page.status, "BACKBURNER_ALLOWED_HOSTS" in page.text) == (403, True)


async def test_a_proxy_may_name_the_user(tool_stack: Stack) -> None:
    async with console_user(tool_stack) as user:
        unknown = await user.get("/console", follows=False)
        assert unknown.headers["location"] == "/behind/proxy/console/login"
        user.headers = {"x-forwarded-user": "ada", "x-forwarded-groups": "staff, admins"}
        page = await user.get("/console")
        assert (page.status, "operator" in page.text) == (200, True)
        assert 'title="ada"' in page.html
        # The path of the cookie is the one before the proxy, which this client does not have.
        user.headers["cookie"] = page.headers["set-cookie"].partition(";")[0]
        fields = [("form_token", page.form_token), ("action", "cancel"), ("id", "resp_" + "0" * 32)]
        acted = await user.post("/console/responses/act", fields, follows=False)
        assert acted.status == 303
        assert acted.headers["location"] == "/behind/proxy/console/responses"
        assert (
            await tool_stack.value("SELECT count(*) FROM console_sessions WHERE name = 'ada'") == 1
        )
        logins = "SELECT count(*) FROM audit WHERE action = 'console.login' AND os_user = 'ada'"
        assert await tool_stack.value(logins) == 1
        # The cookie is worth nothing without the proxy.
        alone = await user.get("/console", {"x-forwarded-user": ""}, follows=False)
        assert alone.headers["location"] == "/behind/proxy/console/login"
        named = await user.get("/console", {"x-forwarded-user": OPERATOR_SESSION}, follows=False)
        assert named.status == 303
        user.headers |= {"x-forwarded-user": "bob", "x-forwarded-groups": "support"}
        assert "read-only" in (await user.get("/console")).text
        user.headers = {"x-forwarded-user": "eve", "x-forwarded-groups": "*"}
        assert (await user.get("/console")).status == 403


async def test_another_sender_than_the_proxy_names_no_user(shared_stack: Stack) -> None:
    """Nothing is configured there: the header counts for nothing."""
    async with console_user(shared_stack) as user:
        user.headers = {"x-forwarded-user": "ada", "x-forwarded-groups": "admins"}
        assert (await user.get("/console", follows=False)).status == 303


async def test_every_address_is_below_the_prefix(tool_stack: Stack) -> None:
    async with console_user(tool_stack) as user:
        user.headers = {"x-forwarded-user": "ada", "x-forwarded-groups": "admins"}
        for path in ("/console", "/console/responses?model=m"):
            page = await user.get(path)
            addresses = [
                address
                for mark in ('href="', 'src="', 'action="', 'hx-get="')
                for address in page.html.split(mark)[1:]
            ]
            assert addresses
            outside = [each[:40] for each in addresses if not each.startswith(("/behind/", "#"))]
            assert not outside
        root = await user.get("/", {"accept": "text/html"}, follows=False)
        assert root.headers["location"] == "/behind/proxy/console"


async def test_browsers_are_sent_to_the_console_and_clients_are_not(shared_stack: Stack) -> None:
    async with console_user(shared_stack) as user:
        browser = await user.get("/", {"accept": "text/html,*/*"}, follows=False)
        assert (browser.status, browser.headers["location"]) == (303, "/console")
        client = await user.get("/", {"accept": "application/json"}, follows=False)
        assert (client.status, "unknown_url" in client.html) == (404, True)
