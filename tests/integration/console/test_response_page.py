"""The page of one response: a conversation to read, its figures, and who sees what of it."""

import json
import re
from html import unescape

import pytest

from tests.support.api import JSON, Api
from tests.support.console import (
    OPERATOR_TOKEN,
    READ_ONLY_TOKEN,
    ConsolePage,
    ConsoleUser,
    console_user,
)
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    delta,
    done,
    finish,
    reasoning,
    refusal,
    reply,
    text,
    usage,
)
from tests.support.images import b64, png
from tests.support.stack import Stack

_WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
_EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
_PARTS = ("related", "items?direction=input", "items?direction=output", "json", "events")


@pytest.fixture
async def chain(api: Api, fake: FakeUpstream) -> list[JSON]:
    """A call of a client's tool, and the response that answers with its result."""
    model = fake.script(
        [
            reasoning("A thought."),
            call(0, "call_1", "weather", '{"city": "Ulm"}'),
            *(finish("tool_calls"), usage(), done()),
        ],
        reply("It is **cold** in Ulm. ![A map](https://x.example/map.png)"),
    )
    tools = [_WEATHER]
    first = await api.create(
        model, input="What is the weather?", tools=tools, instructions="Rhyme."
    )
    result = {"type": "function_call_output", "call_id": "call_1", "output": '{"degrees": 3}'}
    user = {"safety_identifier": "user-7"}
    previous = {"previous_response_id": first["id"]}
    second = await api.create(model, input=[result], tools=tools, **previous, **user)
    return [first, second]


async def _revealed(user: ConsoleUser, response: JSON) -> ConsolePage:
    page = await user.reveal(f"/console/responses/{response['id']}")
    assert page.status == 200, page.text
    return page


async def test_a_chain_reads_like_a_conversation(shared_stack: Stack, chain: list[JSON]) -> None:
    first, second = chain
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await _revealed(user, first)
        for words in ("Rhyme.", "What is the weather?", "Reasoning", "weather", second["id"][:21]):
            assert words in page.text, words
        [folded] = re.findall(r'<details class="entry call".*?</details>', page.html, re.DOTALL)
        assert "Arguments" in folded
        assert "&#34;city&#34;: &#34;Ulm&#34;" in folded
        assert re.search(r'<details class="entry reasoning"[^>]*><summary><b>Reasoning', page.html)
        page = await user.get(f"/console/responses/{second['id']}")
        assert "It is <strong>cold</strong> in Ulm." in page.html
        assert "<img" not in page.html
        assert ">Image: A map</a>" in page.html
        assert "user-7" in page.text
        assert f"/console/responses/{first['id']}" in page.html
        before = await user.get(f"/console/responses/{first['id']}/related")
        assert "What is the weather?" in before.text


async def test_figures_and_times_are_on_the_page_without_any_content(
    shared_stack: Stack, chain: list[JSON]
) -> None:
    async with console_user(shared_stack, READ_ONLY_TOKEN) as user:
        page = await user.get(f"/console/responses/{chain[1]['id']}")
        for words in ("In line", "Duration", "Tokens in", "tokens/s"):
            assert words in page.text, words
        assert "Turn 1" in page.text
        assert re.search(r"Created \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", page.text)


async def test_who_only_looks_sees_no_content_anywhere(
    shared_stack: Stack, chain: list[JSON]
) -> None:
    async with console_user(shared_stack, READ_ONLY_TOKEN) as user:
        for response in chain:
            path = f"/console/responses/{response['id']}"
            item = response["output"][-1]["id"]
            pages = [await user.get(path), await user.get(f"{path}/item?item={item}")]
            pages += [await user.get(f"{path}/{part}") for part in _PARTS]
            pages.append(await user.post("/console/reveal", [("form_token", pages[0].form_token)]))
            pages.append(await user.get(path))
            for page in pages:
                for secret in ("Ulm", "Rhyme", "weather?", "thought", "degrees"):
                    assert secret not in page.html, secret
            assert [page.status for page in pages] == [200, 403, 403, 403, 403, 403, 200, 403, 200]


async def test_what_models_and_clients_write_is_never_part_of_a_page(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    link = f"[click](javascript:alert(3)) {_EVIL}"
    model = fake.script(
        [
            *(reasoning(_EVIL), text(link), call(0, "call_1", "weather", json.dumps(_EVIL))),
            *(finish("tool_calls"), usage(), done()),
        ],
        [refusal(_EVIL), finish(), usage(), done()],
    )
    parts = [
        {"type": "input_text", "text": link},
        {"type": "input_image", "image_url": "https://x.example/cat.png"},
    ]
    options = {"instructions": _EVIL, "tools": [_WEATHER]}
    asked = await api.create(model, input=[{"role": "user", "content": parts}], **options)
    refused = await api.create(model, input=_EVIL)
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        for response in (asked, refused):
            path = f"/console/responses/{response['id']}"
            pages = [await _revealed(user, response)]
            pages += [await user.get(f"{path}/{part}") for part in _PARTS[:-1]]
            for item in response["output"]:
                pages.append(await user.get(f"{path}/item?item={item['id']}"))
            for page in pages:
                assert page.status == 200, page.text
                assert "<img" not in page.html
                assert "<script>" not in page.html
                assert 'href="javascript' not in page.html.lower()
                assert " style=" not in page.html


async def test_a_large_output_is_cut_and_whole_on_a_page_of_its_own(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    end = "The end of it."
    model = fake.script(reply("word " * 60_000, end), reply("[word] " * 60_000, end))
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        for beginning in ("word word", "[word] [word]"):
            page = await _revealed(user, await api.create(model))
            assert len(page.html) < 100_000
            assert beginning in page.text
            assert end not in page.html
            address = re.search(
                r'href="(/console/responses/[^"]*/item\?[^"]*)">Show all', page.html
            )
            assert address is not None
            assert end in (await user.get(address[1])).html


async def test_all_items_of_a_long_input_are_listed(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    items = [{"role": "user", "content": f"question {n}."} for n in range(70)]
    made = await api.create(fake.script(reply("Yes.")), input=items)
    path = f"/console/responses/{made['id']}"
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await _revealed(user, made)
        assert "question 69." in page.text
        assert "question 0." not in page.text
        listed = await user.get(f"{path}/items?direction=input")
        assert "question 0." in listed.text
        assert "question 69." not in listed.text
        following = re.search(r'rel="next" href="([^"]*)"', listed.html)
        assert following is not None
        assert "question 69." in (await user.get(following[1].replace("&amp;", "&"))).text
        for missing in (f"{path}/item?item=msg_0", f"{path}/items?direction=sideways"):
            assert (await user.get(missing)).status in (400, 404)


async def test_a_failure_is_said_once_above_everything(shared_stack: Stack, api: Api) -> None:
    failed = await api.create_background("a-model-that-nobody-has")
    ended = await api.wait_for_end(failed)
    message = ended["error"]["message"].rstrip(".")
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await user.get(f"/console/responses/{failed}")
        visible = re.sub(r"<details.*?</details>", "", page.html, flags=re.DOTALL)
        shown = ConsolePage(200, {}, visible).text
        assert shown.count(message) == 1
        assert shown.index(message) < shown.index("Duration")


async def test_an_image_that_was_made_is_shown_to_those_who_may_read(
    shared_stack: Stack, fake: FakeUpstream, api: Api
) -> None:
    content = png(4, 1200)
    url = f"data:image/png;base64,{b64(content)}"
    images = [{"type": "image_url", "image_url": {"url": url}}]
    model = fake.script([delta({"images": images}), text("A grey dot."), finish(), done()])
    response = await api.create(model)
    item = next(each for each in response["output"] if each["type"] == "image_generation_call")
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        path = f"/console/responses/{response['id']}/image?item={item['id']}"
        assert (await user.get(path)).status == 403
        page = await _revealed(user, response)
        [address] = re.findall(r'<img class="picture"[^>]* src="([^"]+)"', page.html)
        assert unescape(address) == path
        assert b64(content)[:100] not in page.html
        assert "A grey dot." in page.text
        async with user.session.get(f"{user.origin}{path}") as shown:
            assert (shown.content_type, await shown.read()) == ("image/png", content)
        assert (await user.get(path[:-1])).status == 404
