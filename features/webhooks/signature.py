"""Signatures of deliveries: Standard Webhooks (https://www.standardwebhooks.com), as OpenAI's."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence

_PREFIX = "whsec_"
_SECRET_BYTES = 32


def new_secret() -> str:
    """A new signing secret: `whsec_` and 32 random bytes in base64."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signed_headers(
    signing_secrets: Sequence[str], event: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """The headers of one delivery. During a rotation it has a signature with each secret.

    `event`: the id of the event. `timestamp`: of this try, in seconds; receivers refuse old ones.
    """
    signed = b"%b.%d.%b" % (event.encode(), timestamp, body)
    signatures = (
        base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()
        for secret in signing_secrets
    )
    return {
        "webhook-id": event,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(_PREFIX))
