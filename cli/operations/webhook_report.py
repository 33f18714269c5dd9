"""Endpoints of webhooks and deliveries as text for people."""

from collections.abc import Sequence

from cli.operations.webhooks import ShownDelivery, ShownEndpoint
from cli.output import clean, fitted_table

_SHORT_ENDPOINT_ID = len("whe_") + 16


def endpoints(facts: Sequence[ShownEndpoint]) -> str:
    """One line per endpoint."""
    if not facts:
        return "there is no endpoint; `backburner webhooks create URL` makes one"

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                endpoint.id[:_SHORT_ENDPOINT_ID] if short else endpoint.id,
                clean(endpoint.project),
                clean(endpoint.url),
                " ".join(endpoint.types) or "all",
                str(endpoint.waiting),
                _state(endpoint),
            )
            for endpoint in facts
        ]

    return fitted_table(
        ("ENDPOINT", "PROJECT", "URL", "EVENTS", "WAITING", "STATE"), rows, ["URL", "EVENTS"]
    )


def _state(endpoint: ShownEndpoint) -> str:
    if endpoint.reason is not None:
        return f"disabled: {endpoint.reason}"
    if endpoint.failing_since is not None:
        return f"failing since {endpoint.failing_since}, {endpoint.failures} tries"
    return endpoint.state


def deliveries(facts: Sequence[ShownDelivery]) -> str:
    """One line per delivery."""
    if not facts:
        return "there is no delivery"

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                delivery.event,
                delivery.endpoint[:_SHORT_ENDPOINT_ID] if short else delivery.endpoint,
                delivery.type,
                delivery.object,
                delivery.created_at,
                str(delivery.attempts),
                delivery.state,
                _last_result(delivery),
            )
            for delivery in facts
        ]

    head = ("EVENT", "ENDPOINT", "TYPE", "OBJECT", "CREATED", "TRIES", "STATE", "LAST RESULT")
    return fitted_table(head, rows, ["OBJECT", "EVENT"])


def _last_result(delivery: ShownDelivery) -> str:
    if delivery.last_error is not None:
        return clean(delivery.last_error)
    return "" if delivery.last_status is None else f"HTTP {delivery.last_status}"
