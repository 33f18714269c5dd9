"""What a client says to approval requests of MCP calls, checked before anything is stored: no run could make sense of it later."""

from models.db.database import Pool, read
from models.db.queries import conversations, statements
from models.errors import InvalidRequest
from models.wire.checks import shorten
from models.wire.events import Item
from models.wire.mcp import unmet_approvals
from models.wire.request import CreateRequest
from web.responses.continuation import Continuation


async def require_valid_approvals(
    pool: Pool, continuation: Continuation, request: CreateRequest
) -> None:
    """Every approval response must answer a request before it, in the input or the past, and what it allows must be possible: the
    server that is to be called must be among the tools of this request, whose credentials only this request has.

    Raises InvalidRequest(param="input").
    """
    servers = await require_approval_requests(pool, continuation, request.input)
    called = {
        item.get("approval_request_id") for item in request.input if item["type"] == "mcp_call"
    }
    for request_id, answer in _approval_responses(request.input).items():
        if (
            answer["approve"]
            and request_id not in called
            and servers[request_id] not in request.credentials
        ):
            message = f"The approved call needs the MCP server '{shorten(servers[request_id])}', which is not among 'tools'."
            raise InvalidRequest(message, param="tools", code="invalid_value")


async def require_approval_requests(
    pool: Pool, continuation: Continuation, items: list[Item], where: str = "input"
) -> dict[str, str]:
    """That every approval response among the items answers a request there or in the past; request -> label of its server.

    Raises InvalidRequest(param=where).
    """
    answers = _approval_responses(items)
    unmet = unmet_approvals(items) if answers else []
    servers = {
        item["id"]: item["server_label"]
        for item in items
        if item["type"] == "mcp_approval_request" and item["id"] not in unmet
    }
    if unmet and continuation.previous is not None:
        rows = await read(
            pool, statements.APPROVAL_REQUESTS, {"id": continuation.previous, "ids": unmet}
        )
        servers |= {row["id"]: row["server_label"] for row in rows}
    if unmet and continuation.conversation is not None:
        rows = await read(
            pool, conversations.APPROVAL_REQUESTS, {"id": continuation.conversation, "ids": unmet}
        )
        servers |= {row["id"]: row["server_label"] for row in rows}
    for request_id in answers:
        if request_id not in servers:
            message = f"No approval request found for MCP approval response with approval_request_id '{shorten(request_id)}'."
            raise InvalidRequest(message, param=where)
    return servers


def _approval_responses(items: list[Item]) -> dict[str, Item]:
    return {
        item["approval_request_id"]: item
        for item in items
        if item["type"] == "mcp_approval_response"
    }
