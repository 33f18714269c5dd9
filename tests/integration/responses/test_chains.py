"""`previous_response_id`: the history that the model gets in the second turn and in the tenth."""

import asyncio

import pytest

from tests.support.api import JSON, Api
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    done,
    fail,
    finish,
    hang,
    reasoning,
    refusal,
    reply,
    status,
    text,
    usage,
)

USER: JSON = {"role": "user", "content": "and now?"}


def roles_and_texts(messages: list[JSON]) -> list[tuple[str, str]]:
    """Role and plain text of each message."""
    return [(message["role"], _plain(message.get("content"))) for message in messages]


def _plain(content: object) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return str(content or "")


async def test_the_whole_chain_is_sent_in_order(api: Api, fake: FakeUpstream) -> None:
    previous = None
    for turn in range(10):
        model = fake.script(reply(f"answer {turn}"))
        response = await api.create(model, input=f"question {turn}", previous_response_id=previous)
        assert response["previous_response_id"] == previous
        previous = response["id"]
    expected = [
        (role, f"{text} {turn}")
        for turn in range(10)
        for role, text in (("user", "question"), ("assistant", "answer"))
    ]
    assert roles_and_texts(fake.requests_for(model)[0].messages) == expected[:-1]


async def test_a_chain_may_fork(api: Api, fake: FakeUpstream) -> None:
    root = await api.create(fake.script(reply("root")), input="start")
    first_fork, second_fork = fake.script(reply("l")), fake.script(reply("r"))
    await asyncio.gather(
        *(
            api.create(model, input=model, previous_response_id=root["id"])
            for model in (first_fork, second_fork)
        )
    )
    for model in (first_fork, second_fork):
        assert roles_and_texts(fake.requests_for(model)[0].messages) == [
            ("user", "start"),
            ("assistant", "root"),
            ("user", model),
        ]


async def test_instructions_and_sampling_are_not_inherited(api: Api, fake: FakeUpstream) -> None:
    first = await api.create(
        fake.script(reply("a")), instructions="Speak Latin.", temperature=0.1, metadata={"a": "b"}
    )
    model = fake.script(reply("b"))
    second = await api.create(model, previous_response_id=first["id"])
    assert roles_and_texts(fake.requests_for(model)[0].messages) == [
        ("user", "Hello."),
        ("assistant", "a"),
        ("user", "Hello."),
    ]
    assert "temperature" not in fake.requests_for(model)[0].body
    assert (second["instructions"], second["temperature"], second["metadata"]) == (None, 1, {})
    third = fake.script(reply("c"))
    await api.create(third, previous_response_id=second["id"], instructions="Speak Greek.")
    assert roles_and_texts(fake.requests_for(third)[0].messages)[0] == ("system", "Speak Greek.")


async def test_background_and_foreground_responses_continue_each_other(
    api: Api, fake: FakeUpstream
) -> None:
    first = await api.wait_for_end(await api.create_background(fake.script(reply("one"))))
    second = await api.create(fake.script(reply("two")), previous_response_id=first["id"])
    model = fake.script(reply("three"))
    third = await api.wait_for_end(
        await api.create_background(model, previous_response_id=second["id"])
    )
    assert third["status"] == "completed"
    assert [
        text
        for role, text in roles_and_texts(fake.requests_for(model)[0].messages)
        if role == "assistant"
    ] == ["one", "two"]


async def test_parallel_calls_become_one_assistant_message_followed_by_their_outputs(
    api: Api, fake: FakeUpstream
) -> None:
    calls = [call(0, "call_a", "look", '{"x":1}'), call(1, "call_b", "look", "")]
    tools = [
        {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    ]
    first = await api.create(
        fake.script([text("Looking."), *calls, finish("tool_calls"), usage(), done()]), tools=tools
    )
    assert [item["type"] for item in first["output"]] == [
        "message",
        "function_call",
        "function_call",
    ]
    outputs = [
        {"type": "function_call_output", "call_id": name, "output": name.upper()}
        for name in ("call_b", "call_a")
    ]
    model = fake.script(reply("done"))
    second = await api.create(
        model, previous_response_id=first["id"], input=[*outputs, USER], tools=tools
    )
    assert second["status"] == "completed"
    user, assistant, *rest = fake.requests_for(model)[0].messages
    assert user["role"] == "user"
    assert _plain(assistant["content"]) == "Looking."
    assert [
        (call_entry["id"], call_entry["function"]["arguments"])
        for call_entry in assistant["tool_calls"]
    ] == [
        ("call_a", '{"x":1}'),
        ("call_b", "{}"),
    ]
    assert sorted(
        (message["role"], message["tool_call_id"], _plain(message["content"]))
        for message in rest[:2]
    ) == [
        ("tool", "call_a", "CALL_A"),
        ("tool", "call_b", "CALL_B"),
    ]
    assert roles_and_texts(rest[2:]) == [("user", "and now?")]


async def test_a_call_without_its_output_blocks_the_chain(api: Api, fake: FakeUpstream) -> None:
    tools = [
        {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    ]
    first = await api.create(
        fake.script([call(0, "call_a", "look", "{}"), finish("tool_calls"), done()]), tools=tools
    )
    model = fake.script(reply("never"))
    refused = await api.call(
        "POST",
        "/responses",
        {"model": model, "input": "Well?", "previous_response_id": first["id"]},
    )
    assert refused.status == 400
    assert refused.error["message"] == "No tool output found for function call call_a."
    unmatched = {"type": "function_call_output", "call_id": "call_z", "output": "x"}
    refused = await api.call(
        "POST",
        "/responses",
        {"model": model, "input": [unmatched], "previous_response_id": first["id"]},
    )
    assert refused.status == 400
    assert fake.requests_for(model) == []


@pytest.mark.parametrize("continued", ["previous_response_id", "conversation"])
async def test_a_second_output_of_a_call_is_refused_with_a_message_that_says_so(
    api: Api, fake: FakeUpstream, continued: str
) -> None:
    place: JSON = {}
    if continued == "conversation":
        place = {"conversation": (await api.call("POST", "/conversations", {})).body["id"]}
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    calling = [call(0, "call_a", "look", "{}"), finish("tool_calls"), done()]
    response = await api.create(fake.script(calling), tools=tools, **place)
    output = {"type": "function_call_output", "call_id": "call_a", "output": "x"}
    for answer in ("seen", "and more"):
        if continued == "previous_response_id":
            place = {"previous_response_id": response["id"]}
        response = await api.create(
            fake.script(reply(answer)),
            input=[output] if answer == "seen" else "And now?",
            **place,
        )
    if continued == "previous_response_id":
        place = {"previous_response_id": response["id"]}
    body = {"model": fake.script(reply("never")), "input": [output], **place}
    refused = await api.call("POST", "/responses", body)
    assert (refused.status, refused.error["param"]) == (400, "input")
    assert refused.error["message"] == (
        "A function call output with call_id call_a is in the history already. Send only outputs "
        "that were not sent before."
    )


@pytest.mark.parametrize("continued", ["previous_response_id", "conversation", "input"])
async def test_a_call_that_was_cut_off_needs_no_output_but_may_have_one(
    api: Api, fake: FakeUpstream, continued: str
) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    place: JSON = {}
    if continued == "conversation":
        place = {"conversation": (await api.call("POST", "/conversations", {})).body["id"]}
    cut = fake.script([call(0, "call_a", "look", '{"a": "hal'), finish("length"), done()])
    response = await api.create(cut, tools=tools, **place)
    (item,) = response["output"]
    assert (response["status"], item["status"]) == ("incomplete", "incomplete")
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "x"}
    before = [{"role": "user", "content": "Hi."}, item] if continued == "input" else []
    if continued == "previous_response_id":
        place = {"previous_response_id": response["id"]}
    for answer in ([], [output]):
        model = fake.script(reply("done"))
        more = [*before, *answer, {"role": "user", "content": "Go on."}]
        ended = await api.create(model, input=more, tools=tools, **place)
        assert ended["status"] == "completed"
        outputs = [each for each in fake.requests_for(model)[0].messages if each["role"] == "tool"]
        assert [each["content"] for each in outputs][-1:] in ([], ["x"])
        assert not answer or outputs[-1]["content"] == "x"
    if continued == "input":
        return
    if continued == "previous_response_id":
        place = {"previous_response_id": ended["id"]}
    body = {"model": fake.script(reply("never")), "input": [output], **place}
    refused = await api.call("POST", "/responses", body)
    assert (refused.status, refused.error["param"]) == (400, "input")
    assert "is in the history already" in refused.error["message"]


@pytest.mark.parametrize(
    ("script", "status", "texts"),
    [
        ([text("half"), finish("length"), done()], "incomplete", ["half"]),
        ([text("half"), fail()], "failed", ["half"]),
        ([status(418)], "failed", []),
        ([refusal("no"), finish(), done()], "completed", ["no"]),
    ],
    ids=["incomplete", "failed with output", "failed without output", "refused"],
)
async def test_every_ended_response_can_be_continued_with_its_output(
    api: Api, fake: FakeUpstream, script: list[Step], status: str, texts: list[str]
) -> None:
    first = await api.wait_for_end(await api.create_background(fake.script(script)))
    assert first["status"] == status
    model = fake.script(reply("fine"))
    assert (await api.create(model, previous_response_id=first["id"], input=[USER]))[
        "output_text"
    ] == "fine"
    [request] = fake.requests_for(model)
    sent_texts = [
        _plain(message.get("content")) or message.get("refusal")
        for message in request.messages
        if message["role"] == "assistant"
    ]
    assert sent_texts == texts
    assert roles_and_texts(request.messages)[-1] == ("user", "and now?")


async def test_a_cancelled_response_may_be_continued(api: Api, fake: FakeUpstream) -> None:
    async with api.post_stream(fake.script([text("half"), hang()]), background=True) as stream:
        await stream.until("response.output_text.delta")
        await api.cancel(stream.response_id)
    model = fake.script(reply("fine"))
    await api.create(model, previous_response_id=stream.response_id)
    assert ("assistant", "half") in roles_and_texts(fake.requests_for(model)[0].messages)


async def test_a_deleted_response_cannot_be_continued(api: Api, fake: FakeUpstream) -> None:
    first = await api.create(fake.script(reply("x")))
    assert (await api.call("DELETE", f"/responses/{first['id']}")).status == 200
    refused = await api.call(
        "POST", "/responses", {"model": "x", "input": "y", "previous_response_id": first["id"]}
    )
    assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")


async def test_input_items_of_a_continuing_response_are_only_its_own(
    api: Api, fake: FakeUpstream
) -> None:
    first = await api.create(fake.script(reply("x")), input="one")
    second = await api.create(
        fake.script(reply("y")), input="two", previous_response_id=first["id"]
    )
    page = (await api.call("GET", f"/responses/{second['id']}/input_items")).body
    assert [item["content"][0]["text"] for item in page["data"]] == ["two"]


async def test_a_history_sent_in_full_reaches_the_model_unchanged(
    api: Api, fake: FakeUpstream
) -> None:
    first = await api.create(
        fake.script([reasoning("hm"), text("Bonn."), finish(), done()]), input="Capital?"
    )
    model = fake.script(reply("ok"))
    history = [
        {"role": "system", "content": "Rules."},
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "More rules."}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "Capital?"}]},
        *first["output"],  # reasoning and message with ids and status, as such a client sends them
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Or Berlin."},
        {"role": "user", "content": "Sure!"},
    ]
    assert (await api.create(model, input=history))["status"] == "completed"
    sent = roles_and_texts(fake.requests_for(model)[0].messages)
    assert [text for _, text in sent if text] == [
        "Rules.",
        "More rules.",
        "Capital?",
        "Bonn.",
        "Sure?",
        "Or Berlin.",
        "Sure!",
    ]
    assert [role for role, _ in sent if role not in ("system", "developer")][:2] == [
        "user",
        "assistant",
    ]
    items = (
        await api.call(
            "GET",
            f"/responses/{(await api.create(model, input=history))['id']}/input_items?order=asc",
        )
    ).body["data"]
    assert len(items) == len(history)
    assert all(item["id"] for item in items)
