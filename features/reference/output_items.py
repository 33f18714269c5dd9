"""The items of a Response's output, and their content: the official SDK's models, with what this
server always sends and never sends."""

from collections.abc import Mapping

from openai.types import responses as sdk
from openai.types.responses import response_output_item, response_output_text
from openai.types.responses.response_file_search_tool_call import Result
from openai.types.responses.response_function_web_search import ActionSearch
from openai.types.responses.response_reasoning_item import Content, Summary
from pydantic import BaseModel

from features.reference.schemas import SHARE, STRING, array_of, one_of_texts, sdk_item, sdk_object
from models.wire.api_schema import Schema, const, object_schema, reference

LOGPROBS: Schema = array_of(reference("Logprob"))
_STATUS = one_of_texts(("in_progress", "completed", "incomplete"))
_CAN_FAIL = one_of_texts((*_STATUS["enum"], "failed"))
_CALL_ID: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 64,
    "description": "The id of the call, which its output repeats. Not the id of the item.",
}


def output_item_components(*, native: bool) -> dict[str, Schema]:
    """`OutputItem` and the schemas that it refers to.

    `native`: a configured upstream supports the Responses API and runs tools itself.
    """
    items = {"oneOf": list(_OUTPUT_ITEMS)}
    annotations = array_of(reference("Annotation"))
    text = sdk_item(sdk.ResponseOutputText, annotations=annotations, logprobs=LOGPROBS)
    citations = (
        response_output_text.AnnotationURLCitation,
        response_output_text.AnnotationFileCitation,
    )
    return {
        "OutputItem": {"anyOf": [items, _NATIVE_ITEM]} if native else items,
        "OutputContent": {"oneOf": [text, sdk_item(sdk.ResponseOutputRefusal)]},
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


_JSON_TEXT: Schema = {"type": "string", "description": "JSON, as the model wrote it."}
_NAMESPACE = {"namespace": {"description": "The namespace that the tool belongs to."}}
_SOURCES = {"description": "The results. Only with `web_search_call.action.sources` in `include`."}
_FOUND = {
    **array_of(sdk_object(Result, attributes={"type": "object"}, score=SHARE, text=STRING)),
    "description": "Only with `file_search_call.results` in `include`.",
}
_SEALED = {
    "description": "The sealed reasoning. If it is sent back, the model gets it again. Only with "
    "`include`."
}
_MCP_OUTPUT = {"description": "The text of the tool's result."}
_UNLISTED = {"description": "Why the server's tools, or some of them, could not be listed."}
_OUTPUT_ITEMS = (
    _item(
        sdk.ResponseCompactionItem,
        encrypted_content={
            "type": "string",
            "description": "Replaces the history before it. Only this server can read it.",
        },
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
    _item(sdk.ResponseFunctionShellToolCall),
    _item(response_output_item.LocalShellCall),
    _item(sdk.ResponseApplyPatchToolCall),
    _item(sdk.ResponseToolSearchCall, execution=const("client"), arguments={"type": "object"}),
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

_NATIVE_ITEM: Schema = {
    **object_schema({"id": STRING, "type": STRING, "status": _CAN_FAIL}),
    "description": "An item of a tool that the upstream runs itself (`code_interpreter_call`, "
    "`image_generation_call`, …), as the upstream sent it.",
}
