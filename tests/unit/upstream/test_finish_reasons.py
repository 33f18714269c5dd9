"""Why a turn ended, in the words of vendors."""

import json
from typing import Any

import pytest

from worker.upstream.chat_chunks import parse_chunk
from worker.upstream.finish_reasons import finish_reason

WORDS = {
    # OpenAI, Anthropic, Bedrock, Cohere, Gemini, TGI, watsonx, llama.cpp, LM Studio, xAI, Yandex
    "stop": """
        stop STOP tool_calls function_call tool-calls end_turn stop_sequence tool_use FINISH
        COMPLETE TOOL_CALL FinishReason.STOP FINISH_REASON_STOP finish_reason_stop eos eos_token
        eosFound stopStringFound STOP_CRITERIA_MET endoftext <|im_end|> stopped_word REASON_STOP
        eot_id ALTERNATIVE_STATUS_FINAL Stop. end_of_text StopReason.END_TURN </s> end_of_sequence
        """,
    "length": """
        length max_tokens MAX_TOKENS maxTokens FinishReason.MAX_TOKENS FINISH_REASON_MAX_TOKENS
        model_length max_new_tokens max_output_tokens model_context_window_exceeded
        modelContextWindowExceeded MODEL_CONTEXT_WINDOW_EXCEEDED context_length_exceeded
        contextLengthReached maxPredictedTokensReached ERROR_LIMIT token_limit pause_turn
        REASON_MAX_LEN REASON_MAX_CONTEXT ALTERNATIVE_STATUS_TRUNCATED_FINAL stopped_limit
        MAX_OUTPUT_TOKENS_EXCEEDED context_length_limit max_num_tokens prompt_too_long
        """,
    "content_filter": """
        content_filter content-filter SAFETY RECITATION PROHIBITED_CONTENT SPII BLOCKLIST LANGUAGE
        IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT refusal guardrail_intervened content_filtered
        ERROR_TOXIC sensitive MODEL_ARMOR ALTERNATIVE_STATUS_CONTENT_FILTER contentFilter
        SAFETY_BLOCK output_moderation guardrail_blocked content_blocked
        """,
    "error": """
        error ERROR abort network_error insufficient_system_resource MALFORMED_FUNCTION_CALL
        UNEXPECTED_TOOL_CALL MISSING_THOUGHT_SIGNATURE malformed_tool_use cancelled TIMEOUT
        USER_CANCEL modelUnloaded NO_IMAGE IMAGE_OTHER
        error_finish timed_out engine_shutdown DEADLINE_EXCEEDED out_of_memory
        """,
    "unknown": "OTHER out_of_cheese stopp lengthy FINISH_REASON_NEW 7",
}


@pytest.mark.parametrize(
    ("reason", "word"),
    [(reason, word) for reason, words in WORDS.items() for word in words.split()],
)
def test_words_of_vendors(reason: str, word: str) -> None:
    assert finish_reason(word) == reason


@pytest.mark.parametrize(
    "word", ["", "null", "None", "FINISH_REASON_UNSPECIFIED", "not_finished", "  "]
)
def test_words_of_a_turn_that_goes_on(word: str) -> None:
    assert finish_reason(word) is None


def test_a_word_and_its_cause() -> None:
    assert finish_reason("function_call_filter: MALFORMED_FUNCTION_CALL") == "error"
    assert finish_reason("content_filter: SOMETHING_NEW") == "content_filter"


@pytest.mark.parametrize(
    ("word", "native_word", "reason"),
    [
        ("stop", "MAX_TOKENS", "length"),
        ("stop", "SAFETY", "content_filter"),
        ("stop", "MALFORMED_FUNCTION_CALL", "error"),
        ("stop", "brand_new", "stop"),
        ("brand_new", "end_turn", "stop"),
        ("length", "STOP", "length"),
    ],
)
def test_the_word_of_the_vendor_behind_a_gateway(word: str, native_word: str, reason: str) -> None:
    choice = {"delta": {}, "finish_reason": word, "native_finish_reason": native_word}
    assert parse_chunk(json.dumps({"choices": [choice]}).encode()).finish_reason == reason


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"type": "max_tokens"}, "length"),
        (["stop"], "stop"),
        (2, "unknown"),
        (True, "unknown"),
        ({"code": 1}, "unknown"),
        (False, None),
    ],
)
def test_reasons_that_are_no_text(raw: Any, reason: str | None) -> None:
    choice = {"delta": {}, "finish_reason": raw}
    assert parse_chunk(json.dumps({"choices": [choice]}).encode()).finish_reason == reason


@pytest.mark.parametrize("raw", ["max" * 400_000, {"a": [{}] * 9}, [[[{}]]]])
def test_a_reason_that_no_pattern_may_search_for_long(raw: Any) -> None:
    choice = {"delta": {}, "finish_reason": raw}
    chunk = parse_chunk(json.dumps({"choices": [choice]}).encode())
    assert chunk.finish_reason == (None if raw == [[[{}]]] else "unknown")
