"""What a client says to approval requests of MCP calls, checked before anything is stored: no run could make sense of it later."""

from uuid import UUID

from models import statements
from models.database import Pool, read
from models.errors import InvalidRequest
from models.wire.checks import shown
from models.wire.mcp import unmet_approvals
from models.wire.request import CreateRequest


async def require_requests(pool: Pool, previous: UUID | None, request: CreateRequest) -> None:
    """Every approval response must answer a request before it, in the input or the chain, and what it allows must be possible: the
    server that is to be called must be among the tools of this request, whose credentials only this request has.

    Raises InvalidRequest(param="input").
    """
    answers = {item["approval_request_id"]: item for item in request.input if item["type"] == "mcp_approval_response"}
    if not answers:
        return
    unmet = unmet_approvals(request.input)
    requests = [item for item in request.input if item["type"] == "mcp_approval_request" and item["id"] not in unmet]
    servers = {item["id"]: item["server_label"] for item in requests}
    if unmet and previous is not None:
        rows = await read(pool, statements.APPROVAL_REQUESTS, {"id": previous, "ids": unmet})
        servers |= {row["id"]: row["server_label"] for row in rows}
    called = {item.get("approval_request_id") for item in request.input if item["type"] == "mcp_call"}
    for named, answer in answers.items():
        if named not in servers:
            message = f"No approval request found for MCP approval response with approval_request_id '{shown(named)}'."
            raise InvalidRequest(message, param="input")
        if answer["approve"] and named not in called and servers[named] not in request.credentials:
            message = f"The approved call needs the MCP server '{shown(servers[named])}', which is not among 'tools'."
            raise InvalidRequest(message, param="tools", code="invalid_value")
