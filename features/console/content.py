"""The input and the output of a response, which are shown only when somebody asks for them."""

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from starlette.responses import Response

from features.console import grants
from features.console.errors import PageError
from features.console.page import Page
from features.console.visit import Visit
from features.operator.service import record_reveal
from models.db.database import fetch_idempotent
from models.db.queries import read
from models.ids import parse_response_id, response_id

_MAX_ITEMS = 100
_MAX_SIZE = 512 * 1024
"""Bytes of items that are read for the page."""
_MAX_TEXT = 64 * 1024
"""Characters of one item that are shown."""


@dataclass(frozen=True, slots=True)
class ShownItem:
    """An item of the input or output."""

    type: str
    who: str
    """its role, or the name of what is called"""
    text: str
    is_cut: bool

    @classmethod
    def from_payload(cls, item: dict[str, Any]) -> "ShownItem":
        """The text of a message, or the JSON of anything else."""
        text = _text_of(item) or pretty(item)
        who = str(item.get("role") or item.get("name") or "")
        kind = str(item.get("type", "message"))
        return cls(kind, who, text[:_MAX_TEXT], len(text) > _MAX_TEXT)


def _text_of(item: dict[str, Any]) -> str | None:
    """The text of a message; None for anything else."""
    content = item.get("content")
    if item.get("type", "message") != "message" or isinstance(content, str):
        return content if isinstance(content, str) else None
    if not isinstance(content, list):
        return None
    texts = [part.get("text") or part.get("refusal") for part in content if isinstance(part, dict)]
    return "\n".join(map(str, texts)) if texts and None not in texts else None


@dataclass(frozen=True, slots=True)
class Content:
    """What a response was asked and has answered."""

    parameters: str
    """what the client has set, as JSON"""
    input: list[ShownItem]
    output: list[ShownItem]
    is_cut: bool
    """There is more input than is shown."""
    curl: str
    """a command that sends the same request"""


def pretty(value: Any) -> str:
    """JSON to read."""
    return json.dumps(value, indent=2, ensure_ascii=False)


async def read_content(visit: Visit, identifier: UUID) -> Content:
    """What the database has. Raises PageError (404)."""
    rows = await fetch_idempotent(visit.pool, read.RESPONSE, {"id": identifier})
    if not rows:
        raise PageError(404, "No such response", "The response was deleted.")
    limits = {"after": None, "limit": _MAX_ITEMS + 1, "max_size": _MAX_SIZE}
    page = await fetch_idempotent(visit.pool, read.INPUT_ITEMS["asc"], {"id": identifier, **limits})
    payloads = [item.payload for item in page[:_MAX_ITEMS] if item.payload is not None]
    output = await fetch_idempotent(
        visit.pool, read.OUTPUT_PAGE["asc"], {"id": identifier, **limits}
    )
    outputs = [item.payload for item in output[:_MAX_ITEMS] if item.payload is not None]
    parameters = {"model": rows[0].model, **rows[0].parameters}
    body = parameters | {"input": payloads}
    return Content(
        parameters=pretty(parameters)[:_MAX_TEXT],
        input=[ShownItem.from_payload(item) for item in payloads],
        output=[ShownItem.from_payload(item) for item in outputs],
        is_cut=len(payloads) < len(page) or len(outputs) < len(output),
        curl=curl("/v1/responses", json.dumps(body, ensure_ascii=False)),
    )


def curl(path: str, body: str | None = None) -> str:
    """A command for a shell. The key comes from a variable, so no page has one."""
    lines = [f'curl "$BACKBURNER_URL{path}"', '-H "Authorization: Bearer $BACKBURNER_KEY"']
    if body is not None:
        quoted = body.replace("'", "'\\''")
        lines += ["-H 'Content-Type: application/json'", f"-d '{quoted}'"]
    return " \\\n  ".join(lines)


async def reveal(visit: Visit) -> Response:
    """Records in the audit log that somebody wants to see input and output, and shows them."""
    await visit.form(visit.user.token)
    identifier = parse_response_id(visit.request.path_params["response_id"])
    if identifier is None:
        raise PageError(404, "No such response", "There is no response of this id.")
    await record_reveal(visit.pool, identifier, visit.actor)
    grant = grants.make(visit.user, identifier)
    return visit.redirect(f"/responses/{response_id(identifier)}", content=grant)


PAGES = (Page("/responses/{response_id}/content", reveal, method="POST"),)
