"""One create on a WebSocket in the log: one line when it has ended (docs/operations.md, "Logs").

The socket's own line comes when it closes, which may be an hour later.
"""

import time
from uuid import UUID

from models import logs
from models.errors import ApiError
from models.ids import response_id
from web.http.request_record import RequestRecord

_ACCEPTED = 200
_CLIENT_LEFT = 499


class CreateLog:
    """What the line of one create shows. It keeps nothing of the create's frame."""

    __slots__ = ("_error", "_is_complete", "_record", "_response", "_started_at", "_status")

    def __init__(self, record: RequestRecord) -> None:
        """`record`: of the socket. The frame of the create has arrived."""
        self._record = record
        self._started_at = time.monotonic()
        self._status: int | None = None
        """None: the client has got no event and no error yet."""
        self._error: str | None = None
        self._response: UUID | None = None
        self._is_complete = False

    def note_response(self, response: UUID) -> None:
        """The create has made or joined this response, whose events are sent from now on."""
        self._status, self._response = _ACCEPTED, response

    def note_error(self, error: ApiError) -> None:
        """The client gets this error, instead of the events or of the rest of them."""
        self._status = error.status if self._status is None else self._status
        self._error = error.code or error.type
        self._is_complete = self._response is None

    def note_end(self) -> None:
        """All events were sent."""
        self._is_complete = True

    def write(self, *, server_ended: bool) -> None:
        """Writes the line. `server_ended`: the server ended what is not complete, and not the
        client."""
        fields = self._record.client_fields() | {
            "status": self._status or _CLIENT_LEFT,
            "seconds": round(time.monotonic() - self._started_at, 6),
        }
        if self._error is not None:
            fields["error"] = self._error
        if self._response is not None:
            fields["response"] = response_id(self._response)
        if not self._is_complete:
            by_server = server_ended or self._error is not None
            fields["aborted"] = "server" if by_server else "client"
        logs.write_line("websocket_create", fields)
