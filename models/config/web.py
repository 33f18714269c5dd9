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
    """A connection whose client reads nothing for this long, or less than a fortieth of an answer
    over 64 KiB, is closed."""
    poll: Duration = timedelta(seconds=5)
    """How often the database is read for a waiting reader without a notification."""
    grace: Duration = timedelta(seconds=10)
    """How long foreground requests may still run at shutdown."""
    cancel_wait: Duration = timedelta(seconds=5)
    """How long a cancel request waits for the response to end."""
    ephemeral_background: bool = False
    """Allows `background` with `store: false`; it is kept 10 minutes after its end."""
    reader_buffer: Bytes = 256 * 1024
    """Most unsent data of one reader; a slower reader continues from the event log."""
    pool_size: int = Field(default=8, ge=2)
    """Database connections of one process for requests; one project uses two thirds of them at
    most."""
    connections: int = Field(default=5000, ge=1)
    """Most HTTP connections of one process."""
    connections_per_address: int = Field(default=1000, ge=0)
    """Most HTTP connections from one address, or one /64 network of IPv6, without a valid API key
    so far; 0: no limit. All clients behind a proxy have its address."""
    connections_per_project: int = Field(default=4000, ge=0)
    """Most HTTP connections of one project; 0: no limit."""
    guesses: int = Field(default=20, ge=1)
    """Unknown API keys from one address that are answered at once; then ten a second."""
    head_bytes: Bytes = 64 * 1024
    """Largest request line and headers."""
    url_bytes: Bytes = 16 * 1024
    """Longest URL."""
    head_time: Duration = timedelta(seconds=10)
    """Longest time for the headers of a request."""
    message_pause: Duration = timedelta(seconds=15)
    """A WebSocket of whose incomplete message less than 1 KiB arrives in this time is closed."""
    body_pause: Duration = timedelta(seconds=15)
    """A request of whose body less than 1 KiB arrives in this time is refused; of one over 64 KiB a
    fortieth must arrive."""
    sockets: int = 1000
    """Most WebSockets of one process."""
    sockets_per_project: int = Field(default=800, ge=0)
    """The same of one project; 0: no own limit."""
    streams: int = Field(default=4000, ge=1)
    """Most streams and waiting requests of one process."""
    streams_per_project: int = Field(default=3200, ge=0)
    """The same of one project; 0: no own limit."""
    bodies: Bytes = 96 * 1024 * 1024
    """Most bytes of large bodies, messages, answers and events that one process holds
    (docs/limits.md, "Memory of web"). It needs about six times as much memory."""
    bodies_per_project: Bytes = 72 * 1024 * 1024
    """The same of one project; 0: no own limit."""
    bodies_wait: Duration = timedelta(seconds=5)
    """How long a large body waits for others before it is refused."""
    uploads: int = Field(default=64, ge=1)
    """Most files that one process receives or sends at a time: half a megabyte of memory each, 7 MB
    to a bucket."""
    uploads_per_project: int = Field(default=48, ge=0)
    """The same of one project; 0: no own limit."""
    spools: Bytes = 256 * 1024 * 1024
    """Most bytes of uploads in temporary files, because their `model` comes behind their file."""
    spools_per_project: Bytes = 192 * 1024 * 1024
    """The same of one project; 0: no own limit."""
    cors_origins: TextList = ()
    """Origins whose pages may call the API from a browser, such as `https://app.example`."""

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(_ORIGIN, origin) for origin in value):
            raise ValueError("each must be an origin such as https://app.example, without a path")
        return value

    socket_time: Duration = timedelta(hours=1)
    """How long one WebSocket may be used."""
    strict_schemas: Literal["any", "openai"] = "any"
    """Which JSON Schemas with `strict` are accepted: any that is valid, or those that OpenAI
    accepts."""
