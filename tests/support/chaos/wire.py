"""How a proxy recognises the requests in the bytes that a client sends."""

from collections.abc import Callable

RequestParser = Callable[[bytes], list[bytes]]
"""Takes the next bytes of a client; returns the requests that begin in them."""
_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


def verbatim() -> RequestParser:
    """Each read is one request: for Redis and HTTP, whose requests are plain text."""
    return lambda data: [data]


class Statements:
    """Reads PostgreSQL's protocol: a request is the SQL of a statement, also of a prepared one."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._has_started = False
        self._prepared: dict[bytes, bytes] = {}

    def __call__(self, data: bytes) -> list[bytes]:
        """Takes more bytes of the client; returns the SQL of the statements that begin in them."""
        self._received += data
        statements: list[bytes] = []
        while (message := self._next_message()) is not None:
            kind, body = message
            if kind == b"Q":
                statements.append(body.rstrip(b"\0"))
            elif kind == b"P":
                name, sql, _ = body.split(b"\0", 2)
                self._prepared[name] = sql
            elif kind == b"B":
                _portal, name, _ = body.split(b"\0", 2)
                statements.append(self._prepared[name])
        return statements

    def _next_message(self) -> tuple[bytes, bytes] | None:
        """Type and body of the next whole message; the startup message has an empty type."""
        head = 1 if self._has_started else 0
        if len(self._received) < head + 4:
            return None
        size = int.from_bytes(self._received[head : head + 4], "big")
        if len(self._received) < head + size:
            return None
        kind, body = bytes(self._received[:head]), bytes(self._received[head + 4 : head + size])
        del self._received[: head + size]
        if not self._has_started:
            code = int.from_bytes(body[:4], "big")
            self._has_started = code not in (_SSL_REQUEST, _GSS_REQUEST)
        return kind, body
