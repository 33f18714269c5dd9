"""One try of a delivery, through the guard of outgoing connections, and when the next is made."""

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import aiohttp

from features.webhooks.events import event_body, event_id, open_secrets, signed_headers
from features.webhooks.queries import Delivery
from models.egress import NOT_REACHED, EgressPolicy, EgressRefused
from models.secrets import Sealed, Sealer, Unreadable
from worker.outbound.guarded_session import NO_TIMEOUT, guarded_session

EXPIRY = timedelta(days=3)
"""After that a delivery is given up."""
DISABLE_AFTER = timedelta(days=5)
"""An endpoint whose tries have all failed for so long is disabled."""
LONGEST_ENDPOINT_PAUSE = 300
"""Seconds for which an endpoint that fails gets nothing, at most."""
_PAUSES = (5, 30, 120, 600, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600)
"""Seconds after the first try, the second, and so on; the last one repeats."""
_LONGEST_RETRY_AFTER = 24 * 3600
"""Seconds. A `Retry-After` beyond it counts as this long."""
_MAX_DIGITS = 9
_GONE = 410


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The result of one try."""

    status: int | None = None
    """of the answer; None: there was none"""
    error: str | None = None
    """why there was none; nothing in it is a secret"""
    retry_after: float | None = None
    """seconds that the endpoint asks to wait"""

    @property
    def is_delivered(self) -> bool:
        """The endpoint has accepted it."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_gone(self) -> bool:
        """The endpoint wants nothing any more."""
        return self.status == _GONE


async def send(
    delivery: Delivery, sealer: Sealer, egress: EgressPolicy, time_limit: float
) -> DeliveryOutcome:
    """One try. `time_limit`: seconds until the head of the answer; its body is not read. Raises
    nothing that an endpoint can cause."""
    body = event_body(delivery.event_id, delivery.type, delivery.created_at, delivery.object_id)
    refusals: list[EgressRefused] = []
    try:
        sealed = Sealed(delivery.secret_key_id, delivery.secrets)
        secrets = open_secrets(sealer, delivery.endpoint_id, sealed)
        signing = secrets if delivery.has_old_secret else secrets[:1]
        headers = signed_headers(signing, event_id(delivery.event_id), int(time.time()), body)
        headers["content-type"] = "application/json"
        target = egress.check_url(delivery.url)
        async with (
            asyncio.timeout(time_limit),
            guarded_session(egress, target, refusals, headers=headers) as session,
            session.post(
                target.url, data=body, allow_redirects=False, timeout=NO_TIMEOUT
            ) as answer,
        ):
            retry_after = answer.headers.get("retry-after", "")
            return DeliveryOutcome(
                answer.status, retry_after=parse_retry_after(retry_after, datetime.now(UTC))
            )
    except Unreadable:
        return DeliveryOutcome(
            error="its signing secret cannot be opened: the key of it is missing"
        )
    except EgressRefused as refusal:
        return DeliveryOutcome(error=f"may not be reached: {refusal}")
    except TimeoutError:
        return DeliveryOutcome(error=f"did not answer within {time_limit:g} s")
    except (aiohttp.ClientError, OSError, UnicodeError) as error:
        return DeliveryOutcome(error=NOT_REACHED if refusals else _reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientSSLError):
        return "has no valid certificate"
    if isinstance(error, aiohttp.ClientConnectorError):
        return NOT_REACHED
    return "broke off before it answered"


def pause_after(attempts: int, retry_after: float | None) -> timedelta:
    """How long a delivery waits after so many tries. `retry_after`: seconds that the endpoint has
    asked for. A random tenth more, so that what failed together does not come back together."""
    seconds = float(_PAUSES[min(attempts, len(_PAUSES)) - 1])
    seconds = max(seconds, min(retry_after or 0.0, _LONGEST_RETRY_AFTER))
    return timedelta(seconds=seconds * (1 + random.random() / 10))  # noqa: S311


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Seconds from `now` that a header `Retry-After` names: a number of seconds, or a date
    (RFC 9110, 10.2.3). None for anything else, and for a date that is past."""
    value = value.strip()
    if value.isdecimal():
        return float(value) if len(value) <= _MAX_DIGITS else float(_LONGEST_RETRY_AFTER)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    seconds = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
    return seconds if seconds > 0 else None
