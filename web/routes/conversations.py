"""/v1/conversations: a few lines a route: parse, call, present."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from web.http.auth import Project
from web.http.body import read_json
from web.http.json_responses import json_answer
from web.http.params import included, named, paging
from web.state import front_of

router = APIRouter(prefix="/v1/conversations")


@router.post("")
async def create_conversation(request: Request, project: Project) -> Response:
    """Creates a conversation, with up to 20 items to begin with."""
    front = front_of(request)
    return json_answer(
        await front.chronicle.create(project, await read_json(request, front.settings.limits.body))
    )


@router.get("/{conversation_id}")
async def retrieve_conversation(
    conversation_id: str, request: Request, project: Project
) -> Response:
    """The conversation, without its items."""
    return json_answer(await front_of(request).chronicle.show(project, conversation_id))


@router.post("/{conversation_id}")
async def update_conversation(conversation_id: str, request: Request, project: Project) -> Response:
    """Replaces the conversation's metadata."""
    front = front_of(request)
    body = await read_json(request, front.settings.limits.body)
    return json_answer(await front.chronicle.update(project, conversation_id, body))


@router.delete("/{conversation_id}")
async def delete_conversation(conversation_id: str, request: Request, project: Project) -> Response:
    """Deletes the conversation; what its responses were given and answered stays with them."""
    await front_of(request).chronicle.delete(project, conversation_id)
    return json_answer({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.post("/{conversation_id}/items")
async def add_items(conversation_id: str, request: Request, project: Project) -> Response:
    """Adds up to 20 items to the conversation's end."""
    included(request)
    front = front_of(request)
    body = await read_json(request, front.settings.limits.body)
    return json_answer(await front.chronicle.add(project, conversation_id, body))


@router.get("/{conversation_id}/items")
async def list_items(conversation_id: str, request: Request, project: Project) -> Response:
    """The conversation's items, newest first unless `order=asc`."""
    wanted = paging(request)
    included(request)
    return json_answer(await front_of(request).chronicle.page(project, conversation_id, wanted))


@router.get("/{conversation_id}/items/{item_id}")
async def retrieve_item(
    conversation_id: str, item_id: str, request: Request, project: Project
) -> Response:
    """One of the conversation's items."""
    included(request)
    return json_answer(
        await front_of(request).chronicle.item(project, conversation_id, named(item_id) or "")
    )


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(
    conversation_id: str, item_id: str, request: Request, project: Project
) -> Response:
    """Takes an item out of the conversation, and answers with the conversation."""
    return json_answer(
        await front_of(request).chronicle.drop(project, conversation_id, named(item_id) or "")
    )
