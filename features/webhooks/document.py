"""Webhook endpoints and their deliveries in the document (docs/webhooks.md)."""

from features.reference.parts import Json, operation, query_parameter, response
from features.reference.schemas import (
    BOOLEAN,
    COUNT,
    SECONDS,
    STRING,
    array_of,
    deleted,
    one_of_texts,
    page_of,
)
from features.tenants.document_parts import admin_change, admin_list, admin_operations, strict_body
from features.webhooks.bodies import MAX_OVERLAP
from features.webhooks.endpoints import DELIVERY_STATES
from features.webhooks.events import EventType
from features.webhooks.routes import ADMIN_SUFFIX
from models.projects.changes import MAX_NAME
from models.wire.api_schema import Schema, const, nullable, object_schema

_EVENT_TYPE = one_of_texts([event.value for event in EventType])
_EVENT_TYPES = array_of(_EVENT_TYPE)


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    of_all = _operations()
    types = {"200": response("The types.", "WebhookEventTypeList")}
    return {
        **of_all,
        **admin_operations({f"{name}{ADMIN_SUFFIX}": each for name, each in of_all.items()}),
        "list_event_types": operation("List the types of events", types),
    }


def _operations() -> dict[str, Json]:
    endpoint = {"200": response("The endpoint.", "WebhookEndpoint")}
    with_secret = {"200": response("The endpoint, with its secret.", "WebhookEndpointWithSecret")}
    return {
        "list_endpoints": admin_list("List webhook endpoints", "WebhookEndpoint"),
        "create_endpoint": admin_change(
            "Create a webhook endpoint",
            with_secret,
            "CreateWebhookEndpoint",
            {"url": "https://example.com/events"},
        ),
        "retrieve_endpoint": operation("Get a webhook endpoint", endpoint),
        "update_endpoint": admin_change(
            "Change, enable or disable a webhook endpoint",
            endpoint,
            "UpdateWebhookEndpoint",
            {"enabled": False},
        ),
        "delete_endpoint": operation(
            "Delete a webhook endpoint", {"200": response("Deleted.", "DeletedWebhookEndpoint")}
        ),
        "rotate_secret": _optional_body(
            admin_change(
                "Give a webhook endpoint a new secret",
                with_secret,
                "RotateWebhookSecret",
                {"overlap_seconds": 3600},
            )
        ),
        **_delivery_operations(),
    }


def _delivery_operations() -> dict[str, Json]:
    state = query_parameter("status", one_of_texts(DELIVERY_STATES), "Only deliveries in it.")
    return {
        "test_endpoint": _optional_body(
            admin_change(
                "Deliver a test event, and wait for the first try",
                {"200": response("What the first try has led to.", "WebhookTest")},
                "TestWebhookEndpoint",
                {"event_type": EventType.RESPONSE_COMPLETED.value},
            )
        ),
        "list_deliveries": admin_list(
            "List the deliveries to a webhook endpoint", "WebhookDelivery", state
        ),
        "resend_event": operation(
            "Deliver an event again",
            {"200": response("The delivery.", "WebhookDelivery")},
            400,
        ),
    }


def components() -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    name: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
    overlap: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_OVERLAP}
    endpoint: dict[str, Schema] = {
        "object": const("webhook_endpoint"),
        "id": STRING,
        "name": STRING,
        "url": STRING,
        "event_types": _EVENT_TYPES,
        "created_at": SECONDS,
        "updated_at": SECONDS,
        "signing_secret_hint": nullable(STRING),
        "status": one_of_texts(("enabled", "failing", "disabled")),
        "disabled_reason": nullable(STRING),
        "failures": COUNT,
        "failing_since": nullable(SECONDS),
        "waiting": COUNT,
    }
    return {
        "CreateWebhookEndpoint": strict_body(
            {"url": STRING}, {"name": name, "event_types": _EVENT_TYPES}
        ),
        "UpdateWebhookEndpoint": strict_body(
            {}, {"url": STRING, "name": name, "event_types": _EVENT_TYPES, "enabled": BOOLEAN}
        ),
        "RotateWebhookSecret": strict_body(
            {}, {"overlap_seconds": overlap, "keep_old_secret_active_for_24_hours": BOOLEAN}
        ),
        "TestWebhookEndpoint": strict_body({}, {"event_type": _EVENT_TYPE}),
        "WebhookEndpoint": object_schema(endpoint),
        "WebhookEndpointList": page_of("WebhookEndpoint"),
        "WebhookEndpointWithSecret": object_schema({**endpoint, "signing_secret": STRING}),
        "DeletedWebhookEndpoint": deleted("webhook_endpoint.deleted"),
        "WebhookEventTypeList": object_schema({"object": const("list"), "data": _EVENT_TYPES}),
        **_deliveries(),
    }


def _deliveries() -> dict[str, Schema]:
    return {
        "WebhookTest": object_schema(
            {
                "object": const("webhook_endpoint.test"),
                "webhook_endpoint_id": STRING,
                "event_type": _EVENT_TYPE,
                "event_id": STRING,
                "status_code": nullable(COUNT),
                "success": BOOLEAN,
                "error": nullable(STRING),
            }
        ),
        "WebhookDelivery": object_schema(
            {
                "object": const("webhook_endpoint.delivery"),
                "id": STRING,
                "webhook_endpoint_id": STRING,
                "event_type": _EVENT_TYPE,
                "data": object_schema({"id": STRING}),
                "created_at": SECONDS,
                "status": one_of_texts(DELIVERY_STATES),
                "attempts": COUNT,
                "next_attempt_at": nullable(SECONDS),
                "delivered_at": nullable(SECONDS),
                "last_status_code": nullable(COUNT),
                "last_error": nullable(STRING),
            }
        ),
        "WebhookDeliveryList": page_of("WebhookDelivery"),
    }


def _optional_body(described: Json) -> Json:
    return {**described, "requestBody": {**described["requestBody"], "required": False}}
