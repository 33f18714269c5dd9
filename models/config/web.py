"""The settings of the web processes: the table `[web]` of `backburner.toml`."""

import re
from datetime import timedelta
from typing import Literal

from pydantic import Field, field_validator

from models.config.values import Bytes, Duration, Group, TextList

_ORIGIN = r"[a-z][a-z0-9+.-]*://[^\s/*?#@]+"
"""An origin as browsers send it."""


class WebSettings(Group):
    """The web processes."""

    ping: Duration = timedelta(seconds=15)
    """Time between two keep-alive comments or pings."""
    send_timeout: Duration = timedelta(seconds=60)
    """Limit: a connection whose client reads nothing for so long is closed."""
    poll: Duration = timedelta(seconds=5)
    """How often a waiting reader reads the log without a notification."""
    grace: Duration = timedelta(seconds=10)
    """How long foreground requests may still run at shutdown."""
    cancel_wait: Duration = timedelta(seconds=5)
    """Limit: how long a cancel request waits for the response to end."""
    ephemeral_background: bool = False
    """Allows `background` with `store: false`, kept 10 minutes after its end."""
    reader_buffer: Bytes = 256 * 1024
    """Limit: most unsent data of one reader; a slower one reads the event log."""
    pool_size: int = Field(default=8, ge=2)
    """Limit: database connections of one process; one project uses at most two thirds."""
    connections: int = Field(default=5000, ge=1)
    """Limit: most HTTP connections of one process."""
    connections_per_address: int = Field(default=1000, ge=0)
    """Limit: most HTTP connections from one address without a valid API key so far; 0: no limit."""
    connections_per_project: int = Field(default=4000, ge=0)
    """Limit: most HTTP connections of one project; 0: no limit."""
    guesses: int = Field(default=20, ge=1)
    """Limit: unknown API keys of one address that are answered at once; then ten a second."""
    head_bytes: Bytes = 64 * 1024
    """Limit: largest request line and headers."""
    url_bytes: Bytes = 16 * 1024
    """Limit: longest URL."""
    head_time: Duration = timedelta(seconds=10)
    """Limit: longest time for the headers of a request."""
    message_pause: Duration = timedelta(seconds=15)
    """Limit: a WebSocket is closed if less than 1 KiB of an incomplete message arrives in this
    time."""
    body_pause: Duration = timedelta(seconds=15)
    """Limit: the same for a request's body; of one over 64 KiB a fortieth."""
    sockets: int = 1000
    """Limit: most WebSockets of one process."""
    sockets_per_project: int = Field(default=800, ge=0)
    """Limit: the same of one project; 0: no limit."""
    streams: int = Field(default=4000, ge=1)
    """Limit: most streams and waiting requests of one process."""
    streams_per_project: int = Field(default=3200, ge=0)
    """Limit: the same of one project; 0: no limit."""
    bodies: Bytes = 96 * 1024 * 1024
    """Limit: most bytes of large bodies, answers and events in one process, which needs six times
    as much memory."""
    bodies_per_project: Bytes = 72 * 1024 * 1024
    """Limit: the same of one project; 0: no limit."""
    bodies_wait: Duration = timedelta(seconds=5)
    """Limit: how long a large body waits for others before it is refused."""
    uploads: int = Field(default=64, ge=1)
    """Limit: most files that one process receives or sends at a time; each takes 0.5 MB of memory,
    7 MB to a bucket."""
    uploads_per_project: int = Field(default=48, ge=0)
    """Limit: the same of one project; 0: no limit."""
    spools: Bytes = 256 * 1024 * 1024
    """Limit: most bytes of uploads that wait in temporary files for their `model`."""
    spools_per_project: Bytes = 192 * 1024 * 1024
    """Limit: the same of one project; 0: no limit."""
    cors_origins: TextList = ()
    """Origins whose pages may call the API from a browser, such as `https://app.example`."""

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(_ORIGIN, origin) for origin in value):
            raise ValueError("each must be an origin such as https://app.example, without a path")
        return value

    socket_time: Duration = timedelta(hours=1)
    """Limit: how long one WebSocket may be used."""
    strict_schemas: Literal["any", "openai"] = "any"
    """Strict JSON Schemas: any valid one, or those that OpenAI accepts."""
