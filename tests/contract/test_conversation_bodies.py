"""Wrong requests about conversations: the error names the fault, nothing is stored."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from tests.support import keys
from tests.support.api import JSON, Api, HttpResponse
from tests.support.bad_bodies import INVALID_JSON
from tests.support.stack import Stack

NOWHERE = "conv_01a1fc89ade272e095a74eaedfc80911"
USER = {"role": "user", "content": "x"}


class EmptyConversation:
    """A project with one empty conversation, to which nothing may be added."""

    def __init__(
        self, api: Api, project: str, conversation_id: str, connection: psycopg.AsyncConnection
    ) -> None:
        self.api = api
        self.id = conversation_id
        self._project = project
        self._connection = connection

    async def assert_refused(
        self,
        answered: HttpResponse,
        status: int,
        param: str | None,
        code: str | None,
        message: str | None = None,
    ) -> None:
        """Checks that the answer is this refusal and that nothing was stored."""
        assert answered.status == status, answered.raw[:1000]
        error = answered.error
        assert (error["type"], error["param"], error["code"]) == (
            "invalid_request_error",
            param,
            code,
        ), error
        assert message in (None, error["message"]), error
        cursor = await self._connection.execute(
            "SELECT count(*), max(c.revision), max(c.metadata::text), (SELECT count(*) FROM "
            "items i WHERE i.conversation_id = min(c.id::text)::uuid) "
            "FROM conversations c JOIN projects p ON p.id = c.project_id WHERE p.name = %s",
            (self._project,),
        )
        assert await cursor.fetchone() == (1, 0, "{}", 0)


@pytest.fixture(scope="module")
async def conversation(shared_stack: Stack) -> AsyncIterator[EmptyConversation]:
    name = f"empty conversation {secrets.token_hex(4)}"
    api = shared_stack.api(key=keys.create(shared_stack.dsn, name))
    created = await api.call("POST", "/conversations", {})
    async with await psycopg.AsyncConnection.connect(
        shared_stack.dsn, autocommit=True
    ) as connection:
        yield EmptyConversation(api, name, created.body["id"], connection)


ITEMS: list[tuple[str, Any, str, str]] = [
    ("no list", "Hi.", "items", "invalid_type"),
    ("too many", [USER] * 21, "items", "array_above_max_length"),
    (
        "a part of another type",
        [{"role": "user", "content": [{"type": "x"}]}],
        "items[0].content[0].type",
        "invalid_value",
    ),
    ("the same id twice", [{**USER, "id": "a"}, {**USER, "id": "a"}], "items", "invalid_value"),
    (
        "another server's compaction",
        [USER, {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}],
        "items[1].encrypted_content",
        "invalid_encrypted_content",
    ),
    (
        "a reference to nothing",
        [USER, {"type": "item_reference", "id": "msg_nowhere"}],
        "items[1]",
        "item_not_found",
    ),
    (
        "a file at a private address",
        [
            {
                "role": "user",
                "content": [{"type": "input_file", "file_url": "http://169.254.169.254/x"}],
            }
        ],
        "items[0].content[0].file_url",
        "invalid_value",
    ),
]
"""What only the whole product checks, and a row of each kind that the parser checks.

The parser's rows are in tests/unit/wire/test_request_conversation.py.
"""


@pytest.mark.parametrize(
    ("items", "param", "code"), [pytest.param(*row[1:], id=row[0]) for row in ITEMS]
)
async def test_a_wrong_item_is_named_wherever_it_is_added(
    conversation: EmptyConversation, items: Any, param: str, code: str
) -> None:
    for path in ("/conversations", f"/conversations/{conversation.id}/items"):
        await conversation.assert_refused(
            await conversation.api.call("POST", path, {"items": items}), 400, param, code
        )


UNPAIRED: list[tuple[JSON, str]] = [
    (
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        "No tool call found for function call output with call_id c.",
    ),
    (
        {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
        "No approval request found for MCP approval response with approval_request_id 'a'.",
    ),
]


@pytest.mark.parametrize(("item", "message"), UNPAIRED, ids=["output", "approval"])
async def test_an_output_without_its_call_is_refused(
    conversation: EmptyConversation, item: JSON, message: str
) -> None:
    for path in ("/conversations", f"/conversations/{conversation.id}/items"):
        await conversation.assert_refused(
            await conversation.api.call("POST", path, {"items": [USER, item]}),
            400,
            "items",
            None,
            message,
        )


BODIES: list[tuple[str, str, JSON, str, str]] = [
    ("items are missing", "/items", {}, "items", "missing_required_parameter"),
    ("metadata is missing", "", {}, "metadata", "missing_required_parameter"),
    ("metadata is a list", "", {"metadata": []}, "metadata", "invalid_type"),
    ("a parameter of responses", "", {"metadata": {}, "model": "m"}, "model", "unknown_parameter"),
]


@pytest.mark.parametrize(
    ("place", "body", "param", "code"), [pytest.param(*row[1:], id=row[0]) for row in BODIES]
)
async def test_a_wrong_body_is_refused_with_its_place_and_code(
    conversation: EmptyConversation, place: str, body: JSON, param: str, code: str
) -> None:
    answered = await conversation.api.call("POST", f"/conversations/{conversation.id}{place}", body)
    await conversation.assert_refused(answered, 400, param, code)


PATHS = ("/conversations", "/conversations/{}", "/conversations/{}/items")


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_is_no_json_object_is_refused(
    conversation: EmptyConversation, path: str
) -> None:
    place = path.format(conversation.id)
    for sent in [row[1] for row in INVALID_JSON if len(row[1]) < 100_000][:3]:
        await conversation.assert_refused(
            await conversation.api.call("POST", place, sent), 400, None, "invalid_json"
        )
    for sent in (b"[]", b"1", b'"x"', b"null"):
        await conversation.assert_refused(
            await conversation.api.call("POST", place, sent), 400, None, "invalid_type"
        )
    typed = {"content-type": "text/plain"}
    await conversation.assert_refused(
        await conversation.api.call("POST", place, b"{}", headers=typed),
        415,
        None,
        "unsupported_media_type",
    )
    large = b'{"metadata": {"a": "' + b"x" * 4_000_000 + b'"}}'
    await conversation.assert_refused(
        await conversation.api.call("POST", place, large), 413, None, "request_too_large"
    )


QUERIES = [
    ("limit=0", "limit", "integer_below_min_value"),
    ("limit=101", "limit", "integer_above_max_value"),
    ("limit=many", "limit", "invalid_type"),
    ("order=random", "order", "invalid_value"),
    ("include[]=everything", "include[0]", "invalid_value"),
    ("include=everything", "include[0]", "invalid_value"),
]


@pytest.mark.parametrize(("query", "param", "code"), QUERIES, ids=[row[0] for row in QUERIES])
async def test_a_wrong_query_parameter_is_named(
    conversation: EmptyConversation, query: str, param: str, code: str
) -> None:
    await conversation.assert_refused(
        await conversation.api.call("GET", f"/conversations/{conversation.id}/items?{query}"),
        400,
        param,
        code,
    )


async def test_include_is_checked_on_every_route_that_has_it(
    conversation: EmptyConversation,
) -> None:
    wrong = "?include[]=everything"
    place = f"/conversations/{conversation.id}/items"
    await conversation.assert_refused(
        await conversation.api.call("POST", f"{place}{wrong}", {"items": [USER]}),
        400,
        "include[0]",
        "invalid_value",
    )
    await conversation.assert_refused(
        await conversation.api.call("GET", f"{place}/msg_1{wrong}"),
        400,
        "include[0]",
        "invalid_value",
    )
    page = await conversation.api.call(
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
async def test_an_unknown_conversation_is_not_found_on_any_route(
    conversation: EmptyConversation, named: str
) -> None:
    for method, path, body in (
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [USER]}),
        ("GET", "/items/msg_1", None),
        ("DELETE", "/items/msg_1", None),
    ):
        answered = await conversation.api.call(method, f"/conversations/{named}{path}", body)
        assert answered.status == 404, (method, path, answered.raw)


@pytest.mark.parametrize("named", ["msg_nowhere", "%00", "x" * 3000])
async def test_an_unknown_item_is_not_found(conversation: EmptyConversation, named: str) -> None:
    for method in ("GET", "DELETE"):
        answered = await conversation.api.call(
            method, f"/conversations/{conversation.id}/items/{named}"
        )
        await conversation.assert_refused(answered, 404, None, None)
    page = await conversation.api.call(
        "GET", f"/conversations/{conversation.id}/items?after={named}"
    )
    assert (page.status, page.body["data"]) == (200, [])


async def test_a_create_with_an_unknown_conversation_is_refused(
    conversation: EmptyConversation,
) -> None:
    for given in (NOWHERE, {"id": NOWHERE}, "conv_1"):
        answered = await conversation.api.call(
            "POST", "/responses", {"model": "m", "input": "x", "conversation": given}
        )
        await conversation.assert_refused(answered, 404, "conversation", "conversation_not_found")
    both = {
        "model": "m",
        "input": "x",
        "conversation": conversation.id,
        "previous_response_id": NOWHERE,
    }
    await conversation.assert_refused(
        await conversation.api.call("POST", "/responses", both),
        400,
        "conversation",
        "mutually_exclusive_parameters",
    )
