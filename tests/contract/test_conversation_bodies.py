"""What is wrong in a request about a conversation is named, and nothing of it is written (contract §1, §5.1)."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from models import keys
from tests.support.api import JSON, Api, HttpResponse
from tests.support.stack import Stack
from tests.unit.wire.test_request_json import BAD

NOWHERE = "conv_01a1fc89ade272e095a74eaedfc80911"
USER = {"role": "user", "content": "x"}


class Room:
    """A project with one empty conversation, to which nothing may ever be added."""

    def __init__(
        self, api: Api, project: str, conversation: str, books: psycopg.AsyncConnection
    ) -> None:
        self.api = api
        self.conversation = conversation
        self._project = project
        self._books = books

    async def refused(
        self,
        answered: HttpResponse,
        status: int,
        param: str | None,
        code: str | None,
        message: str | None = None,
    ) -> None:
        """That this answer is this refusal, and that it left nothing behind."""
        assert answered.status == status, answered.raw[:1000]
        error = answered.error
        assert (error["type"], error["param"], error["code"]) == (
            "invalid_request_error",
            param,
            code,
        ), error
        assert message in (None, error["message"]), error
        cursor = await self._books.execute(
            "SELECT count(*), max(c.revision), max(c.metadata::text), (SELECT count(*) FROM items i WHERE i.conversation_id = min(c.id::text)::uuid) "
            "FROM conversations c JOIN projects p ON p.id = c.project_id WHERE p.name = %s",
            (self._project,),
        )
        assert await cursor.fetchone() == (1, 0, "{}", 0)


@pytest.fixture(scope="module")
async def room(shared_stack: Stack) -> AsyncIterator[Room]:
    name = f"room {secrets.token_hex(4)}"
    api = shared_stack.api(key=keys.create(shared_stack.dsn, name))
    made = await api.call("POST", "/conversations", {})
    async with await psycopg.AsyncConnection.connect(shared_stack.dsn, autocommit=True) as books:
        yield Room(api, name, made.body["id"], books)


def too_many(found: int) -> str:
    return f"Invalid 'items': array too long. Expected an array with maximum length 20, but got an array with length {found} instead."


ITEMS: list[tuple[str, Any, str, str, str | None]] = [
    ("no list", "Hi.", "items", "invalid_type", "Invalid type for 'items': expected an array, but got a string instead."),
    ("an object", {}, "items", "invalid_type", None),
    ("too many", [USER] * 21, "items", "array_above_max_length", too_many(21)),
    ("far too many", [USER] * 5000, "items", "array_above_max_length", too_many(5000)),
    ("no item", [USER, 1], "items[1]", "invalid_type", None),
    ("null", [None], "items[0]", "invalid_type", None),
    ("no type", [{}], "items[0].type", "missing_required_parameter", "Missing required parameter: 'items[0].type'."),
    ("another type", [USER, {"type": "thought"}], "items[1].type", "invalid_value", None),
    ("another role", [{"role": "king", "content": "x"}], "items[0].role", "invalid_value", None),
    ("no content", [{"role": "user"}], "items[0].content", "missing_required_parameter", None),
    ("a part of another type", [{"role": "user", "content": [{"type": "x"}]}], "items[0].content[0].type", "invalid_value", None),
    ("a number for text", [{"role": "user", "content": [{"type": "input_text", "text": 1}]}], "items[0].content[0].text", "invalid_type", None),
    ("a call without a name", [{"type": "function_call", "call_id": "c", "arguments": "{}"}], "items[0].name", "missing_required_parameter", None),
    ("an id of another type", [{**USER, "id": 1}], "items[0].id", "invalid_type", None),
    ("the same id twice", [{**USER, "id": "a"}, {**USER, "id": "a"}], "items", "invalid_value", None),
    ("somebody else's compaction", [USER, {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}], "items[1].encrypted_content", "invalid_encrypted_content", None),
    ("a trigger", [USER, {"type": "compaction_trigger"}], "items[1]", "invalid_value", None),
    ("a reference to nothing", [USER, {"type": "item_reference", "id": "msg_nowhere"}], "items[1]", "item_not_found", None),
    ("a file of ours", [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "items[0].content[0].file_id", "unsupported_parameter", None),
    (
        "a file in the cellar",
        [{"role": "user", "content": [{"type": "input_file", "file_url": "http://169.254.169.254/x"}]}],
        "items[0].content[0].file_url",
        "invalid_value",
        None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("items", "param", "code", "message"), [pytest.param(*row[1:], id=row[0]) for row in ITEMS]
)
async def test_a_wrong_item_is_named_wherever_it_is_added(
    room: Room, items: Any, param: str, code: str, message: str | None
) -> None:
    for path in ("/conversations", f"/conversations/{room.conversation}/items"):
        await room.refused(
            await room.api.call("POST", path, {"items": items}), 400, param, code, message
        )


UNPAIRED: list[tuple[JSON, str]] = [
    ({"type": "function_call_output", "call_id": "c", "output": "x"}, "No tool call found for function call output with call_id c."),
    ({"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}, "No approval request found for MCP approval response with approval_request_id 'a'."),
]  # fmt: skip


@pytest.mark.parametrize(("item", "message"), UNPAIRED, ids=["output", "approval"])
async def test_an_answer_to_nothing_is_refused(room: Room, item: JSON, message: str) -> None:
    for path in ("/conversations", f"/conversations/{room.conversation}/items"):
        await room.refused(
            await room.api.call("POST", path, {"items": [USER, item]}), 400, "items", None, message
        )


BODIES: list[tuple[str, str, JSON, str, str]] = [
    ("items are missing", "/items", {}, "items", "missing_required_parameter"),
    ("items are null", "/items", {"items": None}, "items", "missing_required_parameter"),
    ("items are empty", "/items", {"items": []}, "items", "empty_array"),
    (
        "metadata with items",
        "/items",
        {"items": [USER], "metadata": {}},
        "metadata",
        "unknown_parameter",
    ),
    ("metadata is missing", "", {}, "metadata", "missing_required_parameter"),
    ("metadata is a list", "", {"metadata": []}, "metadata", "invalid_type"),
    ("metadata of numbers", "", {"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    (
        "metadata of 17 pairs",
        "",
        {"metadata": {str(at): "x" for at in range(17)}},
        "metadata",
        "object_above_max_properties",
    ),
    (
        "a long key",
        "",
        {"metadata": {"k" * 65: "x"}},
        f"metadata.{'k' * 65}",
        "string_above_max_length",
    ),
    ("a long value", "", {"metadata": {"a": "x" * 513}}, "metadata.a", "string_above_max_length"),
    ("items with metadata", "", {"metadata": {}, "items": []}, "items", "unknown_parameter"),
    ("a word of responses", "", {"metadata": {}, "model": "m"}, "model", "unknown_parameter"),
]


@pytest.mark.parametrize(
    ("place", "body", "param", "code"), [pytest.param(*row[1:], id=row[0]) for row in BODIES]
)
async def test_what_is_wrong_in_a_body_is_named(
    room: Room, place: str, body: JSON, param: str, code: str
) -> None:
    answered = await room.api.call("POST", f"/conversations/{room.conversation}{place}", body)
    await room.refused(answered, 400, param, code)
    if not place and code != "missing_required_parameter" and "items" not in body:
        await room.refused(await room.api.call("POST", "/conversations", body), 400, param, code)


PATHS = ("/conversations", "/conversations/{}", "/conversations/{}/items")


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_is_no_json_object_is_refused(room: Room, path: str) -> None:
    place = path.format(room.conversation)
    for sent in [row[1] for row in BAD if len(row[1]) < 100_000][:10]:
        await room.refused(await room.api.call("POST", place, sent), 400, None, "invalid_json")
    for sent in (b"[]", b"1", b'"x"', b"null"):
        await room.refused(await room.api.call("POST", place, sent), 400, None, "invalid_type")
    typed = {"content-type": "text/plain"}
    await room.refused(
        await room.api.call("POST", place, b"{}", headers=typed),
        415,
        None,
        "unsupported_media_type",
    )
    large = b'{"metadata": {"a": "' + b"x" * 4_000_000 + b'"}}'
    await room.refused(await room.api.call("POST", place, large), 413, None, "request_too_large")


QUERIES = [
    ("limit=0", "limit", "integer_below_min_value"),
    ("limit=101", "limit", "integer_above_max_value"),
    ("limit=many", "limit", "invalid_type"),
    ("order=random", "order", "invalid_value"),
    ("include[]=everything", "include[0]", "invalid_value"),
    ("include=everything", "include[0]", "invalid_value"),
]


@pytest.mark.parametrize(("query", "param", "code"), QUERIES, ids=[row[0] for row in QUERIES])
async def test_what_is_wrong_in_a_query_is_named(
    room: Room, query: str, param: str, code: str
) -> None:
    await room.refused(
        await room.api.call("GET", f"/conversations/{room.conversation}/items?{query}"),
        400,
        param,
        code,
    )


async def test_include_is_checked_wherever_it_is_taken(room: Room) -> None:
    wrong = "?include[]=everything"
    place = f"/conversations/{room.conversation}/items"
    await room.refused(
        await room.api.call("POST", f"{place}{wrong}", {"items": [USER]}),
        400,
        "include[0]",
        "invalid_value",
    )
    await room.refused(
        await room.api.call("GET", f"{place}/msg_1{wrong}"), 400, "include[0]", "invalid_value"
    )
    page = await room.api.call(
        "GET", f"{place}?include[]=reasoning.encrypted_content&include=message.output_text.logprobs"
    )
    assert page.body["data"] == []


@pytest.mark.parametrize(
    "named",
    [
        NOWHERE,
        "conv_1",
        "resp_01a1fc89ade272e095a74eaedfc80911",
        "conv_%00",
        "conv_%F0%9F%8C%8A",
        "..%2Fresponses",
    ],
)
async def test_what_is_no_conversation_is_not_found(room: Room, named: str) -> None:
    for method, path, body in (
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [USER]}),
        ("GET", "/items/msg_1", None),
        ("DELETE", "/items/msg_1", None),
    ):
        answered = await room.api.call(method, f"/conversations/{named}{path}", body)
        assert answered.status == 404, (method, path, answered.raw)


@pytest.mark.parametrize("named", ["msg_nowhere", "%00", "x" * 3000])
async def test_what_is_no_item_is_not_found(room: Room, named: str) -> None:
    for method in ("GET", "DELETE"):
        answered = await room.api.call(method, f"/conversations/{room.conversation}/items/{named}")
        await room.refused(answered, 404, None, None)
    page = await room.api.call("GET", f"/conversations/{room.conversation}/items?after={named}")
    assert (page.status, page.body["data"]) == (200, [])


async def test_a_create_names_the_conversation_that_is_not_there(room: Room) -> None:
    for given in (NOWHERE, {"id": NOWHERE}, "conv_1"):
        answered = await room.api.call(
            "POST", "/responses", {"model": "m", "input": "x", "conversation": given}
        )
        await room.refused(answered, 404, "conversation", "conversation_not_found")
    both = {
        "model": "m",
        "input": "x",
        "conversation": room.conversation,
        "previous_response_id": NOWHERE,
    }
    await room.refused(
        await room.api.call("POST", "/responses", both),
        400,
        "conversation",
        "mutually_exclusive_parameters",
    )
