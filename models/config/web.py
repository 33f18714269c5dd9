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
    """Time between two keep-alive comments on an idle stream."""
    send_timeout: Duration = timedelta(seconds=60)
    """A connection whose client reads nothing for this long is closed; of an answer over 64 KiB it
    must read a fortieth."""
    poll: Duration = timedelta(seconds=5)
    """How often the database is read for a waiting reader although no notification arrived."""
    grace: Duration = timedelta(seconds=10)
    """How long foreground requests may still run at shutdown."""
    cancel_wait: Duration = timedelta(seconds=5)
    """How long a cancel request waits for the response to end."""
    ephemeral_background: bool = False
    """Allows `background` with `store: false`; such a response is kept 10 minutes after its end."""
    reader_buffer: Bytes = 256 * 1024
    """Most unsent data of one reader; a slower reader continues from the event log."""
    pool_size: int = Field(default=8, ge=2)
    """Most database connections of one process for requests (docs/deploy.md, "Sizing"). One project
    uses two thirds of them at most."""
    connections: int = Field(default=5000, ge=1)
    """Most open HTTP connections of one process; further ones get a 503."""
    connections_per_address: int = Field(default=1000, ge=0)
    """Most open HTTP connections from one address, or from one /64 network of IPv6, that have not
    yet sent a valid API key; 0: no limit. All clients behind a reverse proxy have its address."""
    connections_per_project: int = Field(default=4000, ge=0)
    """Most open HTTP connections that have sent a valid API key of one project; further ones get a
    429 and are closed. 0: no own limit."""
    guesses: int = Field(default=20, ge=1)
    """Unknown API keys from one address that are answered at once; further ones are answered ten a
    second. All clients behind a reverse proxy may have its address (docs/limits.md)."""
    head_bytes: Bytes = 64 * 1024
    """Largest request line and headers of a request; larger ones get a 431."""
    url_bytes: Bytes = 16 * 1024
    """Longest URL of a request; longer ones get a 414."""
    head_time: Duration = timedelta(seconds=10)
    """Longest time in which the headers of a request must arrive; also for the first request of a
    connection."""
    message_pause: Duration = timedelta(seconds=15)
    """A WebSocket of whose incomplete message less than 1 KiB arrives in this time is closed."""
    body_pause: Duration = timedelta(seconds=15)
    """A request of whose body less than 1 KiB arrives in this time gets a 408; of one over 64 KiB a
    fortieth must arrive."""
    sockets: int = 1000
    """Most open WebSockets of one process."""
    sockets_per_project: int = Field(default=800, ge=0)
    """Most open WebSockets of one project in one process; 0: no own limit."""
    streams: int = Field(default=4000, ge=1)
    """Most streams and waiting requests of one process; further ones get a 503."""
    streams_per_project: int = Field(default=3200, ge=0)
    """The same of one project; further ones get a 429. 0: no own limit."""
    bodies: Bytes = 96 * 1024 * 1024
    """Most bytes of request bodies, WebSocket messages, responses, and items of lists that one
    process reads, checks and sends at a time. A body also counts 100 bytes for each JSON value,
    from its arrival on. Bodies up to 64 KiB do not count unless they have thousands of values, and
    items up to 8 MiB. A process needs about six times as much memory."""
    bodies_per_project: Bytes = 72 * 1024 * 1024
    """The same of one project; 0: no own limit."""
    bodies_wait: Duration = timedelta(seconds=5)
    """How long a larger body waits for others before it is refused."""
    uploads: int = Field(default=64, ge=1)
    """Most files that one process receives, or puts together, at a time. Each needs half a megabyte
    of memory; 7 MB if it goes to a bucket."""
    uploads_per_project: int = Field(default=48, ge=0)
    """The same of one project; 0: no own limit."""
    spools: Bytes = 256 * 1024 * 1024
    """Most bytes of uploads that one process keeps in temporary files, because their `model` comes
    behind their file. The folder is that of `TMPDIR`, else `/tmp`."""
    spools_per_project: Bytes = 192 * 1024 * 1024
    """The same of one project; 0: no own limit."""
    cors_origins: TextList = ()
    """Origins whose pages may call the API from a browser, such as `https://app.example`. Unset:
    none."""

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(_ORIGIN, origin) for origin in value):
            raise ValueError("each must be an origin such as https://app.example, without a path")
        return value

    socket_time: Duration = timedelta(hours=1)
    """How long one WebSocket may be used; OpenAI has the same limit."""
    strict_schemas: Literal["any", "openai"] = "any"
    """Which JSON Schemas with `strict` a request may have: any that is valid, or those alone that
    OpenAI accepts. Upstreams get them unchanged."""
