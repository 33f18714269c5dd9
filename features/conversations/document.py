"""Conversations in the API document (models/wire/conversation.py)."""

from openai.types.conversations import Conversation

from features.reference import examples, schemas
from features.reference.document import INCLUDE
from features.reference.response_schema import CONVERSATION_ID
from models.wire.api_schema import Schema, nullable, object_schema, reference
from models.wire.checks.parameters import METADATA
from models.wire.conversation import MAX_ADDED_ITEMS, conversation_object

PATHS = {"conversation_id": schemas.about_id("conv_"), "item_id": "The id of one of its items."}
_METADATA: schemas.Json = {"metadata": {"topic": "tides"}}
_ITEMS: schemas.Json = {"items": [{"role": "user", "content": "Say hello."}]}


def operations() -> dict[str, schemas.Json]:
    """Name of a route's function -> its operation."""
    example = conversation_object(examples.CONVERSATION_ID, examples.TIME, _METADATA["metadata"])
    conversation = schemas.response(
        "The conversation.", "Conversation", examples={"a conversation": example}
    )
    gone = "Deleted. The input and output of its responses are kept."
    return {
        "create_conversation": schemas.operation(
            "Create a conversation",
            conversation,
            body=schemas.request_body(
                "CreateConversation", {"with a first item": _ITEMS | _METADATA, "empty": {}}
            ),
            once=True,
        ),
        "retrieve_conversation": schemas.operation("Get a conversation", conversation),
        "update_conversation": schemas.operation(
            "Update a conversation",
            conversation,
            body=schemas.request_body("UpdateConversation", {"a topic": _METADATA}),
        ),
        "delete_conversation": schemas.operation(
            "Delete a conversation", schemas.response(gone, "DeletedConversation"), 400
        ),
        "delete_item": schemas.operation("Remove an item from a conversation", conversation, 400),
        **_item_operations(),
    }


def _item_operations() -> dict[str, schemas.Json]:
    page = {"one item": examples.input_items()}
    items = schemas.response("Items, in the list envelope.", "ConversationItemList", examples=page)
    return {
        "add_items": schemas.operation(
            "Add items to a conversation",
            items,
            parameters=INCLUDE,
            body=schemas.request_body("AddItems", {"one item": _ITEMS}),
            once=True,
        ),
        "list_items": schemas.operation(
            "List a conversation's items", items, parameters=[*schemas.PAGING, *INCLUDE]
        ),
        "retrieve_item": schemas.operation(
            "Get an item of a conversation",
            schemas.response("The item.", "ConversationItem"),
            parameters=INCLUDE,
        ),
    }


def components(deployment: schemas.Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    sent = deployment.sent
    items = schemas.array_of(reference(f"{sent.prefix}Item"), at_most=MAX_ADDED_ITEMS)
    items["description"] = "Their ids must differ."
    metadata = nullable(METADATA.schema(sent))
    return {
        "CreateConversation": {
            "type": "object",
            "properties": {"items": nullable(items), "metadata": metadata},
        },
        "AddItems": object_schema({"items": {**items, "minItems": 1}}),
        "UpdateConversation": object_schema({"metadata": metadata}),
        "Conversation": schemas.sdk_object(
            Conversation, id=CONVERSATION_ID, metadata=METADATA.schema(deployment.stored)
        ),
        "ConversationItem": {"anyOf": [reference("ListedItem"), reference("OutputItem")]},
        "ConversationItemList": schemas.page_of("ConversationItem"),
        "DeletedConversation": schemas.deleted("conversation.deleted", CONVERSATION_ID),
    }
