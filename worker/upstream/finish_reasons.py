"""A vendor's `finish_reason` becomes one of ours.

Words are compared without case, punctuation and the prefixes of enumerations: `MAX_TOKENS`,
`maxTokens`, `FINISH_REASON_MAX_TOKENS` and `FinishReason.MAX_TOKENS` are one word.
"""

import re
from typing import Any

_WORDS = {
    "stop": """
        stop stopped complete completed done end ended finish finished final normal success ok
        eos eos_token eos_found eos_token_found eot eot_id eom end_of_text end_of_turn endoftext
        end_id im_end s end_of_sequence end_turn turn_end stop_sequence stop_sequence_reached
        stop_string stop_token_id
        stop_string_found stop_token stop_word stop_words stop_criteria_met stopping_criteria
        stopped_eos stopped_word word user_stop tool tools tool_call tool_calls tool_use tool_uses
        function function_call function_calls call calls requires_action
        """,
    "length": """
        length len limit max_len max_length maximum_length max_tokens max_token maximum_tokens
        max_output max_output_tokens max_output_tokens_reached max_completion_tokens
        max_new_tokens max_generated_tokens max_predicted_tokens_reached max_tokens_reached
        token_limit token_limit_reached tokens_limit output_limit length_limit length_capped
        stopped_limit truncated truncated_final incomplete error_limit pause_turn compaction
        context max_context context_length context_length_exceeded context_length_reached
        context_limit context_overflow context_window_exceeded model_context_window_exceeded
        model_length model_length_exceeded max_model_length
        """,
    "content_filter": """
        content_filter content_filters content_filtered content_filtering content_policy
        content_policy_violation content_moderation filter filtered moderation moderated flagged
        safety safety_filter unsafe guardrail guardrails guardrail_intervened refusal refused
        recitation language blocklist blacklist blocked prohibited_content prohibited spii
        sensitive sensitive_content risk_control error_toxic toxic harmful policy_violation
        image_safety image_prohibited_content image_recitation model_armor escalation
        """,
    "error": """
        error errors failed failure internal_error server_error network_error timeout time_limit
        cancel cancelled canceled user_cancel user_stopped abort aborted interrupted preempt
        preempted load unload model_unloaded insufficient_system_resource repetition
        malformed_function_call malformed_tool_use malformed_tool_call malformed_model_output
        malformed_response unexpected_tool_call too_many_tool_calls missing_thought_signature
        no_image image_other rag_query_when_rag_disabled
        """,
    "": """
        null none nil undefined unspecified not_finished unfinished in_progress running generating
        """,
}
"""Ours -> what vendors send for it. The last group comes on chunks before the end: no reason."""

_TELLING = (
    (
        "length",
        re.compile(
            r"(max|limit|exceed|overflow|truncat).*(token|length|context|output)"
            r"|(token|length|context|output|prompt).*(max|limit|exceed|overflow|truncat|toolong)"
        ),
    ),
    (
        "content_filter",
        re.compile(
            r"safety|moderat|guardrail|contentfilter|contentblock|policyviolat|prohibited"
            r"|harmful|sensitivecontent"
        ),
    ),
    (
        "error",
        re.compile(
            r"error|fail|abort|cancel|exception|malformed|timeout|timedout|deadline|shutdown"
            r"|outofmemory|disconnect|interrupt|unavailable"
        ),
    ),
)
"""Parts of unknown words that name the reason. None means a stop: that would hide a cut."""
_NO_LETTER = re.compile(r"[^a-z0-9]+")
_PREFIXES = ("finishreason", "stopreason", "completionreason", "alternativestatus", "reason")


def _compact(word: str) -> str:
    return _NO_LETTER.sub("", word.lower())


_KNOWN = {_compact(word): reason for reason, words in _WORDS.items() for word in words.split()}
_CACHE_SIZE = 256
_LONGEST_WORD = 200
"""Characters of a word that are looked at: the search for parts of it is quadratic."""
_cache: dict[tuple[str, str], str | None] = {}


def finish_reason(word: str, native_word: str = "") -> str | None:
    """`stop`, `length`, `content_filter` or `error`; None if the word means that the turn goes on;
    `unknown` for any other word.

    `native_word`: what the vendor behind a gateway has sent (OpenRouter's `native_finish_reason`).
    It counts where the gateway's own word is unknown or hides another end as a stop.
    """
    key = (word[:_LONGEST_WORD], native_word[:_LONGEST_WORD])
    if key not in _cache:
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        _cache[key] = _decide(*key)
    return _cache[key]


def _decide(word: str, native_word: str) -> str | None:
    reason, native = _read(word), _read(native_word)
    if reason in ("stop", "unknown") and native not in ("", "unknown"):
        reason = native
    return reason or None


def _read(word: str) -> str:
    """The reason for one word: of all of it, else of its parts behind and before a colon, else of
    a telling part of it."""
    parts = [word, *reversed(word.split(":"))] if ":" in word else [word]
    for part in parts:
        compact = _compact(part)
        for candidate in (compact, *_without_prefixes(compact)):
            if candidate in _KNOWN:
                return _KNOWN[candidate]
    for reason, pattern in _TELLING:
        if pattern.search(_compact(word)):
            return reason
    return "" if not _compact(word) and not word.strip() else "unknown"


def _without_prefixes(compact: str) -> list[str]:
    names = []
    for prefix in _PREFIXES:
        if compact.startswith(prefix) and len(compact) > len(prefix):
            compact = compact.removeprefix(prefix)
            names.append(compact)
    return names


def word_of(raw: Any) -> str:
    """The word in a `finish_reason` of any JSON type: of an object, its first text or name."""
    while isinstance(raw, list):
        raw = raw[0] if raw else None
    if isinstance(raw, dict):
        names = ("type", "reason", "value", "name", "finish_reason", *raw)
        raw = next(
            (raw[name] for name in names if isinstance(raw.get(name), str)), next(iter(raw), "")
        )
    return raw if isinstance(raw, str) else "" if raw is None or raw is False else str(raw)
