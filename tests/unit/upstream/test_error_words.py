"""Errors whose words say more than their status, with the messages of real servers."""

import json
from typing import Any

import pytest

from models.errors import UpstreamFailed
from worker.upstream.failures import failure_of_status


def failure(status: int, body: Any, headers: dict[str, str] | None = None) -> UpstreamFailed:
    text = body.decode(errors="replace") if isinstance(body, bytes) else json.dumps(body)
    return failure_of_status(status, headers or {}, text, path="/v1/chat/completions", model="m")


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", **more}}


UNKNOWN_MODELS = [
    (400, {"detail": "Server is pinned to 'HuggingFaceTB/SmolLM2'; request specified 'gpt-9'."}),
    (404, error("The model `gpt-9` does not exist.")),
    (404, error("The model `gpt-9` does not exist or you do not have access to it.")),
    (404, error("model 'gpt-9' not found")),
    (404, error('model "gpt-9" not found, try pulling it first')),
    (404, error("No endpoints found for vendor/gpt-9.")),
    (400, error("vendor/gpt-9 is not a valid model ID")),
    (400, error("Invalid model: gpt-9")),
    (400, error("Invalid model 'gpt-9'. Permitted models can be found in the documentation.")),
    (400, error("unknown model 'gpt-9'")),
    (400, error("Unsupported model: gpt-9")),
    (400, error("Model Not Exist")),
    (400, error("/chat/completions: Invalid model name passed in model=gpt-9. Call `/v1/models`")),
    (400, error("The requested model 'gpt-9' is not supported by any provider you have enabled.")),
    (400, error("x", code="model_not_found")),
    (404, error("models/gpt-9 is not found for API version v1beta")),
    (404, error("Unable to access model gpt-9.")),
    (404, error("model: gpt-9", type="not_found_error")),
    (404, {"error": {"code": "DeploymentNotFound", "message": "The API deployment is gone."}}),
    (404, error("No models loaded. Please load a model in the developer page.")),
    (400, {"message": "The provided model identifier is invalid."}),
    (404, {"object": "error", "message": "The model `gpt-9` does not exist.", "code": 404}),
]
OTHER_REFUSALS = [
    (400, error("This model does not support image input.")),
    (400, error("The model's maximum output is 4096 tokens.")),
    (400, error("Invalid model parameters: top_k")),
    (400, error("you must provide a model parameter", param="model")),
    (400, error("Invalid value for 'temperature' with this model.")),
    (400, error("The model is not supported for image input.")),
    (400, error("The tool 'f' was not found.")),
    (404, error("This is not a chat model and thus not supported in this endpoint.")),
    (404, error("No endpoints found that support tool use.")),
    (422, {"detail": [{"loc": ["body", "model"], "msg": "field required"}]}),
]
REFUSALS = [
    "image input is not supported - hint: you may need to provide the mmproj",
    "image input is not supported by this server",
    "audio input is not supported - hint: you may need to provide the mmproj",
    "input is too large to process. increase the physical batch size",
    "input (1034 tokens) is too large to process. increase the physical batch size (512)",
    'Failed to parse messages: Unsupported content part type: "image_url"; messages = []',
    "Failed to process inputs: this model is missing data required for image input",
    "Failed to load image or audio file",
    "Failed to parse grammar",
    "failed to parse the grammar",
    "Failed to initialize samplers: failed to parse grammar",
    "JSON schema conversion failed: Unrecognized schema: {}",
    "\n------------\nWhile executing CallExpression at line 3\nError: Jinja Exception: roles",
    "Error rendering prompt with jinja template: Unknown operator",
    "Only user and assistant roles are supported!",
    "After the optional system message, conversation roles must alternate user/assistant",
    "tools param requires --jinja flag",
    "Failed to parse tool call arguments as JSON: unexpected end of input",
]
OUTAGES = [
    "Internal Server Error",
    "CUDA out of memory. Try a smaller batch size.",
    "Failed to parse input at pos 12: <tool_call>",
    "The model is currently not available.",
    "EngineCore encountered an issue.",
    "",
]


@pytest.mark.parametrize(("status", "body"), UNKNOWN_MODELS)
def test_an_unknown_model_is_recognised_by_its_words(status: int, body: Any) -> None:
    met = failure(status, body)
    assert (met.reason, met.envelope_code, met.status) == ("model_not_found",) * 2 + (400,)


@pytest.mark.parametrize(("status", "body"), OTHER_REFUSALS)
def test_other_refusals_are_about_no_unknown_model(status: int, body: Any) -> None:
    met = failure(status, body)
    assert (met.reason, met.code) == (f"upstream_{status}", "invalid_prompt")


@pytest.mark.parametrize("words", REFUSALS)
def test_a_server_error_whose_words_blame_the_request_is_a_refusal(words: str) -> None:
    met = failure(500, error(words, code=500))
    assert (met.code, met.status, met.envelope_code) == ("invalid_prompt", 400, "invalid_prompt")
    assert (met.is_temporary, met.reason) == (False, "upstream_refused")
    assert met.message == f"The upstream refused the request: {words.strip()}"


@pytest.mark.parametrize("words", OUTAGES)
def test_other_server_errors_are_waited_for(words: str) -> None:
    met = failure(500, error(words))
    assert (met.code, met.status, met.is_temporary) == ("server_error", 502, True)


@pytest.mark.parametrize("status", [400, 402, 404, 405, 406, 409, 410, 413, 415, 418, 422, 451])
@pytest.mark.parametrize("named", [{"type": "server_error"}, {"code": "server_error"}])
def test_a_refusal_is_never_a_passing_error(status: int, named: dict[str, Any]) -> None:
    met = failure(status, {"error": {"message": "no", **named}})
    assert met.code == ("insufficient_quota" if status == 402 else "invalid_prompt")
    assert met.envelope_code == met.code
    assert not met.is_temporary
    assert 400 <= met.status < 500


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"Internal Server Error", "HTTP 502: Internal Server Error"),
        (b"<html><title>502 Bad  Gateway</title>", "HTTP 502: a web page (HTML): 502 Bad Gateway"),
        ({"errors": [{"message": "a"}, {"message": "b"}]}, "HTTP 502: a; b"),
        ({"base_resp": {"status_code": 1000, "status_msg": "a"}}, "HTTP 502: a"),
        ({"error": "a"}, "HTTP 502: a"),
        ({"detail": [{"loc": ["body", "n"], "msg": "a"}]}, "HTTP 502: body.n: a"),
        ({"detail": {"error": {"message": "a"}}}, "HTTP 502: a"),
        (b"\xff\xfe\x00", "HTTP 502."),
        (b'{"error": {"mess', "HTTP 502."),
    ],
)
def test_the_words_of_a_body_are_found_in_any_frame(body: Any, words: str) -> None:
    assert failure(502, body).message == f"The upstream answered with {words}"


def test_the_time_to_wait_may_be_in_the_body() -> None:
    assert failure(429, error("x", retry_after=7)).retry_after == 7
    assert failure(429, error("x", retry_after=7), {"retry-after": "9"}).retry_after == 9
    assert failure(400, error("x", retry_after=7)).retry_after is None
