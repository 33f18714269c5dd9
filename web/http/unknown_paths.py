"""What is wrong with a path without a route, where that can be known."""

from collections.abc import Collection

_PREFIX = "/v1"
_ASK_PROVIDER = "use it at the provider of your models"
_STATE = "use /v1/responses with 'previous_response_id', or /v1/conversations"
_SPEECH = (
    "use /v1/audio/transcriptions and /v1/audio/speech, or the WebSocket of /v1/responses for text"
)
_INSTEAD = {
    "agents": "use /v1/responses with tools and 'background'",
    "assistants": _STATE,
    "audio/voice_consents": _ASK_PROVIDER,
    "audio/voices": _ASK_PROVIDER,
    "chat/completions": "chat completions are not stored; use /v1/responses, which stores them",
    "chatkit": _STATE,
    "content_provenance_checks": _ASK_PROVIDER,
    "decisions": _ASK_PROVIDER,
    "edits": "use /v1/responses",
    "engines": "use /v1/models",
    "evals": "run the prompts with /v1/responses and 'background', and grade the answers yourself",
    "fine_tuning": "tune the model where it runs, and let the operator add a route for it",
    "live": _SPEECH,
    "messages/batches": "use /v1/batches, with a client of OpenAI's API",
    "organization": "it has projects, admin_api_keys and usage/completions there",
    "projects": "use /v1/organization/projects",
    "prompts": "keep your prompts yourself, and send them in 'instructions' and 'input'",
    "realtime": _SPEECH,
    "safety": _ASK_PROVIDER,
    "skills": "put instructions into the request, or use MCP servers as tools",
    "threads": _STATE,
    "vaults": "send the credentials of MCP servers with the request; they are sealed",
    "videos": _ASK_PROVIDER,
}
"""APIs that this server does not have, OpenAI's and Anthropic's, by the beginning of their path
behind /v1, and what to use instead."""


def path_hint(path: str, offered: Collection[str]) -> str:
    """A sentence with a space before it, or nothing.

    `offered`: the first segments, behind /v1, of this server's own routes.
    """
    segments = path.removeprefix(_PREFIX).split("/")[1:]
    first = segments[0] if segments else ""
    if not path.startswith(f"{_PREFIX}/"):
        is_known = first in offered or _not_offered(segments) is not None
        return f" The API is at {_PREFIX}{path}: the base URL ends with {_PREFIX}." * is_known
    if first == _PREFIX[1:]:
        return f" The path has {_PREFIX} twice: the base URL ends with one."
    if (api := _not_offered(segments)) is not None:
        return f" This server does not offer this API: {_INSTEAD[api]}."
    return ""


def _not_offered(segments: list[str]) -> str | None:
    """The API to which the path belongs, if this server does not have it."""
    return next(
        (api for length in (2, 1) if (api := "/".join(segments[:length])) in _INSTEAD), None
    )
