"""Webhook endpoints and their deliveries in the document (docs/webhooks.md)."""

from features.reference.schemas import (
    BOOLEAN,
    COUNT,
    SECONDS,
    STRING,
    Deployment,
    Json,
    about_id,
    array_of,
    deleted,
    integer,
    one_of_texts,
    operation,
    page_of,
    query_parameter,
    response,
    strict,
)
from features.tenants.document import NAME, admin_change, admin_list, admin_operations
from features.webhooks.events import EventType
from features.webhooks.routes import ADMIN_SUFFIX, MAX_OVERLAP
from features.webhooks.web import DELIVERY_STATES
from models.ids import EVENT, WEBHOOK_ENDPOINT
from models.wire.api_schema import Schema, const, nullable, object_schema

PATHS = {"endpoint_id": about_id(f"{WEBHOOK_ENDPOINT}_"), "event_id": about_id(f"{EVENT}_")}
_EVENT_TYPE = one_of_texts(EventType)
_EVENT_TYPES = array_of(_EVENT_TYPE)


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    of_all = _operations()
    types = response("The types.", "WebhookEventTypeList")
    return {
        **of_all,
        **admin_operations({f"{name}{ADMIN_SUFFIX}": each for name, each in of_all.items()}),
        "list_event_types": operation("List the types of events", types),
    }


def _operations() -> dict[str, Json]:
    endpoint = response("The endpoint.", "WebhookEndpoint")
    with_secret = response("The endpoint, with its secret.", "WebhookEndpointWithSecret")
    return {
        "list_endpoints": admin_list("List webhook endpoints", "WebhookEndpoint"),
        "create_endpoint": admin_change(
            "Create a webhook endpoint",
            with_secret,
            "CreateWebhookEndpoint",
            {"url": "https://example.com/events"},
            once=True,
        ),
        "retrieve_endpoint": operation("Get a webhook endpoint", endpoint),
        "update_endpoint": admin_change(
            "Change, enable or disable a webhook endpoint",
            endpoint,
            "UpdateWebhookEndpoint",
            {"enabled": False},
        ),
        "delete_endpoint": operation(
            "Delete a webhook endpoint", response("Deleted.", "DeletedWebhookEndpoint")
        ),
        "rotate_secret": admin_change(
            "Give a webhook endpoint a new secret",
            with_secret,
            "RotateWebhookSecret",
            {"overlap_seconds": 3600},
            once=True,
            body_required=False,
        ),
        **_delivery_operations(),
    }


def _delivery_operations() -> dict[str, Json]:
    state = query_parameter("status", one_of_texts(DELIVERY_STATES), "Only deliveries in it.")
    return {
        "test_endpoint": admin_change(
            "Deliver a test event, and wait for the first try",
            response("What the first try has led to.", "WebhookTest"),
            "TestWebhookEndpoint",
            {"event_type": EventType.RESPONSE_COMPLETED.value},
            body_required=False,
        ),
        "list_deliveries": admin_list(
            "List the deliveries to a webhook endpoint", "WebhookDelivery", state
        ),
        "resend_event": operation(
            "Deliver an event again", response("The delivery.", "WebhookDelivery"), 400
        ),
    }


def components(_deployment: Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
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
        "CreateWebhookEndpoint": strict(
            {"url": STRING}, {"name": NAME, "event_types": _EVENT_TYPES}
        ),
        "UpdateWebhookEndpoint": strict(
            {}, {"url": STRING, "name": NAME, "event_types": _EVENT_TYPES, "enabled": BOOLEAN}
        ),
        "RotateWebhookSecret": strict(
            {},
            {
                "overlap_seconds": integer(0, MAX_OVERLAP),
                "keep_old_secret_active_for_24_hours": BOOLEAN,
            },
        ),
        "TestWebhookEndpoint": strict({}, {"event_type": _EVENT_TYPE}),
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
