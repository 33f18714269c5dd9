"""Input and output of a response on pages of the console, and their first lines in a list. Only for
a session in which an operator opened them; the audit log has an entry about each response whose
content is shown."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from starlette.responses import Response

from features.console import conversation
from features.console.access import EVERYONE
from features.console.page import HEADERS, Page, PageError, Visit, choice, not_found
from features.console.page_room import MAX_PART, PageRoom, pretty_json, sendable
from features.console.response_queries import ITEM, LARGE_MESSAGE
from features.operator.service import record_reveal
from models.db.arrays import Uuids
from models.db.database import fetch_idempotent, find_by_id
from models.db.queries import listing, read
from models.db.queries.listing import RESPONSE_DETAILS, ListedResponseRow, Preview, ResponseDetails
from models.db.queries.progress import PROJECT_OF
from models.db.queries.read import ResponseRow
from models.ids import parse_response_id, response_id
from models.wire.events import Item

_INPUT_ITEMS = 30
"""The last items of the input, on the page of a response."""
_OUTPUT_ITEMS = 60
_LISTED_ITEMS = 60
"""Items of a page that lists all."""
_RELATED_ITEMS = 10
"""Of input and output of a response before this one."""
_MAX_SIZE = 1024 * 1024
"""Of all items of a page together (models/wire/json_input.py)."""
_IMAGES = 4
"""Large images behind which the next items of a page are read."""
_MAX_ITEM_SIZE = 8 * 1024 * 1024
"""Of the item on a page of its own."""
_MAX_STORED = 8 * 1024 * 1024
"""Bytes of a larger one, as it is stored, of which the beginning is shown."""
_MAX_SHOWN = 1_000_000
"""Characters of one item, or of JSON, that are shown."""
_PAGES = {"input": read.INPUT_ITEMS, "output": read.OUTPUT_PAGE}


@dataclass(frozen=True, slots=True)
class Content:
    """What a response was asked and has answered."""

    instructions: conversation.Entry | None
    input: list[conversation.Entry]
    output: list[conversation.Entry]
    has_earlier_input: bool
    has_more_output: bool

    @property
    def output_ids(self) -> str:
        """The ids of the output's items, for the script that adds what is written now."""
        return json.dumps([entry.id for entry in self.output])


def response_id_of(visit: Visit) -> UUID:
    """The id in the URL. Raises PageError (404) if it cannot be one."""
    text = visit.request.path_params["response_id"]
    found = parse_response_id(text)
    if found is None:
        raise no_response(text)
    return found


def no_response(text: str) -> PageError:
    """The error for an id without a response."""
    return PageError(
        404,
        "No such response",
        f"There is no response {text[:100]}. It was never created, or its retention has ended.",
    )


async def read_details(visit: Visit, identifier: UUID) -> ResponseDetails:
    """Raises PageError (404) if there is no such response, or not for this user."""
    details = await find_by_id(visit.pool, RESPONSE_DETAILS, identifier)
    if details is None or not visit.owns(details.project):
        raise no_response(response_id(identifier))
    return details


async def read_content(
    visit: Visit,
    identifier: UUID,
    inputs: int = _INPUT_ITEMS,
    outputs: int = _OUTPUT_ITEMS,
) -> Content:
    """The instructions, the last items of the input, and the first ones of the output. Raises
    PageError (404)."""
    row = await _reveal(visit, identifier)
    found_input = await _read_items(visit, identifier, "input", "desc", inputs + 1)
    found_output = await _read_items(visit, identifier, "output", "asc", outputs + 1)

    def content() -> Content:
        room = PageRoom()
        # The output first: it is what somebody looks for, and the room may end.
        output = conversation.entries_of(found_output[:outputs], room)
        return Content(
            instructions=conversation.instructions_entry(row.parameters.get("instructions"), room),
            input=conversation.entries_of(reversed(found_input[:inputs]), room),
            output=output,
            has_earlier_input=len(found_input) > inputs,
            has_more_output=len(found_output) > outputs,
        )

    # Other requests go on in between: rendering takes up to a tenth of a second.
    return await asyncio.to_thread(content)


async def _reveal(visit: Visit, identifier: UUID) -> ResponseRow:
    """Records that the content of a response is shown. Raises PageError (403, 404)."""
    await read_details(visit, identifier)
    if not visit.may_read:
        raise PageError(
            403,
            "Inputs and outputs are hidden",
            "An operator sees them after “Show input and output” on the page of a response.",
        )
    row = await find_by_id(visit.pool, read.RESPONSE, identifier)
    if row is None:
        raise no_response(response_id(identifier))
    await record_reveal(visit.pool, identifier, visit.actor)
    return row


async def _read_items(
    visit: Visit,
    identifier: UUID,
    direction: str,
    order: str,
    limit: int,
    after: str | None = None,
    images: int = _IMAGES,
) -> list[tuple[str, Item | None]]:
    """The ids and payloads of items. One that makes the page too large, and those after it, have
    none; of the first of them, if it is a message, the beginning is read. So many `images` do not
    count."""
    values = {"id": identifier, "after": after, "limit": limit, "max_size": _MAX_SIZE}
    found = await fetch_idempotent(visit.pool, _PAGES[direction][order], values)
    items = [(item.id, item.payload) for item in found]
    large = next((at for at, (_, payload) in enumerate(items) if payload is None), None)
    if large is not None and conversation.is_image_id(items[large][0]) and images:
        # What stands behind an image is read beside it.
        item = items[large][0]
        more = await _read_items(
            visit, identifier, direction, order, limit - large - 1, item, images - 1
        )
        items[large + 1 :] = more
    elif large is not None:
        item = items[large][0]
        # One character more than is shown, so that it is known to be cut.
        limits = {"characters": MAX_PART + 1, "max_stored": _MAX_STORED}
        message = {"id": identifier, "item": item, **limits}
        for row in await fetch_idempotent(visit.pool, LARGE_MESSAGE, message):
            if row.text is not None:
                items[large] = (item, {"type": "message", "role": row.role, "content": row.text})
    return items


async def show_related(visit: Visit) -> Response:
    """Input and output of another response of the chain, as a part of a page."""
    identifier = response_id_of(visit)
    content = await read_content(visit, identifier, _RELATED_ITEMS, _RELATED_ITEMS)
    return visit.page("conversation_part.html", id=response_id(identifier), content=content)


async def show_items(visit: Visit) -> Response:
    """All items of the input or output, page by page."""
    identifier = response_id_of(visit)
    direction = choice(visit.query, "direction", list(_PAGES), "input")
    await _reveal(visit, identifier)
    after = visit.query.get("after")
    found = await _read_items(visit, identifier, direction, "asc", _LISTED_ITEMS + 1, after)
    shown = found[:_LISTED_ITEMS]
    entries = await asyncio.to_thread(conversation.entries_of, shown, PageRoom())
    return visit.page(
        "items.html",
        id=response_id(identifier),
        direction=direction,
        entries=entries,
        is_first=after is None,
        next=shown[-1][0] if len(found) > len(shown) else None,
    )


async def show_item(visit: Visit) -> Response:
    """One item, as JSON, and the text of a message as it was written."""
    identifier = response_id_of(visit)
    await _reveal(visit, identifier)
    limits = {
        "max_size": _MAX_ITEM_SIZE,
        "max_stored": _MAX_STORED,
        "characters": _MAX_SHOWN,
    }
    values = {"id": identifier, "item": visit.query.get("item", ""), **limits}
    found = await fetch_idempotent(visit.pool, ITEM, values)
    if not found:
        raise not_found("item")
    payload, text, json_text = found[0].payload, "", found[0].beginning
    if payload is not None:
        text = sendable("\n\n".join(conversation.written_texts(payload))[:_MAX_SHOWN])
        json_text = sendable(pretty_json(payload)[:_MAX_SHOWN])
    return visit.page(
        "item.html",
        id=response_id(identifier),
        item=found[0],
        text=text,
        json=json_text,
        shown=_MAX_SHOWN,
    )


async def show_image(visit: Visit) -> Response:
    """The image that a call has made, as a file for the browser."""
    identifier = response_id_of(visit)
    await _reveal(visit, identifier)
    limits = {"max_size": _MAX_ITEM_SIZE, "max_stored": 0, "characters": 0}
    values = {"id": identifier, "item": visit.query.get("item", ""), **limits}
    found = await fetch_idempotent(visit.pool, ITEM, values)
    payload = found[0].payload if found else None
    image = None
    if payload is not None:
        for project in await fetch_idempotent(visit.pool, PROJECT_OF, {"id": identifier}):
            [payload] = await visit.state.images.filled(project, [payload])
        image = await asyncio.to_thread(conversation.image_in, payload)
    if image is None:
        raise not_found("image")
    return Response(image[0], media_type=image[1], headers=HEADERS)


async def show_json(visit: Visit) -> Response:
    """The request and its items as JSON, and a command that sends the request again."""
    identifier = response_id_of(visit)
    row = await _reveal(visit, identifier)
    found = {
        direction: await _read_items(visit, identifier, direction, "asc", _LISTED_ITEMS + 1)
        for direction in _PAGES
    }
    shown = {
        direction: [item for _, item in items[:_LISTED_ITEMS] if item is not None]
        for direction, items in found.items()
    }
    parameters = {"model": row.model, **row.parameters}
    is_cut = any(len(shown[direction]) < len(found[direction]) for direction in _PAGES)
    body = json.dumps(parameters | {"input": shown["input"]}, ensure_ascii=False)
    return visit.page(
        "json.html",
        id=response_id(identifier),
        parameters=sendable(pretty_json(parameters)[:_MAX_SHOWN]),
        items={name: sendable(pretty_json(each)[:_MAX_SHOWN]) for name, each in shown.items()},
        is_cut=is_cut,
        curl=None if is_cut or len(body) > _MAX_SHOWN else sendable(curl("/responses", body)),
    )


def curl(path: str, body: str | None = None) -> str:
    """A command for a shell. The key comes from a variable, so no page has one."""
    lines = [f'curl "$OPENAI_BASE_URL{path}"', '-H "Authorization: Bearer $OPENAI_API_KEY"']
    if body is not None:
        quoted = body.replace("'", "'\\''")
        lines += ["-H 'Content-Type: application/json'", f"-d '{quoted}'"]
    return " \\\n  ".join(lines)


PAGES = (
    Page("/responses/{response_id}/related", show_related, roles=EVERYONE),
    Page("/responses/{response_id}/items", show_items, roles=EVERYONE),
    Page("/responses/{response_id}/item", show_item, roles=EVERYONE),
    Page("/responses/{response_id}/image", show_image, roles=EVERYONE),
    Page("/responses/{response_id}/json", show_json, roles=EVERYONE),
)


_READ_OF_TEXT = 400
"""Of a text, of which the first line is shown."""
_SHOWN_OF_LINE = 160


async def read_previews(
    visit: Visit, rows: Sequence[ListedResponseRow]
) -> dict[UUID, Preview] | None:
    """By the response; None: this session shows no inputs and outputs."""
    if not visit.may_read or not rows:
        return None
    values = {"ids": Uuids([row.id for row in rows]), "characters": _READ_OF_TEXT}
    found = await fetch_idempotent(visit.pool, listing.PREVIEWS, values)
    return {
        each.id: Preview(each.id, _first_line(each.input), _first_line(each.output))
        for each in found
    }


def _first_line(text: str | None) -> str | None:
    """The first line that is not empty, cut."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    if not lines:
        return None
    return lines[0] if len(lines[0]) <= _SHOWN_OF_LINE else f"{lines[0][:_SHOWN_OF_LINE]}…"
