"""The Response object, built here from the facts of a row and its output items, and the fields of
items that are shown only if `include` names them.

Of the values of `include`, some about tools and log probabilities decide what a run stores. URLs of
images are always shown, because clients send listed items back. Sealed reasoning, the results of
file searches and the outputs of code are always stored, for later runs, and shown only on request.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from models.wire.events import Event, Item, ItemDone, ResponseCreated, ResponseQueued, frame
from models.wire.mcp import without_hidden_fields
from models.wire.tools import is_own_container

TOOL_CHOICE_UNMET, TEXT_FORMAT_UNMET = "tool_choice_unmet", "text_format_unmet"
_UNMET_PARAMETERS = {TOOL_CHOICE_UNMET: "tool_choice", TEXT_FORMAT_UNMET: "text.format"}
"""`responses.reason` of a completed response that lacks what its request demanded -> the parameter
that demanded it."""

RETRY_OF = "retry_of"
"""Key in the parameters of a response that runs another one again: the id of that one. No client
sets it."""
STOP = "stop_sequences"
"""Key in the parameters of a response: the texts before which a chat upstream ends its answer. The
Responses API has no such parameter; a message of Anthropic's has (features/messages/)."""
OWN_PARAMETERS = ("wait_for_previous", RETRY_OF)
"""Parameters that only this server knows. They are shown only where they are set."""


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """What the Response object shows besides its output. Times are in seconds since the epoch."""

    id: str
    """`resp_<32 hex>`"""
    created_at: int
    status: str
    model: str
    parameters: dict[str, Any]
    """The checked request without its input: only what the client set (models/wire/request.py)."""
    background: bool = False
    store: bool = True
    previous_response_id: str | None = None
    conversation_id: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    """`{"code", "message"}` of a failed response."""
    incomplete_reason: str | None = None
    """Why it is incomplete, or which demand of the request a completed one does not meet."""
    completed_at: int | None = None
    service_tier: str | None = None
    """The tier that the upstream reports."""
    retried_by: str | None = None
    """The id of the last response that runs it again."""
    upstream_fields: dict[str, Any] | None = None
    """Fields of a native upstream's Response object that this server does not make itself
    (`unknown_response_fields`)."""

    def evolve(self, **changes: Any) -> "ResponseFacts":
        """A copy with `changes`."""
        return replace(self, **changes)


def output_text(output: list[Item]) -> str:
    """The text of all messages of the output, joined."""
    return "".join(
        part["text"]
        for item in output
        if item.get("type") == "message"
        for part in item.get("content", ())
        if part.get("type") == "output_text"
    )


def response_object(facts: ResponseFacts, output: list[Item]) -> dict[str, Any]:
    """The Response as JSON: every key is present, with defaults; secrets of tools are left out."""
    parameters = facts.parameters
    reasoning = parameters.get("reasoning") or {}
    text = parameters.get("text") or {}
    body: dict[str, Any] = {
        "id": facts.id,
        "object": "response",
        "created_at": facts.created_at,
        "status": facts.status,
        "background": facts.background,
        "completed_at": facts.completed_at if facts.status == "completed" else None,
        "error": facts.error if facts.status == "failed" else None,
        "frequency_penalty": parameters.get("frequency_penalty", 0),
        "incomplete_details": {"reason": facts.incomplete_reason}
        if facts.status == "incomplete"
        else None,
        "instructions": parameters.get("instructions"),
        "max_output_tokens": parameters.get("max_output_tokens"),
        "max_tool_calls": parameters.get("max_tool_calls"),
        "metadata": parameters.get("metadata") or {},
        "model": facts.model,
        "output": output,
        "output_text": output_text(output),
        "parallel_tool_calls": parameters.get("parallel_tool_calls", True),
        "presence_penalty": parameters.get("presence_penalty", 0),
        "previous_response_id": facts.previous_response_id,
        "prompt_cache_key": parameters.get("prompt_cache_key"),
        "reasoning": {"effort": None, "summary": None, **reasoning},
        "safety_identifier": parameters.get("safety_identifier"),
        "service_tier": _service_tier(facts.service_tier or parameters.get("service_tier")),
        "store": facts.store,
        "temperature": parameters.get("temperature", 1),
        "text": {"verbosity": "medium", **text, "format": _echo_format(text.get("format"))},
        "tool_choice": parameters.get("tool_choice", "auto"),
        "tools": [_echo(tool) for tool in parameters.get("tools", ())],
        "top_logprobs": parameters.get("top_logprobs", 0),
        "top_p": parameters.get("top_p", 1),
        "truncation": parameters.get("truncation", "disabled"),
        "usage": facts.usage,
        "user": parameters.get("user"),
    }
    if facts.status == "completed" and facts.incomplete_reason in _UNMET_PARAMETERS:
        body["unmet_parameter"] = _UNMET_PARAMETERS[facts.incomplete_reason]
    body.update((name, parameters[name]) for name in OWN_PARAMETERS if name in parameters)
    if facts.retried_by is not None:
        body["retried_by"] = facts.retried_by
    if facts.conversation_id is not None:
        body["conversation"] = {"id": facts.conversation_id}
    if "background_options" in parameters:
        body["background_options"] = parameters["background_options"]
    return body if facts.upstream_fields is None else {**facts.upstream_fields, **body}


def _service_tier(tier: str | None) -> str:
    return "default" if tier in (None, "auto") else tier


ECHOED_AS_NULL = ("description", "parameters", "strict")
"""Fields of a function tool that the Response shows as null if the client did not set them."""


FORMAT_FIELDS_ECHOED_AS_NULL = ("description", "strict")
"""Fields of a `text.format` with a schema that the Response shows as null if the client did not set
them."""


def _echo_format(text_format: dict[str, Any] | None) -> dict[str, Any]:
    if text_format is None:
        return {"type": "text"}
    if text_format["type"] == "json_schema":
        return {**dict.fromkeys(FORMAT_FIELDS_ECHOED_AS_NULL), **text_format}
    return text_format


def _echo(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") == "function":
        return {**dict.fromkeys(ECHOED_AS_NULL), **tool}
    return without_hidden_fields(tool)


_OWN_FIELDS = frozenset(
    (
        *("background_options", "conversation", "progress"),
        *response_object(ResponseFacts("", 0, "completed", model="", parameters={}), []),
    )
)


def unknown_response_fields(response: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a native upstream's Response object that this server does not make itself, for
    instance the results of a moderation."""
    return {
        name: value
        for name, value in response.items()
        if name not in _OWN_FIELDS and value is not None
    }


SEALED_REASONING = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
FILE_RESULTS = "file_search_call.results"
CODE_OUTPUTS = "code_interpreter_call.outputs"
_HIDDEN = {
    "reasoning": ("encrypted_content", SEALED_REASONING),
    "file_search_call": ("results", FILE_RESULTS),
    "code_interpreter_call": ("outputs", CODE_OUTPUTS),
}
"""type of an item -> its field that may be hidden, and the value of `include` that shows it."""


def filter_items(items: list[Item], include: Collection[str]) -> list[Item]:
    """The items as a client with this `include` sees them."""
    return [_filtered(item, include) if item["type"] in _HIDDEN else item for item in items]


def without_images(items: list[Item]) -> list[Item]:
    """The items as a poll of a response shows them that has not ended: an image that was made may
    have megabytes, and events and the GET of the ended response have it."""
    return [
        {**item, "result": None} if item["type"] == "image_generation_call" else item
        for item in items
    ]


def filter_events(events: list[Event], include: Collection[str]) -> list[Event]:
    """The events of a run as its readers see them: a done item has the same fields as in a GET
    (I7)."""
    return [
        ItemDone(event.output_index, _filtered(event.item, include))
        if type(event) is ItemDone and event.item["type"] in _HIDDEN
        else event
        for event in events
    ]


def _filtered(item: Item, include: Collection[str]) -> Item:
    hidden, value = _HIDDEN[item["type"]]
    if value in include or hidden not in item:
        return item
    if hidden == "outputs" and not is_own_container(item.get("container_id")):
        return item  # of an upstream, which was asked for it
    return {name: content for name, content in item.items() if name != hidden}


def opening_event_types(
    *, background: bool
) -> tuple[type[ResponseCreated] | type[ResponseQueued], ...]:
    """The types of a response's first events."""
    return (ResponseCreated, ResponseQueued) if background else (ResponseCreated,)


def opening_frames(facts: ResponseFacts) -> tuple[dict[str, Any], list[bytes]]:
    """The Response object at its creation, and the first events; their numbers begin with 0."""
    response = response_object(facts, [])
    events: list[Event] = [
        kind(response) for kind in opening_event_types(background=facts.background)
    ]
    return response, [frame(event, number) for number, event in enumerate(events)]
