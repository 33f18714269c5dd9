"""Webhook endpoints and their deliveries in the document (docs/webhooks.md)."""

from models.ids import EVENT, WEBHOOK_ENDPOINT
from models.projects.changes import MAX_NAME
from models.webhooks.events import EventType
from models.wire.api_schema import Schema, const, nullable, object_schema
from web.openapi.admin_parts import (
    IN_PROJECT,
    admin_change,
    admin_list,
    admin_operations,
    page_of,
    strict_body,
)
from web.openapi.parts import Json, operation, path_parameter, query_parameter, response
from web.openapi.response_schema import SECONDS
from web.openapi.scalars import BOOLEAN, COUNT, STRING
from web.routes.webhook_endpoints import ADMIN_SUFFIX
from web.webhooks.bodies import MAX_OVERLAP
from web.webhooks.endpoints import DELIVERY_STATES

_ENDPOINT = path_parameter("endpoint_id", f"`{WEBHOOK_ENDPOINT}_` and 32 hexadecimal digits.")
_EVENT = path_parameter("event_id", f"`{EVENT}_` and 32 hexadecimal digits.")
_EVENT_TYPE: Schema = {"type": "string", "enum": [event.value for event in EventType]}
_EVENT_TYPES: Schema = {"type": "array", "items": _EVENT_TYPE}


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    of_admins = _operations(*IN_PROJECT)
    types = {"200": response("The types.", "WebhookEventTypeList")}
    return {
        **_operations(),
        **admin_operations({f"{name}{ADMIN_SUFFIX}": of_admins[name] for name in of_admins}),
        "list_event_types": operation("List the types of events", types, 401),
    }


def _operations(*project: Json) -> dict[str, Json]:
    """`project`: the parameters that name the project."""
    one = (*project, _ENDPOINT)
    endpoint = {"200": response("The endpoint.", "WebhookEndpoint")}
    with_secret = {"200": response("The endpoint, with its secret.", "WebhookEndpointWithSecret")}
    return {
        "list_endpoints": admin_list("List webhook endpoints", "WebhookEndpoint", *project),
        "create_endpoint": admin_change(
            "Create a webhook endpoint",
            with_secret,
            "CreateWebhookEndpoint",
            {"url": "https://example.com/events"},
            *project,
        ),
        "retrieve_endpoint": operation(
            "Get a webhook endpoint", endpoint, *(401, 404), parameters=one
        ),
        "update_endpoint": admin_change(
            "Change, enable or disable a webhook endpoint",
            endpoint,
            "UpdateWebhookEndpoint",
            {"enabled": False},
            *one,
        ),
        "delete_endpoint": operation(
            "Delete a webhook endpoint",
            {"200": response("Deleted.", "DeletedWebhookEndpoint")},
            *(401, 404),
            parameters=one,
        ),
        "rotate_secret": _optional_body(
            admin_change(
                "Give a webhook endpoint a new secret",
                with_secret,
                "RotateWebhookSecret",
                {"overlap_seconds": 3600},
                *one,
            )
        ),
        **_delivery_operations(one),
    }


def _delivery_operations(one: tuple[Json, ...]) -> dict[str, Json]:
    """`one`: the parameters that name the endpoint."""
    state = query_parameter(
        "status", {"type": "string", "enum": list(DELIVERY_STATES)}, "Only deliveries in it."
    )
    return {
        "test_endpoint": _optional_body(
            admin_change(
                "Deliver a test event, and wait for the first try",
                {"200": response("What the first try has led to.", "WebhookTest")},
                "TestWebhookEndpoint",
                {"event_type": EventType.RESPONSE_COMPLETED.value},
                *one,
            )
        ),
        "list_deliveries": admin_list(
            "List the deliveries to a webhook endpoint", "WebhookDelivery", *one, state
        ),
        "resend_event": operation(
            "Deliver an event again",
            {"200": response("The delivery.", "WebhookDelivery")},
            *(400, 401, 404),
            parameters=(*one, _EVENT),
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
        "status": {"type": "string", "enum": ["enabled", "failing", "disabled"]},
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
        "DeletedWebhookEndpoint": object_schema(
            {
                "object": const("webhook_endpoint.deleted"),
                "id": STRING,
                "deleted": {"type": "boolean", "const": True},
            }
        ),
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
                "status": {"type": "string", "enum": list(DELIVERY_STATES)},
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
