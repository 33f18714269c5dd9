"""The error tree.

Exception
├── ApiError                      the client's: one envelope, rendered once, in web/http/errors.py
│   ├── InvalidRequest            400
│   ├── Unauthenticated           401
│   │   └── IncorrectApiKey
│   ├── NotFound                  404
│   ├── MethodNotAllowed          405
│   ├── RequestTooLarge           413
│   ├── UnsupportedMediaType      415
│   ├── RunFailed                 as the upstream answered (foreground, not streamed)
│   ├── InternalError             500
│   └── Unavailable               503, with Retry-After
│       └── ServerStopping
└── RunError                      the run's: turned into an ending in worker/run/end_state.py
    ├── UpstreamFailed            the far side refused, broke off, stalled or talked nonsense
    │   ├── UpstreamBusy          it was not even asked: at its limit, or known to be down
    │   └── ToolFailed            so did the server of a tool, and without it the response cannot go on
    ├── PutOff                    nobody could be asked: back into the queue, for a while
    ├── LimitReached              one of our own limits ended it
    ├── Cancelled                 somebody asked for it
    └── LeaseLost                 the response is somebody else's now: end in silence
"""

import math
from typing import Any


class ApiError(Exception):
    """An error a client can cause or must see: HTTP status, and the four keys of the envelope (contract §5.1)."""

    status = 500
    type = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.headers: dict[str, str] = {}

    def body(self) -> dict[str, Any]:
        """The envelope: `{"error": {"message", "type", "param", "code"}}`, all four keys always present."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class InvalidRequest(ApiError):
    """The request cannot be carried out as it stands."""

    status = 400
    type = "invalid_request_error"


class Unauthenticated(ApiError):
    """No API key, or one that is not ours."""

    status = 401
    type = "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key")
        self.headers = {"www-authenticate": "Bearer"}


class IncorrectApiKey(Unauthenticated):
    """The API key is unknown or revoked."""

    def __init__(self) -> None:
        super().__init__("Incorrect API key provided.")


class NotFound(ApiError):
    """There is no such thing in this project."""

    status = 404
    type = "invalid_request_error"


class MethodNotAllowed(ApiError):
    """The route exists, the method does not."""

    status = 405
    type = "invalid_request_error"


class RequestTooLarge(ApiError):
    """The body is larger than this server takes."""

    status = 413
    type = "invalid_request_error"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The request body is larger than the limit of {limit} bytes.", code="request_too_large"
        )


class UnsupportedMediaType(ApiError):
    """The body is not JSON, or is encoded in a way we do not read."""

    status = 415
    type = "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="unsupported_media_type")


class Unavailable(ApiError):
    """Nothing was stored and nothing will run: try again."""

    status = 503

    def __init__(
        self, message: str = "The server cannot store requests right now. Please retry."
    ) -> None:
        super().__init__(message, code="server_error")
        self.headers = {"retry-after": "1"}


class ServerStopping(Unavailable):
    """This process stops; another one can serve the request."""

    def __init__(self) -> None:
        super().__init__("The server is stopping. Please retry.")


class InternalError(ApiError):
    """An unexpected exception; the log has the traceback."""

    def __init__(self) -> None:
        super().__init__("The server had an error while processing your request.")


class RunFailed(ApiError):
    """A foreground, not streamed response that failed before any output: the upstream's own status class (design §4.9)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str,
        code: str | None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self.type = kind
        if status not in (429, 503):
            self.headers["x-should-retry"] = "false"
        if retry_after is not None:
            self.headers["retry-after"] = str(retry_after)


class RunError(Exception):
    """Something ended a run before the model was done."""


class UpstreamFailed(RunError):
    """The upstream refused, broke off, stalled, or sent what cannot be read.

    `code` is one of the SDK's response error codes (contract §3); `reason` is our own finer word for operators; `status` is the
    HTTP status a foreground, not streamed client gets when nothing was output yet; `retry_after` is in seconds. `unsent`: the request
    never reached it.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "server_error",
        reason: str,
        status: int = 502,
        param: str | None = None,
        retry_after: int | None = None,
        envelope_code: str | None = None,
        unsent: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.unsent = unsent
        self.reason = reason
        self.status = status
        self.param = param
        self.retry_after = retry_after
        self.envelope_code = envelope_code


class UpstreamBusy(UpstreamFailed):
    """The upstream was not asked: it is at its limit, or its circuit is open. It may be asked in `seconds`."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "server_error",
        reason: str,
        status: int,
        seconds: float,
        envelope_code: str | None = None,
    ) -> None:
        super().__init__(
            message,
            code=code,
            reason=reason,
            status=status,
            retry_after=math.ceil(seconds),
            envelope_code=envelope_code,
            unsent=True,
        )
        self.seconds = seconds


class Deferred(RunError):
    """No upstream can be asked now, and the response can wait: it goes back into the queue for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"put off for {seconds:.1f} s")
        self.seconds = seconds


class ToolFailed(UpstreamFailed):
    """The server of a tool refused us, or cannot be asked, and the response cannot go on without it; other faults are told to the model."""


class LimitReached(RunError):
    """One of our own limits ended the run: `reason` names it, `status` is what a foreground client gets."""

    def __init__(self, message: str, *, reason: str, status: int = 504) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.status = status


class Cancelled(RunError):
    """A cancel was recorded for this response."""


class LeaseLost(RunError):
    """The database no longer counts this response as ours; whatever we still hold of it is void."""
