"""What the pages of the console show, and that nothing of a client is ever part of a page."""

import hashlib
import json

import pytest

from tests.support.api import JSON, UNKNOWN_RESPONSE_ID, Api, until
from tests.support.console import OPERATOR_TOKEN, ConsoleUser, console_user
from tests.support.fake_upstream import FakeUpstream, hang, reply, text
from tests.support.stack import ROOT, Stack

_HTMX_SHA256 = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
"""Of dist/htmx.min.js in the package htmx.org 2.0.11 of npm."""
_EVIL = "<script>alert(1)</script>"


def test_the_script_of_others_is_the_one_that_was_published() -> None:
    file = ROOT / "features/console/static/htmx-2.0.11.min.js"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == _HTMX_SHA256


@pytest.fixture(scope="module")
def model(fake: FakeUpstream) -> str:
    """A model that answers with a short text."""
    return fake.script(reply("The answer of the model."))


async def _listed(user: ConsoleUser, query: str) -> str:
    page = await user.get(f"/console/responses?{query}")
    assert page.status == 200, page.text
    return page.html


async def test_filters_are_in_the_url(shared_stack: Stack, api: Api, model: str) -> None:
    wanted = await api.create(model, metadata={"team": "console-test", "n": "1"})
    options = {"completion_window": "8h", "continuation_id": "console-thread"}
    metadata = {"team": "console-test", "n": "2"}
    created = await api.create_background(model, metadata=metadata, background_options=options)
    other = await api.wait_for_end(created)
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        for query, shows_wanted, shows_other in (
            ("metadata=team%3Dconsole-test", True, True),
            ("metadata=n%3D1", True, False),
            (
                f"status=completed&model={model}&metadata=n%3D1&since=1h&project=default",
                True,
                False,
            ),
            ("status=failed&metadata=n%3D1", False, False),
            ("model=other&metadata=n%3D1", False, False),
            ("upstream=default&metadata=n%3D2", False, True),
            ("reason=deadline&metadata=n%3D2", False, False),
            ("window=8h&continuation=console-thread", False, True),
            ("window=2h&metadata=n%3D2", False, False),
            ("missed=yes&metadata=n%3D2", False, False),
        ):
            html = await _listed(user, query)
            assert (wanted["id"] in html, other["id"] in html) == (shows_wanted, shows_other), query
        assert "console-thread" in (await user.get(f"/console/responses/{created}")).html
        found = await user.get(f"/console/responses?id={wanted['id'][:30]}", follows=False)
        assert found.headers["location"] == f"/console/responses/{wanted['id']}"


async def test_pages_of_the_list_follow_one_another(
    shared_stack: Stack, api: Api, model: str
) -> None:
    made = [(await api.create(model, metadata={"pages": "1"}))["id"] for _ in range(3)]
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        html = await _listed(user, f"metadata=pages%3D1&before={made[2]}")
        assert [f'id="open-{each}"' in html for each in made] == [True, True, False]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("status=unknown", "There is no status unknown"),
        ("since=yesterday", "no duration such as"),
        ("window=24h", "There is no window 24h"),
        ("metadata=key", "Write metadata as key=value"),
        ("before=resp_1", "no id of a response"),
        ("id=resp_0000000000", "There is no response"),
    ],
)
async def test_a_filter_that_cannot_be_read_is_explained(
    shared_stack: Stack, query: str, words: str
) -> None:
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await user.get(f"/console/responses?{query}")
        assert (page.status, words in page.text) == (400, True), page.text


async def test_an_unknown_page_or_response_is_a_page_that_says_so(shared_stack: Stack) -> None:
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        for path in (
            "/console/nothing",
            f"/console/responses/{UNKNOWN_RESPONSE_ID}",
            "/console/responses/resp_x",
            "/console/static/../app.py",
            f"/console/responses/{UNKNOWN_RESPONSE_ID}/events",
        ):
            page = await user.get(path)
            assert page.status == 404, path
            assert "<h1>" in page.html


async def test_what_clients_send_is_text_on_every_page(shared_stack: Stack, api: Api) -> None:
    failed = await api.create_background(_EVIL, metadata={_EVIL: _EVIL}, input=_EVIL)
    await api.wait_for_end(failed)
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        pages = [
            await user.get("/console/responses"),
            await user.get(f"/console/responses?model={_EVIL}&id={_EVIL}&since={_EVIL}"),
            await user.get(f"/console/responses/{failed}"),
            await user.get(f"/console/responses/{_EVIL}"),
            await user.get(f"/console/responses/act?action={_EVIL}&id={failed}"),
            await user.get(f"/console/login?next={_EVIL}&link={_EVIL}"),
        ]
        shown = await user.reveal(f"/console/responses/{failed}")
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown.html
        for page in [*pages, shown]:
            assert "<script>alert" not in page.html


async def test_input_and_output_are_shown_when_asked_for(
    shared_stack: Stack, api: Api, model: str
) -> None:
    made = await api.create(model, input="A secret question.")
    answer = made["output"][-1]["content"][0]["text"]
    path = f"/console/responses/{made['id']}"
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        hidden = await user.get(path)
        assert "A secret question." not in hidden.html
        assert answer not in hidden.html
        assert "response.reveal" not in await _audited(shared_stack, made["id"])
        shown = await user.reveal(path)
        assert "A secret question." in shown.text
        assert " ".join(answer.split()) in shown.text
        assert "response.reveal" in await _audited(shared_stack, made["id"])
        await user.post("/console/hide", [("form_token", shown.form_token), ("next", path)])
        assert "A secret question." not in (await user.get(path)).html
    asked = "SELECT count(*) FROM audit WHERE action = %s"
    assert await shared_stack.value(asked, "console.reveal") >= 1


async def _audited(stack: Stack, object_id: str) -> str:
    query = (
        "SELECT coalesce(string_agg(action || ' by ' || os_user, ', '), '')"
        " FROM audit WHERE object = %s"
    )
    done: str = await stack.value(query, object_id)
    return done


async def test_an_operator_cancels_after_a_confirmation(
    shared_stack: Stack, api: Api, fake: FakeUpstream, model: str
) -> None:
    running = await api.create_background(fake.script([text("x"), hang()]))
    ended = (await api.create(model))["id"]
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        ids = f"id={running}&id={ended}"
        page = await user.get(f"/console/responses/act?action=cancel&{ids}")
        assert "Cancel 2 responses?" in page.text

        async def shows_progress(response_id: str) -> bool:
            return "Output tokens" in (await user.get(f"/console/responses/{response_id}")).text

        await until(lambda: shows_progress(running))
        assert not await shows_progress(ended)
        assert (await api.get(running))["status"] in ("queued", "in_progress")
        fields = [
            ("form_token", page.form_token),
            ("action", "cancel"),
            ("id", running),
            ("id", ended),
        ]
        done = await user.post("/console/responses/act", fields)
        assert "cancel requested" in done.text
        assert "Not done with 1 response: it has already ended as completed." in done.text
        assert "Not done" not in (await user.get("/console/responses")).text, "it is shown once"
        assert (await api.wait_for_end(running))["status"] == "cancelled"
        again = await user.post("/console/responses/act", fields[:-1])
        assert "it was cancelled before" in again.text, "as over the API, that is no error"
        assert "Not done" not in again.text
        back = ("back", "/console/responses?status=cancelled&model=m")
        kept = await user.post("/console/responses/act", [*fields[:-1], back], follows=False)
        assert kept.headers["location"] == "/console/responses?status=cancelled&model=m"
        elsewhere = ("back", "//elsewhere.example/console")
        lost = await user.post("/console/responses/act", [*fields[:-1], elsewhere], follows=False)
        assert lost.headers["location"] == "/console/responses"
        assert (
            await _audited(shared_stack, running) == "response.cancel by console (operator token)"
        )
        assert not await _audited(shared_stack, ended)
        one = await user.get(f"/console/responses/{running}")
        assert "a cancel was recorded" in one.text
        assert "ended as cancelled" in one.text


async def _lines(user: ConsoleUser, path: str, headers: dict[str, str] | None = None) -> list[JSON]:
    """The lines of a tail, to its end."""
    async with user.session.get(f"{user.origin}{path}", headers=headers) as answer:
        assert answer.content_type == "text/event-stream"
        blocks = (await answer.read()).split(b"\n\n")
    data = [block.partition(b"data: ")[2] for block in blocks if block.startswith(b"id: ")]
    return [json.loads(each) for each in data]


async def test_the_tail_has_every_event_by_number_and_no_text(
    shared_stack: Stack, api: Api, model: str
) -> None:
    made = await api.create(model)
    path = f"/console/responses/{made['id']}/events"
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        lines = await _lines(user, path)
        numbers = [n for line in lines for n in range(line["first"], line["last"] + 1)]
        assert numbers == list(range(len(numbers)))
        assert lines[-1]["type"] == "response.completed"
        answer = made["output"][-1]["content"][0]["text"]
        assert answer not in json.dumps(lines)
        later = await _lines(user, path, {"last-event-id": str(numbers[-2])})
        assert [line["type"] for line in later] == ["response.completed"]


async def test_static_files_are_kept_by_browsers_as_long_as_their_hash_is_named(
    shared_stack: Stack,
) -> None:
    async with console_user(shared_stack) as user:
        html = (await user.get("/console/login")).html
        address = html.split('rel="stylesheet" href="')[1].split('"')[0]
        named = await user.get(address)
        assert "immutable" in named.headers["cache-control"]
        assert named.headers["content-type"].startswith("text/css")
        other = await user.get("/console/static/console.css?v=0")
        assert other.headers["cache-control"] == "public, max-age=60"


async def test_the_page_of_the_api_is_prose_and_runs_nothing(shared_stack: Stack) -> None:
    async with console_user(shared_stack) as user:
        page = await user.get("/docs")
        assert "<strong>Keys.</strong> Every path under <code>/v1</code>" in page.html
        assert "`" not in page.html.partition("<h2>Schemas")[0]
        assert "Bearer &lt;key&gt;" in page.html


async def test_the_overview_says_what_is_wrong(shared_stack: Stack) -> None:
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await user.get("/console")
        assert "Running" in page.text
        assert "of 333 slots, 1 worker" in page.text or "slots, 1 worker" in page.text
        assert "web_search has no provider" in page.text
