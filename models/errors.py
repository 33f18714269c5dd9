"""The error tree.

Exception
├── ApiError                   for a client: web/http/errors.py renders it
│   │                          (those from 400 to 431 but 429 are RefusedRequests)
│   ├── InvalidRequest         400
│   ├── Unauthenticated        401
│   │   └── IncorrectApiKey
│   ├── MissingScope           403
│   ├── ModelNotAllowed        403
│   ├── HostNotAllowed         403
│   ├── NotFound               404
│   ├── MethodNotAllowed       405
│   ├── RequestTimeout         408
│   ├── RequestTooLarge        413
│   ├── UrlTooLong             414
│   ├── UnsupportedMediaType   415
│   ├── TooManyUnknownKeys     429, with Retry-After
│   ├── QuotaExceeded          429, with Retry-After: a quota of the project
│   ├── ShareUsedUp            429, with Retry-After: the project's part of a process
│   ├── HeadTooLarge           431
│   ├── RunFailed              the status of the upstream's failure (foreground, not streamed)
│   ├── InternalError          500
│   ├── UpstreamNotConfigured  503: the project's routes are wrong
│   └── Unavailable            503, with Retry-After
│       ├── ServerStopping
│       │   └── ClientDisconnected   499: nobody receives it
│       └── TooManyConnections
└── RunError                   ends a run: worker/run/end_state.py makes the ending from it
    ├── UpstreamFailed         the upstream refused, closed the connection, or sent invalid data
    │   ├── UpstreamUnreached  the request was not sent
    │   │   └── UpstreamBusy   because the upstream is at its limit, or known to be down
    │   └── ToolFailed         an MCP server failed, and the response cannot continue without it
    ├── Deferred               no upstream is available, or one broke off its answer: the response
    │                          returns to the queue
    ├── LimitReached           a limit of this server ended the run
    ├── Cancelled              a cancel was recorded
    ├── Steered                input has arrived: a successor is to be stored with the ending
    └── LeaseLost              another process owns the response: this one stores no ending
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self


class ApiError(Exception):
    """An error that a client causes or must see: an HTTP status and OpenAI's error object."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        """`code`: in place of that of the class."""
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        self.headers: dict[str, str] = {}

    def body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`; all four keys are always present."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class RefusedRequest(ApiError):
    """What is wrong is the request, or what its client may do."""

    status = 400
    type = "invalid_request_error"


class InvalidRequest(RefusedRequest):
    """The request cannot be carried out in this form."""


class Unauthenticated(RefusedRequest):
    """No API key, or an unknown one."""

    status = 401
    code = "invalid_api_key"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = {"www-authenticate": "Bearer"}


class IncorrectApiKey(Unauthenticated):
    """The API key is unknown or revoked."""

    def __init__(self, cell: str = "") -> None:
        """`cell`: the other cell that the key names."""
        super().__init__(
            f"Incorrect API key provided: it is one of the cell '{cell}', and this is another cell."
            if cell
            else "Incorrect API key provided."
        )


class MissingScope(RefusedRequest):
    """The key is valid, but may not do this."""

    status = 403
    code = "missing_scope"

    def __init__(self, scope: str) -> None:
        """`scope`: the one that the key would need."""
        super().__init__(
            "You have insufficient permissions for this operation. "
            f"Missing scopes: {scope}. Use a key that has the necessary scopes."
        )


class ModelNotAllowed(RefusedRequest):
    """The project, or the key, may not use the model."""

    status = 403
    code = "model_not_found"

    def __init__(self, project: str, model: str) -> None:
        """`project`: its id in the API."""
        super().__init__(f"Project `{project}` does not have access to model `{model[:100]}`")


class HostNotAllowed(RefusedRequest):
    """The request names a host that is not this server's, for a page that needs no key."""

    status = 403
    code = "host_not_allowed"

    def __init__(self) -> None:
        super().__init__(
            "This page is not served under the host name of this request. Use localhost or an "
            "address, or let the operator add the name to BACKBURNER_ALLOWED_HOSTS."
        )


class TooManyUnknownKeys(ApiError):
    """The client's address has sent too many unknown API keys. `wait`: seconds until it may send
    the next one."""

    status = 429
    type = "requests"
    code = "rate_limit_exceeded"

    def __init__(self, wait: float) -> None:
        super().__init__("Too many incorrect API keys from this address. Please wait.")
        self.headers = {"retry-after": str(math.ceil(wait))}


class QuotaExceeded(ApiError):
    """A quota of the request's project refuses it. `kind`: the error's type."""

    status = 429

    def __init__(self, message: str, *, kind: str, code: str, wait: float, may_retry: bool) -> None:
        """`wait`: seconds after which the same request may be admitted. `may_retry`: whether an
        official SDK shall wait for that."""
        super().__init__(message, code=code)
        self.type = kind
        self.headers = {"retry-after": str(max(1, math.ceil(wait)))}
        if not may_retry:
            self.headers["x-should-retry"] = "false"


class ShareUsedUp(ApiError):
    """The project uses all that it may use of one process."""

    status = 429
    type = "requests"
    code = "rate_limit_exceeded"

    def __init__(self, message: str) -> None:
        super().__init__(f"{message} Please retry.")
        self.headers = {"retry-after": "1"}


class NotFound(RefusedRequest):
    """The project has no object with this id."""

    status = 404


class MethodNotAllowed(RefusedRequest):
    """The path exists, but not with this method."""

    status = 405


class RequestTimeout(RefusedRequest):
    """The request did not arrive in time."""

    status = 408
    code = "request_timeout"


class RequestTooLarge(RefusedRequest):
    """The body is larger than a limit. `limit`: with its unit."""

    status = 413
    code = "request_too_large"

    def __init__(self, limit: str) -> None:
        super().__init__(f"The request body is larger than the limit of {limit}.")


class UrlTooLong(RefusedRequest):
    """The URL is longer than the limit, in bytes."""

    status = 414
    code = "url_too_long"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The URL is longer than the limit of {limit} bytes.")


class HeadTooLarge(RefusedRequest):
    """The request line and the headers are larger than the limit, in bytes."""

    status = 431
    code = "headers_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The headers of the request are larger than the limit of {limit} bytes.")


class UnsupportedMediaType(RefusedRequest):
    """The body is not JSON, or is compressed."""

    status = 415
    code = "unsupported_media_type"


class Unavailable(ApiError):
    """Nothing was stored and nothing will run: the client can retry."""

    status = 503
    code = "server_error"

    def __init__(
        self, message: str = "The server cannot store requests right now. Please retry."
    ) -> None:
        super().__init__(message)
        self.headers = {"retry-after": "1"}


class UpstreamNotConfigured(ApiError):
    """The project has a route for the model, and this process knows no upstream of it: a mistake of
    the operator. Nothing that the client can change would help, and a retry does not help soon."""

    status = 503
    code = "upstream_not_configured"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"No upstream that this project has for the model '{model[:100]}' is configured. "
            "The server's operator must configure it, or correct the project's routes.",
            param="model",
        )
        self.headers = {"x-should-retry": "false"}


class ServerStopping(Unavailable):
    """This process stops; another one can serve the request."""

    def __init__(self) -> None:
        super().__init__("The server is stopping. Please retry.")


class ClientDisconnected(ServerStopping):
    """The client has disconnected. Nobody receives the response; logs and metrics have its status,
    the one that is usual for this."""

    status = 499


class TooManyConnections(Unavailable):
    """This process, or the client's address, has too many connections."""

    def __init__(self) -> None:
        super().__init__("The server has too many open connections. Please retry.")


class InternalError(ApiError):
    """An unexpected exception; the log has the traceback."""

    def __init__(self) -> None:
        super().__init__("The server had an error while processing your request.")


INSUFFICIENT_QUOTA = "insufficient_quota"
"""The code if the upstream's account must be paid for. The status is 429, but a retry does not
help."""


class RunFailed(ApiError):
    """A foreground response, not streamed, that failed before any output.

    The status is the one of the upstream's failure.
    """

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
        if status not in (429, 503) or code == INSUFFICIENT_QUOTA:
            self.headers["x-should-retry"] = "false"
        if retry_after is not None:
            self.headers["retry-after"] = str(retry_after)


class RunError(Exception):
    """The run ended before the model had finished."""


def history_too_large_message(limit: int) -> str:
    """The message if a request continues more than a worker may load. `limit`: the setting
    `limits.history`."""
    return (
        f"The history and the input of this response are larger than the limit of {limit} bytes "
        "together. Continue a shorter one, or compact it."
    )


UPSTREAM_ENDED_EARLY = "The upstream ended its answer before it was complete."
"""Message of the failure when an upstream's answer stops in the middle: in a response and in a
proxied chat completion."""
UPSTREAM_UNREACHABLE = (
    "The upstream could not be reached, or closed the connection before it answered."
)
"""Message of the failure when no answer began: in a response and in a proxied chat completion."""


class UpstreamFailed(RunError):
    """The upstream refused the request, closed the connection, stalled, or sent invalid data.

    `code` is the `error.code` of the Response, one of those in OpenAI's SDK. `reason` is a finer
    one, for logs and metrics. A foreground client, not streamed and without output so far, gets
    `status` with `envelope_code` and `param`. `retry_after` is in seconds. `is_temporary`: the same
    request may succeed later, so a background response waits (docs/adr/0014). `may_be_request`: the
    upstream has answered, with an error of its own that it may give to this request each time.
    `is_interruption`: the upstream broke off its answer, and the request is not to blame, so a
    background response repeats the turn a few times (docs/adr/0014).
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
        is_temporary: bool = False,
        may_be_request: bool = False,
        is_interruption: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.is_temporary = is_temporary
        self.may_be_request = may_be_request
        self.is_interruption = is_interruption
        self.status = status
        self.param = param
        self.retry_after = retry_after
        self.envelope_code = envelope_code
        self.upstream: str | None = None
        """The configured name of the upstream that was called, once that is known."""

    @classmethod
    def of_request(
        cls,
        message: str,
        reason: str,
        *,
        code: str = "invalid_prompt",
        param: str | None = None,
        envelope_code: str | None = None,
    ) -> Self:
        """The failure of a request that is to blame itself: a 400."""
        return cls(
            message, code=code, reason=reason, status=400, param=param, envelope_code=envelope_code
        )

    def __str__(self) -> str:
        # The message may have been replaced: secrets that an upstream repeats are taken out of it.
        return self.message


class UpstreamUnreached(UpstreamFailed):
    """The request was not sent to the upstream, so the model did no work."""


class UpstreamBusy(UpstreamUnreached):
    """The upstream is at its limit, or its circuit is open. Retry in `seconds`.

    `returns_soon`: a background response is deferred for the shortest time. It has waited for a
    permit, and its project has no other response that waits there.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "server_error",
        reason: str,
        status: int,
        seconds: float,
        envelope_code: str | None = None,
        returns_soon: bool = False,
    ) -> None:
        super().__init__(
            message,
            code=code,
            reason=reason,
            status=status,
            retry_after=math.ceil(seconds),
            envelope_code=envelope_code,
            is_temporary=True,
        )
        self.seconds = seconds
        self.returns_soon = returns_soon


class ToolFailed(UpstreamFailed):
    """An MCP server refused the connection or could not be reached, and the response needs it.

    Other failures of a tool are passed to the model as the tool's output.
    """


UNKNOWN_CONTENT = "unknown_content"
"""The reason of a call whose answer had content in fields that nobody knows. Its message names
them."""


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call of an upstream that failed, or whose answer was not understood as a whole, as
    operators see it."""

    upstream: str
    """its configured name"""
    reason: str
    """as in `responses.reason`; UNKNOWN_CONTENT if it is no failure"""
    message: str
    tries: int = 1
    """in a row, with this answer"""
    answered_between: int = 0
    """before how many of these tries the upstream has answered another request of the model, since
    the one before"""
    at: float = 0.0
    """of the last one of these tries, in seconds since the epoch; 0: not counted"""


class Deferred(RunError):
    """No upstream is available now, and the response can wait: no worker claims it for at least
    `seconds`, longer with each attempt unless it `returns_soon`. The last of `failures` is the one
    that it waits for.

    `repeat`: 0, or which repeat of the turn the next attempt makes, from 1: an upstream broke off
    its answer.
    """

    def __init__(
        self,
        seconds: float,
        failures: Sequence[FailedCall],
        *,
        returns_soon: bool = False,
        repeat: int = 0,
    ) -> None:
        super().__init__(f"deferred for {seconds:.1f} s")
        self.seconds = seconds
        self.failures = failures
        self.returns_soon = returns_soon
        self.repeat = repeat


class LimitReached(RunError):
    """A limit of this server ended the run; `reason` names it. Foreground clients get `status`."""

    def __init__(self, message: str, *, reason: str, status: int = 504) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.status = status
        self.upstream: str | None = None
        """As of UpstreamFailed; None: the limit is not one of a call."""


class StatementRefused(RunError):
    """Postgres answers, but does not carry out one statement of this response: it is beyond a limit
    of Postgres, or is always cancelled."""


class Cancelled(RunError):
    """A cancel was recorded for this response."""


class Steered(RunError):
    """Input has arrived while the response ran, more than its owner knew of: the ending is not
    stored without it."""


class LeaseLost(RunError):
    """This process no longer owns the response; the fence rejects its writes."""
