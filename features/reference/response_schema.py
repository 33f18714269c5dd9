"""The Response, the items of its output, and the events of its stream. Items and content are the
official SDK's models, with what this server always sends and never sends; events are read from
their structs (models/wire/events.py)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from openai.types import responses as sdk
from openai.types.responses import response_output_item, response_output_text
from openai.types.responses.response_file_search_tool_call import Result
from openai.types.responses.response_function_web_search import ActionSearch
from openai.types.responses.response_reasoning_item import Content, Summary
from pydantic import BaseModel

from features.reference.schemas import (
    BOOLEAN,
    COUNT,
    OBJECT,
    SECONDS,
    SHARE,
    STRING,
    Deployment,
    array_of,
    described,
    id_of,
    one_of_texts,
    sdk_item,
    sdk_object,
    text,
)
from models.lifecycle import Status
from models.wire.api_schema import Schema, const, nullable, object_schema, reference
from models.wire.events import event_types
from models.wire.response import (
    ECHOED_AS_NULL,
    FORMAT_FIELDS_ECHOED_AS_NULL,
    ResponseFacts,
    response_object,
)

RESPONSE_ID, CONVERSATION_ID = id_of("resp_"), id_of("conv_")


def response_components(deployment: Deployment) -> dict[str, Schema]:
    """`Response`, `OutputItem` and its parts, `StreamEvent` and each event."""
    return {
        "Response": _response(deployment),
        "Progress": _PROGRESS,
        **_output_items(native=deployment.native),
        **_events(),
    }


def default_response() -> Schema:
    """The Response to a request without optional parameters: it shows every default."""
    facts = ResponseFacts(id="", created_at=0, status="completed", model="", parameters={})
    return response_object(facts, [])


def _response(deployment: Deployment) -> Schema:
    """Reads the keys from the function that builds a Response: all of them are always present."""
    fields = _RESPONSE_FIELDS | _echoed_parameters(deployment)
    optional = {
        "background_options": described(
            deployment.parameters["background_options"].schema(deployment.stored),
            "As the request sent them; absent if it sent none.",
        ),
        "conversation": object_schema({"id": CONVERSATION_ID}),
        "wait_for_previous": described(BOOLEAN, "As the request has set it. Absent if it has not."),
        "retry_of": described(RESPONSE_ID, "The response that it runs again. Absent otherwise."),
        "retried_by": described(
            RESPONSE_ID, "The last response that runs it again. Absent otherwise."
        ),
        "unmet_parameter": described(
            one_of_texts(("tool_choice", "text.format")),
            "The parameter that demanded what a `completed` response does not have: a call, or "
            "JSON. Absent otherwise.",
        ),
        "progress": reference("Progress"),
    }
    return described(
        object_schema({key: fields[key] for key in default_response()}, optional),
        "The current state of a response. The terminal event of a stream has the final state.",
    )


def _echoed_parameters(deployment: Deployment) -> dict[str, Schema]:
    """The parameters of the request as a Response shows them."""
    parameters = deployment.parameters

    def schema(name: str) -> Schema:
        return parameters[name].schema(deployment.stored)

    fields = {
        name: nullable(schema(name)) if default is None else schema(name)
        for name, default in default_response().items()
        if name in parameters.keys() - _RESPONSE_FIELDS.keys()
    }
    reasoning = schema("reasoning")["properties"]
    always_present = {name: nullable(reasoning.pop(name)) for name in ("effort", "summary")}
    fields["reasoning"] = object_schema(always_present, reasoning)
    fields["text"] = {"allOf": [schema("text"), {"required": ["format", "verbosity"]}]}
    components = deployment.stored.components
    _show_as_null(components["ListedTools"]["items"], "function", ECHOED_AS_NULL)
    text_format = components["ListedTextSettings"]["properties"]["format"]
    _show_as_null(text_format, "json_schema", FORMAT_FIELDS_ECHOED_AS_NULL)
    return fields


def _show_as_null(kinds: Schema, kind: str, names: Collection[str]) -> None:
    """Changes one of the stored kinds to what a Response shows: unset fields are null."""
    for schema in kinds["oneOf"]:
        fields = schema["properties"]
        if fields["type"] == const(kind):
            fields |= {name: nullable(fields[name]) for name in names}
            schema["required"] = [*schema["required"], *names]


_WAITS: Sequence[Schema] = (
    described(
        object_schema(
            {
                "type": const("slot"),
                "position": described(
                    nullable(COUNT),
                    "1: it is the next one of its project in its service tier. Null: it is behind "
                    "`position_above` others.",
                ),
                "position_above": nullable(COUNT),
                "expected_start_at": described(
                    nullable(SECONDS),
                    "An estimate, by the starts of the last minutes; null: not known.",
                ),
            }
        ),
        "It waits for a slot of a worker.",
    ),
    described(
        object_schema(
            {
                "type": const("upstream"),
                "since": nullable(SECONDS),
                "tries": described(nullable(COUNT), "That failed, one after the other."),
                "next_try_at": SECONDS,
                "last_error": nullable(STRING),
            }
        ),
        "Its upstreams fail or are full. Without an answer it is tried again until its deadline.",
    ),
    described(
        object_schema({"type": const("response"), "response_id": RESPONSE_ID}),
        "It begins when the response that it continues has ended (`wait_for_previous`).",
    ),
)
_PROGRESS = described(
    object_schema(
        {
            "turns": described(COUNT, "Turns that have ended and that another one followed."),
            "tool_calls": described(
                object_schema({"done": COUNT, "open": COUNT}),
                "Of tools that this server or its upstream runs.",
            ),
            "output_tokens": described(
                COUNT, "As the upstream has reported them, with an estimate of the present turn."
            ),
            "estimated_output_tokens": described(
                COUNT, "How many of them are an estimate: four bytes of text each."
            ),
            "attempts": COUNT,
            "waits_for": described(
                nullable({"oneOf": list(_WAITS)}), "Null: it runs, or will run at once."
            ),
        }
    ),
    "How far an open response is, in a `GET`; absent once it has ended. Not at OpenAI.",
)

_INCOMPLETE_REASONS = ("max_output_tokens", "content_filter", "max_messages", "steered")
_RESPONSE_FIELDS: dict[str, Schema] = {
    "id": RESPONSE_ID,
    "object": const("response"),
    "created_at": SECONDS,
    "status": one_of_texts([status.value for status in Status]),
    "completed_at": described(nullable(SECONDS), "When it ended; null unless `completed`."),
    "error": described(
        nullable(object_schema({"code": STRING, "message": STRING})),
        "Why it `failed`; null otherwise.",
    ),
    "incomplete_details": described(
        nullable(object_schema({"reason": one_of_texts(_INCOMPLETE_REASONS)})),
        "Why it is `incomplete`; null otherwise.",
    ),
    "output": array_of(reference("OutputItem")),
    "output_text": described(STRING, "All text of the output's messages, joined."),
    "previous_response_id": nullable(RESPONSE_ID),
    "service_tier": STRING,
    "usage": described(
        nullable(reference("Usage")), "The upstream's counts, over all turns; null if it sent none."
    ),
}
"""The fields that are not parameters of the request."""

# --- items of output ---

_LOGPROBS: Schema = array_of(reference("Logprob"))
_STATUS = one_of_texts(("in_progress", "completed", "incomplete"))
_CAN_FAIL = one_of_texts((*_STATUS["enum"], "failed"))
_CALL_ID = described(
    text(1, 64), "The id of the call, which its output repeats. Not the id of the item."
)


def _output_items(*, native: bool) -> dict[str, Schema]:
    """`OutputItem` and the schemas that it refers to."""
    items = {"oneOf": list(_OUTPUT_ITEMS)}
    annotations = array_of(reference("Annotation"))
    output_text = sdk_item(sdk.ResponseOutputText, annotations=annotations, logprobs=_LOGPROBS)
    citations = (
        response_output_text.AnnotationURLCitation,
        response_output_text.AnnotationFileCitation,
        response_output_text.AnnotationContainerFileCitation,
    )
    return {
        "OutputItem": {"anyOf": [items, _NATIVE_ITEM]} if native else items,
        "OutputContent": {"oneOf": [output_text, sdk_item(sdk.ResponseOutputRefusal)]},
        "SummaryText": sdk_item(Summary),
        "ReasoningText": sdk_item(Content),
        "Annotation": {"oneOf": [sdk_item(kind) for kind in citations]},
        "Logprob": sdk_item(response_output_text.Logprob),
    }


def _item(
    model: type[BaseModel],
    optional: Mapping[str, Schema] | None = None,
    /,
    *,
    status: Schema = _STATUS,
    **changes: Schema,
) -> Schema:
    """`optional`: see sdk_item. `changes`: fields that are always sent, or have fewer values here
    than in the SDK."""
    call_id = {"call_id": _CALL_ID} if "call_id" in model.model_fields else {}
    return sdk_item(model, optional, id=STRING, status=status, **call_id, **changes)


_JSON_TEXT = described(STRING, "JSON, as the model wrote it.")
_NAMESPACE = {"namespace": {"description": "The namespace that the tool belongs to."}}
_SOURCES = {"description": "The results. Only with `web_search_call.action.sources` in `include`."}
_FOUND = described(
    array_of(sdk_object(Result, attributes=OBJECT, score=SHARE, text=STRING)),
    "Only with `file_search_call.results` in `include`.",
)
_PRINTED = described(
    array_of(OBJECT),
    "What the code printed (`logs`), and its charts (`image`, with the path of the file). Only "
    "with `code_interpreter_call.outputs` in `include`.",
)
_SEALED = {
    "description": "The sealed reasoning. If it is sent back, the model gets it again. Only with "
    "`include`."
}
_MCP_OUTPUT = {"description": "The text of the tool's result."}
_UNLISTED = {"description": "Why the server's tools, or some of them, could not be listed."}
_ACTIONS = {"description": "What the client is to do, in order, before it makes a screenshot."}
_OUTPUT_ITEMS = (
    _item(
        sdk.ResponseCompactionItem,
        encrypted_content=described(
            STRING, "Replaces the history before it. Only this server can read it."
        ),
    ),
    _item(sdk.ResponseOutputMessage, content=array_of(reference("OutputContent"))),
    _item(
        sdk.ResponseReasoningItem,
        {"encrypted_content": _SEALED},
        summary=array_of(reference("SummaryText")),
        content=array_of(reference("ReasoningText")),
    ),
    _item(sdk.ResponseFunctionToolCall, _NAMESPACE, arguments=_JSON_TEXT),
    _item(sdk.ResponseCustomToolCall, _NAMESPACE),
    _item(sdk.ResponseFunctionShellToolCall, {"environment": OBJECT}),
    _item(sdk.ResponseFunctionShellToolCallOutput, {"max_output_length": COUNT}),
    _item(
        sdk.ResponseCodeInterpreterToolCall, {"outputs": _PRINTED}, status=_CAN_FAIL, code=STRING
    ),
    _item(response_output_item.LocalShellCall),
    _item(sdk.ResponseApplyPatchToolCall),
    sdk_item(
        sdk.ResponseToolSearchCall,
        {"call_id": {"description": "Of a search that the client runs."}},
        id=STRING,
        status=_STATUS,
        execution=one_of_texts(("client", "server")),
        arguments=OBJECT,
    ),
    sdk_item(
        sdk.ResponseToolSearchOutputItem,
        id=STRING,
        status=_STATUS,
        execution=const("server"),
        tools=described(array_of(OBJECT), "What the model may call from now on."),
    ),
    _item(
        sdk.ResponseComputerToolCall,
        {"actions": _ACTIONS, "action": {"description": "Only of a `computer_use_preview`."}},
    ),
    _item(sdk.ResponseFunctionToolCallOutputItem, output=STRING),
    _item(response_output_item.McpListTools, {"error": _UNLISTED}, status=_CAN_FAIL),
    _item(
        response_output_item.McpCall,
        {"output": _MCP_OUTPUT, "error": {}, "approval_request_id": {}},
        status=_CAN_FAIL,
        arguments=_JSON_TEXT,
    ),
    _item(
        sdk.ResponseFunctionWebSearch,
        status=_CAN_FAIL,
        action=sdk_item(ActionSearch, {"query": {}, "queries": {}, "sources": _SOURCES}),
    ),
    _item(sdk.ResponseFileSearchToolCall, {"results": _FOUND}, status=_CAN_FAIL),
    _item(response_output_item.McpApprovalRequest),
    _item(
        response_output_item.ImageGenerationCall,
        {"result": {"description": "A picture of the model, in base64."}},
        status=_CAN_FAIL,
    ),
)
"""The items that can be in `output`."""

_NATIVE_ITEM = described(
    object_schema({"id": STRING, "type": STRING, "status": _CAN_FAIL}),
    "An item of a tool that the upstream runs itself (`image_generation_call`, …), as the upstream "
    "sent it.",
)


# --- events ---

_EVENT_FIELDS: dict[str, Schema] = {
    "response": reference("Response"),
    "item": reference("OutputItem"),
    "part": {
        "anyOf": [reference("OutputContent"), reference("ReasoningText"), reference("SummaryText")]
    },
    "annotation": reference("Annotation"),
    "logprobs": _LOGPROBS,
}
"""Fields of events with objects -> their schema."""
_PADDING = described(STRING, "Padding without meaning. Only with `include_obfuscation`.")
_PLAIN_TYPES: dict[object, Schema] = {
    int: COUNT,
    str: STRING,
    dict[str, str]: OBJECT,
    list[dict[str, Any]]: array_of(OBJECT),
}


def _events() -> dict[str, Schema]:
    """A component for each event struct, and `StreamEvent` for any of them."""
    events: dict[str, Schema] = {}
    tags: dict[str, str] = {}
    for tag, kind in event_types().items():
        fields = {
            field.name: _EVENT_FIELDS.get(field.name) or _PLAIN_TYPES[field.type]
            for field in msgspec.structs.fields(kind)
        }
        name = f"{kind.__name__}Event"
        padding = {"obfuscation": _PADDING} if tag.endswith(".delta") else {}
        events[name] = object_schema(
            {"type": const(tag), **fields, "sequence_number": COUNT}, padding
        )
        tags[tag] = reference(name)["$ref"]
    union = {
        "oneOf": [reference(name) for name in events],
        "discriminator": {"propertyName": "type", "mapping": tags},
    }
    return {"StreamEvent": union, **events}
