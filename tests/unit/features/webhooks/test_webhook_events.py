"""Webhooks without a network: pauses, signatures, bodies."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import openai
import pytest

from features.webhooks.events import EventType, event_body, event_id, new_secret, signed_headers
from features.webhooks.sender import EXPIRY, parse_retry_after, pause_after

NOW = datetime(2026, 11, 23, 6, 30, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        (" 0 ", 0),
        ("9" * 40, 86_400),
        ("Mon, 23 Nov 2026 06:31:30 GMT", 90),
        ("Monday, 23-Nov-26 06:31:30 GMT", 90),
        ("Mon, 23 Nov 2026 06:29:00 GMT", None),
        ("Mon, 99 Nov 2026 06:29:00 GMT", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
    ],
)
def test_an_endpoint_may_ask_for_a_pause_in_seconds_or_by_a_date(
    value: str, seconds: float | None
) -> None:
    assert parse_retry_after(value, NOW) == seconds


def test_pauses_grow_differ_and_last_for_three_days() -> None:
    pauses = [pause_after(attempt, None) for attempt in range(1, 30)]
    tries = next(n for n in range(30) if sum(pauses[:n], timedelta()) > EXPIRY)
    assert (timedelta(days=3), 12 <= tries <= 20) == (EXPIRY, True)
    for attempt in (1, 3, 9, 50):
        drawn = [pause_after(attempt, None) for _ in range(50)]
        assert len(set(drawn)) > 40, "jitter"
        assert max(drawn) <= min(drawn) * 1.1
    assert [pause.total_seconds() >= low for pause, low in zip(pauses, (5, 30, 120), strict=False)]
    assert pause_after(1, 3600) >= timedelta(hours=1)
    assert pause_after(9, 5) >= timedelta(hours=8), "never sooner than without it"
    assert pause_after(1, 1e9) <= timedelta(hours=26.4)


def test_both_secrets_of_a_rotation_open_a_small_body() -> None:
    secrets = [new_secret(), new_secret()]
    event = UUID(int=2**128 - 1)
    for event_type in EventType:
        body = event_body(event, event_type, NOW, f"resp_{event.hex}")
        assert len(body) < 20_000
        timestamp = int(datetime.now(UTC).timestamp())
        headers = signed_headers(secrets, event_id(event), timestamp, body)
        for secret in secrets:
            client = openai.OpenAI(api_key="bb-", webhook_secret=secret)
            unwrapped = client.webhooks.unwrap(body, headers)
            assert (unwrapped.id, unwrapped.type) == (event_id(event), event_type)
        stranger = openai.OpenAI(api_key="bb-", webhook_secret=new_secret())
        with pytest.raises(openai.InvalidWebhookSignatureError):
            stranger.webhooks.unwrap(body, headers)
