"""Errors about the context length, with the messages of real servers, and other errors."""

import json
from typing import Any

import pytest

from models.errors import UpstreamFailed
from models.upstream_errors.words import is_overflow
from worker.upstream.failures import failure_of_status

WORDINGS = [
    pytest.param(
        (
            "This model's maximum context length is 8192 tokens. However, your messages "
            "resulted in 8202 tokens. Please reduce the length of the messages."
        ),
        id="OpenAI",
    ),
    pytest.param(
        (
            "This model's maximum context length is 131072 tokens. However, you requested "
            "156632 tokens (152536 in the messages, 4096 in the completion). Please reduce the "
            "length of the messages or completion."
        ),
        id="vLLM",
    ),
    pytest.param(
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum "
            "context length is 4096 tokens and your request has 2104 input tokens (2000 > 4096 "
            "- 2104)."
        ),
        id="vLLM, the answer's share",
    ),
    pytest.param(
        (
            "This model's maximum context length is 262144 tokens. However, you requested "
            "128000 output tokens and your prompt contains at least 134145 input tokens, for a "
            "total of at least 262145 tokens."
        ),
        id="vLLM, newer",
    ),
    pytest.param(
        (
            "The decoder prompt (length 40004) is longer than the maximum model length of "
            "32768. Make sure that `max_model_len` is no smaller than the number of text tokens."
        ),
        id="vLLM, the prompt alone",
    ),
    pytest.param(
        (
            "the request exceeds the available context size. try increasing the context size or "
            "enable context shift"
        ),
        id="llama.cpp",
    ),
    pytest.param(
        (
            "request (14429 tokens) exceeds the available context size (8192 tokens), try "
            "increasing it"
        ),
        id="llama.cpp, newer",
    ),
    pytest.param("Requested tokens (85) exceed context window of 2048", id="llama-cpp-python"),
    pytest.param("the input length exceeds the context length", id="Ollama"),
    pytest.param("prompt is too long: 208310 tokens > 200000 maximum", id="Anthropic"),
    pytest.param(
        (
            "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, "
            "decrease input length or `max_tokens` and try again"
        ),
        id="Anthropic, the answer's share",
    ),
    pytest.param(
        (
            "This endpoint's maximum context length is 16384 tokens. However, you requested "
            "about 94307 tokens (94307 of text input). Please reduce the length of either one, "
            'or use the "middle-out" transform to compress your prompt automatically.'
        ),
        id="OpenRouter",
    ),
    pytest.param(
        "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
        id="SGLang",
    ),
    pytest.param("Input is too long for requested model.", id="Bedrock"),
    pytest.param(
        "The input token count (1204512) exceeds the maximum number of tokens allowed (1048576).",
        id="Gemini",
    ),
    pytest.param(
        (
            "Trying to keep the first 111490 tokens when context the overflows. However, the "
            "model is loaded with context length of only 32768 tokens, which is not enough."
        ),
        id="LM Studio",
    ),
    pytest.param(
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        id="LM Studio, newer",
    ),
    pytest.param(
        (
            "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 "
            "maximum context length"
        ),
        id="Mistral",
    ),
    pytest.param(
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: "
            "5000 `inputs` tokens and 100 `max_new_tokens`"
        ),
        id="TGI",
    ),
    pytest.param("Please reduce the length of the messages or completion.", id="Groq"),
    pytest.param(
        (
            "Your input exceeds the context window of this model. Please adjust your input and "
            "try again."
        ),
        id="OpenAI, Responses",
    ),
    pytest.param(
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
        id="Kimi",
    ),
    pytest.param(
        ("This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
        id="xAI",
    ),
    pytest.param("prompt token count of 200000 exceeds the limit of 128000", id="Copilot"),
    pytest.param(
        (
            "Unable to submit request because the input token count is 40000 but model only "
            "supports up to 32768."
        ),
        id="Vertex",
    ),
    pytest.param(
        "too many tokens: size limit exceeded by 3 tokens. Try using shorter or fewer inputs.",
        id="Cohere",
    ),
    pytest.param("Prompt exceeds max length", id="GLM"),
    pytest.param("Prompt 超长", id="GLM, Chinese"),
    pytest.param("Prompt length (9000) exceeds maximum (4096)", id="mlx-lm"),
    pytest.param("prompt too long; exceeded max context length by 3 tokens", id="Ollama, newer"),
    pytest.param(
        "Input length 9000 exceeds the maximum allowed input length of 8192 tokens.", id="Poolside"
    ),
    pytest.param(
        (
            "You passed 9000 input tokens. However, the model's context length is only 8192 "
            "tokens, resulting in a maximum input length of 8191 tokens."
        ),
        id="vLLM, newest",
    ),
]

OTHERS = [
    "Rate limit reached for tokens per minute: limit 30000, requested 31000.",
    "Invalid 'max_tokens': integer below minimum value.",
    "max_tokens is too large: 9000. This model supports at most 4096 completion tokens.",
    "This model does not support image input.",
    "The image is too large.",
    "Too many tokens, please wait before trying again.",
    "Unknown parameter: 'context_management'.",
    "The context of this conversation could not be read.",
    "",
]


@pytest.mark.parametrize("wording", WORDINGS)
def test_an_overflow_is_recognised_by_its_message(wording: str) -> None:
    assert is_overflow(wording)


@pytest.mark.parametrize("wording", OTHERS)
def test_other_errors_are_no_overflow(wording: str) -> None:
    assert not is_overflow(wording)


@pytest.mark.parametrize("word", ["context_length_exceeded", "exceed_context_size_error"])
def test_an_overflow_is_recognised_by_its_code(word: str) -> None:
    assert is_overflow("", [word])
    assert not is_overflow("", ["invalid_request_error"])


def _failure(status: int, error: dict[str, Any]) -> UpstreamFailed:
    text = json.dumps({"error": error})
    return failure_of_status(status, {}, text, path="/v1/chat/completions", model="m")


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_an_overflow_with_any_usual_status_is_the_same_failure(status: int) -> None:
    wording = "the request exceeds the available context size"
    failure = _failure(
        status, {"message": wording, "type": "exceed_context_size_error", "code": status}
    )
    assert (failure.reason, failure.code, failure.status) == (
        "context_length_exceeded",
        "context_length_exceeded",
        400,
    )
    assert (failure.envelope_code, failure.param) == ("context_length_exceeded", "input")
    assert wording in failure.message


def test_a_rate_limit_with_a_message_about_length_stays_a_rate_limit() -> None:
    failure = _failure(
        429,
        {
            "message": "Please reduce the length of the messages.",
            "type": "tokens",
            "code": "rate_limit",
        },
    )
    assert (failure.reason, failure.status) == ("upstream_429", 429)
