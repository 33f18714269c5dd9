"""/v1/conversations."""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.conversations.web import Conversations
from features.request_bodies import counted_body
from models.projects.requests import require_conversations
from web.http.auth import Key, Project
from web.http.body import held_bytes
from web.http.json_responses import json_response
from web.http.params import paging, parse_include, storable_item_id
from web.http.request_record import actor_of
from web.state import app_state

router = APIRouter(prefix="/v1/conversations")


@router.post("")
async def create_conversation(request: Request, key: Key) -> Response:
    """Creates a conversation, with up to 20 items."""
    require_conversations(key.policy)
    body = await counted_body(request, key, is_stored=True, conversations=1)
    store = Conversations.of(request).store
    make, show = partial(store.create, key, body.value), partial(store.show, key.project_id)
    unused = partial(store.show_unused, key.project_id)
    return json_response(
        await app_state(request).creates.once(request, body.value, make, show, unused)
    )


@router.get("/{conversation_id}")
async def retrieve_conversation(
    conversation_id: str, request: Request, project: Project
) -> Response:
    """The conversation, without its items."""
    return json_response(await Conversations.of(request).store.show(project, conversation_id))


@router.post("/{conversation_id}")
async def update_conversation(conversation_id: str, request: Request, key: Key) -> Response:
    """Replaces the conversation's metadata."""
    require_conversations(key.policy)
    body = await counted_body(request, key)
    store = Conversations.of(request).store
    return json_response(await store.update(key.project_id, conversation_id, body.value))


@router.delete("/{conversation_id}")
async def delete_conversation(conversation_id: str, request: Request, project: Project) -> Response:
    """Deletes the conversation; the input and output of its responses are kept."""
    await Conversations.of(request).store.delete(project, conversation_id, actor_of(request))
    return json_response({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.post("/{conversation_id}/items")
async def add_items(conversation_id: str, request: Request, key: Key) -> Response:
    """Appends up to 20 items to the conversation."""
    parse_include(request)
    require_conversations(key.policy)
    body = await counted_body(request, key, is_stored=True)
    store = Conversations.of(request).store
    make = partial(store.add, key, conversation_id, body.value)
    show = partial(store.added, key.project_id, conversation_id, held_bytes(request))
    return json_response(await app_state(request).creates.once(request, body.value, make, show))


@router.get("/{conversation_id}/items")
async def list_items(conversation_id: str, request: Request, project: Project) -> Response:
    """The conversation's items, newest first unless `order=asc`."""
    page_query = paging(request)
    parse_include(request)
    store, held = Conversations.of(request).store, held_bytes(request)
    return json_response(await store.page(project, conversation_id, page_query, held))


@router.get("/{conversation_id}/items/{item_id}")
async def retrieve_item(
    conversation_id: str, item_id: str, request: Request, project: Project
) -> Response:
    """One of the conversation's items."""
    parse_include(request)
    store, named = Conversations.of(request).store, storable_item_id(item_id) or ""
    return json_response(await store.item(project, conversation_id, named, held_bytes(request)))


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(
    conversation_id: str, item_id: str, request: Request, project: Project
) -> Response:
    """Removes an item from the conversation; returns the conversation."""
    store, named = Conversations.of(request).store, storable_item_id(item_id) or ""
    actor = actor_of(request)
    return json_response(await store.remove_item(project, conversation_id, named, actor))


ROUTERS = (router,)
