"""Webhook endpoints and their deliveries in the document (docs/webhooks.md)."""

from features.reference import schemas
from features.tenants.document import NAME, admin_change, admin_list, admin_operations
from features.webhooks.events import EventType
from features.webhooks.routes import ADMIN_SUFFIX, MAX_OVERLAP
from features.webhooks.web import DELIVERY_STATES
from models.ids import EVENT, WEBHOOK_ENDPOINT
from models.wire.api_schema import Schema, const, nullable, object_schema

PATHS = {
    "endpoint_id": schemas.about_id(f"{WEBHOOK_ENDPOINT}_"),
    "event_id": schemas.about_id(f"{EVENT}_"),
}
_EVENT_TYPE = schemas.one_of_texts(EventType)
_EVENT_TYPES = schemas.array_of(_EVENT_TYPE)


def operations() -> dict[str, schemas.Json]:
    """Name of a route's function -> its operation."""
    of_all = _operations()
    types = schemas.response("The types.", "WebhookEventTypeList")
    return {
        **of_all,
        **admin_operations({f"{name}{ADMIN_SUFFIX}": each for name, each in of_all.items()}),
        "list_event_types": schemas.operation("List the types of events", types),
    }


def _operations() -> dict[str, schemas.Json]:
    endpoint = schemas.response("The endpoint.", "WebhookEndpoint")
    with_secret = schemas.response("The endpoint, with its secret.", "WebhookEndpointWithSecret")
    return {
        "list_endpoints": admin_list("List webhook endpoints", "WebhookEndpoint"),
        "create_endpoint": admin_change(
            "Create a webhook endpoint",
            with_secret,
            "CreateWebhookEndpoint",
            {"url": "https://example.com/events"},
            once=True,
        ),
        "retrieve_endpoint": schemas.operation("Get a webhook endpoint", endpoint),
        "update_endpoint": admin_change(
            "Change, enable or disable a webhook endpoint",
            endpoint,
            "UpdateWebhookEndpoint",
            {"enabled": False},
        ),
        "delete_endpoint": schemas.operation(
            "Delete a webhook endpoint", schemas.response("Deleted.", "DeletedWebhookEndpoint")
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


def _delivery_operations() -> dict[str, schemas.Json]:
    state = schemas.query_parameter(
        "status", schemas.one_of_texts(DELIVERY_STATES), "Only deliveries in it."
    )
    return {
        "test_endpoint": admin_change(
            "Deliver a test event, and wait for the first try",
            schemas.response("What the first try has led to.", "WebhookTest"),
            "TestWebhookEndpoint",
            {"event_type": EventType.RESPONSE_COMPLETED.value},
            body_required=False,
        ),
        "list_deliveries": admin_list(
            "List the deliveries to a webhook endpoint", "WebhookDelivery", state
        ),
        "resend_event": schemas.operation(
            "Deliver an event again", schemas.response("The delivery.", "WebhookDelivery"), 400
        ),
    }


def components(_deployment: schemas.Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    endpoint: dict[str, Schema] = {
        "object": const("webhook_endpoint"),
        "id": schemas.STRING,
        "name": schemas.STRING,
        "url": schemas.STRING,
        "event_types": _EVENT_TYPES,
        "created_at": schemas.SECONDS,
        "updated_at": schemas.SECONDS,
        "signing_secret_hint": nullable(schemas.STRING),
        "status": schemas.one_of_texts(("enabled", "failing", "disabled")),
        "disabled_reason": nullable(schemas.STRING),
        "failures": schemas.COUNT,
        "failing_since": nullable(schemas.SECONDS),
        "waiting": schemas.COUNT,
    }
    return {
        "CreateWebhookEndpoint": schemas.strict(
            {"url": schemas.STRING}, {"name": NAME, "event_types": _EVENT_TYPES}
        ),
        "UpdateWebhookEndpoint": schemas.strict(
            {},
            {
                "url": schemas.STRING,
                "name": NAME,
                "event_types": _EVENT_TYPES,
                "enabled": schemas.BOOLEAN,
            },
        ),
        "RotateWebhookSecret": schemas.strict(
            {},
            {
                "overlap_seconds": schemas.integer(0, MAX_OVERLAP),
                "keep_old_secret_active_for_24_hours": schemas.BOOLEAN,
            },
        ),
        "TestWebhookEndpoint": schemas.strict({}, {"event_type": _EVENT_TYPE}),
        "WebhookEndpoint": object_schema(endpoint),
        "WebhookEndpointList": schemas.page_of("WebhookEndpoint"),
        "WebhookEndpointWithSecret": object_schema({**endpoint, "signing_secret": schemas.STRING}),
        "DeletedWebhookEndpoint": schemas.deleted("webhook_endpoint.deleted"),
        "WebhookEventTypeList": object_schema({"object": const("list"), "data": _EVENT_TYPES}),
        **_deliveries(),
    }


def _deliveries() -> dict[str, Schema]:
    return {
        "WebhookTest": object_schema(
            {
                "object": const("webhook_endpoint.test"),
                "webhook_endpoint_id": schemas.STRING,
                "event_type": _EVENT_TYPE,
                "event_id": schemas.STRING,
                "status_code": nullable(schemas.COUNT),
                "success": schemas.BOOLEAN,
                "error": nullable(schemas.STRING),
            }
        ),
        "WebhookDelivery": object_schema(
            {
                "object": const("webhook_endpoint.delivery"),
                "id": schemas.STRING,
                "webhook_endpoint_id": schemas.STRING,
                "event_type": _EVENT_TYPE,
                "data": object_schema({"id": schemas.STRING}),
                "created_at": schemas.SECONDS,
                "status": schemas.one_of_texts(DELIVERY_STATES),
                "attempts": schemas.COUNT,
                "next_attempt_at": nullable(schemas.SECONDS),
                "delivered_at": nullable(schemas.SECONDS),
                "last_status_code": nullable(schemas.COUNT),
                "last_error": nullable(schemas.STRING),
            }
        ),
        "WebhookDeliveryList": schemas.page_of("WebhookDelivery"),
    }
