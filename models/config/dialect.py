"""How one upstream's Chat Completions may differ from OpenAI's: the values of its settings, and by
preset name what each vendor or server needs.

The settings (models/config/upstream.py) and the translation of requests (worker/translation) share
the types. To add a vendor, add one entry to PRESETS and its name to docs/upstreams.md. An entry
contains only what documentation or public reports show; the comment says which ones.
"""

from collections.abc import Mapping
from typing import Any, Literal

StructuredOutput = Literal["json_schema", "json_object", "guided_json", "prompt"]
Api = Literal["chat", "responses", "messages"]
KeyHeader = Literal["authorization", "x-api-key"]
EffortField = Literal[
    "reasoning_effort",
    "reasoning",
    "enable_thinking",
    "thinking",
    "think",
    "none",
    "adaptive",
    "budget",
]
ReasoningBack = Literal[
    "none", "reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "think_tags"
]
FinishReason = Literal["stop", "length", "content_filter", "error"]
MaxTokensField = Literal["max_completion_tokens", "max_tokens"]
CallIdForm = Literal["as_is", "alphanumeric_9", "name_and_index"]
DeveloperRole = Literal["developer", "system"]
StrictTools = Literal["as_sent", "all", "none"]
ToolChoice = Literal["named", "required", "auto"]
ReasoningTurns = Literal["last", "calls", "all"]
CallContent = Literal["null", "empty", "omitted"]


PATHS: Mapping[Api, str] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "messages": "/messages",
}
"""Where an API runs a model, behind the base URL."""

_MAX_TOKENS = {"max_tokens_field": "max_tokens"}
_LOCAL_PASSTHROUGH = ["top_k", "min_p", "repetition_penalty", "chat_template_kwargs"]

_KIMI = {
    # hermes-agent#15478, docs.together.ai (kimi-k2), java.agentscope.io (kimi)
    "effort_field": "thinking",
    "reasoning_back": "reasoning_content",
    "reasoning_turns": "all",
    "strict_tools": "none",
    "call_id_form": "name_and_index",  # vllm#32768
}
_QWEN = {
    # docs.instructorphp.com (llm_qwen): `required` is sent as `auto`, older models know json_object
    "structured_output": "json_object",
    "tool_choice": "auto",
}
_GLM = {
    # java.agentscope.io (glm), docs.z.ai (thinking mode)
    **_MAX_TOKENS,
    "omit": ["stream_options"],
    "structured_output": "json_object",
    "effort_field": "thinking",
    "reasoning_back": "reasoning_content",
    "tool_choice": "auto",
    "strict_tools": "none",
}

MESSAGES_DEFAULTS: Mapping[str, Any] = {
    "key_header": "x-api-key",
    "effort_field": "adaptive",
    "reasoning_back": "thinking_blocks",
    "reasoning_turns": "all",
    "tools_for_calls": True,
}
"""What settings are with `api = "messages"` where neither the upstream nor its preset sets them."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Descriptions of functions: "Expected a string with maximum length 1024".
    "openai": {"api": "responses", "description_limit": 1024},
    "azure": {"description_limit": 1024},
    # platform.claude.com (structured outputs): keywords that a schema may not have; at most 20
    # tools may be strict.
    "anthropic": {
        "api": "messages",
        "strict_tools": "none",
        "passthrough": ["stop_sequences", "top_k"],
        "omit_from_schemas": [
            *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
            *("minLength", "maxLength", "maxItems", "uniqueItems"),
        ],
    },
    # litellm#40735; "conversation must alternate": semantic-kernel#10281; no role "system" among
    # the messages: litellm#41082.
    "bedrock": {"single_system_message": True, "alternate_roles": True, "tools_for_calls": True},
    # "Unknown name": llmgateway#1763, symfony/ai#2037, zed#44875, new-api#1037.
    "gemini": {
        "omit_from_schemas": [
            "$schema",
            "additionalProperties",
            "const",
            "exclusiveMaximum",
            "exclusiveMinimum",
            "propertyNames",
        ],
        # ai.google.dev (thought signatures), litellm#37541.
        "foreign_call_fields": {
            "extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}
        },
    },
    # openclaude#739 (extra_forbidden), zed#37021, avante.nvim#2695, hermes-agent#20154.
    # "Unexpected role 'system' after role 'assistant'": swarmauri-sdk#162.
    # opencode#1680 and gptel#1203 (ids of calls).
    "mistral": {
        **_MAX_TOKENS,
        "single_system_message": True,
        "alternate_roles": True,
        "call_content": "empty",
        "call_id_form": "alphanumeric_9",
    },
    # api-docs.deepseek.com (thinking mode), hermes-agent#15478 and #17341.
    "deepseek": {
        **_MAX_TOKENS,
        "structured_output": "json_object",
        "effort_field": "thinking",
        "reasoning_back": "reasoning_content",
        "reasoning_turns": "all",
    },
    "kimi": _KIMI,
    "moonshot": _KIMI,
    "qwen": _QWEN,
    "dashscope": _QWEN,
    "zhipu": _GLM,
    "glm": _GLM,
    # java.agentscope.io (minimax)
    "minimax": {
        "omit": ["tool_choice", "parallel_tool_calls"],
        "structured_output": "prompt",
        "effort_field": "none",
        "think_tags": True,
        "reasoning_back": "think_tags",
        "tool_choice": "auto",
        "strict_tools": "none",
    },
    # hexdocs.pm/req_llm (cerebras), code_puppy#368, Roo-Code#10334.
    "cerebras": {"omit": ["parallel_tool_calls"], "strict_tools": "none"},
    # perplexityai/api-discussion#265, edenai-apis#144.
    "perplexity": {**_MAX_TOKENS, "single_system_message": True, "alternate_roles": True},
    "cohere": _MAX_TOKENS,
    "together": _MAX_TOKENS,
    "fireworks": _MAX_TOKENS,
    # Nothing is known that a setting would mend.
    "groq": {},
    "xai": {},
    "openrouter": {
        "effort_field": "reasoning",
        "reasoning_back": "reasoning_details",
        "passthrough": ["provider", "models", "transforms"],
    },
    # It retries by itself; tools_for_calls: litellm#40735.
    "litellm": {"tools_for_calls": True, "max_retries": 0},
    # Templates of Qwen: "System message must be at the beginning" (crush#3050).
    "vllm": {
        "single_system_message": True,
        "effort_field": "enable_thinking",
        "count": "vllm",
        "passthrough": _LOCAL_PASSTHROUGH,
    },
    "sglang": {
        "single_system_message": True,
        "effort_field": "enable_thinking",
        "passthrough": _LOCAL_PASSTHROUGH,
    },
    "llama-cpp": {
        "single_system_message": True,
        "count": "llama.cpp",
        "passthrough": ["top_k", "min_p", "cache_prompt"],
    },
    # Loads a model at its first request.
    "ollama": {**_MAX_TOKENS, "first_token": 900},
    # lmstudio-bug-tracker#670: "Supported string values: none, auto, required".
    "lm-studio": {**_MAX_TOKENS, "tool_choice": "required"},
    # `response_format`, `tool_choice` and `max_completion_tokens` are ignored.
    "transformers": {**_MAX_TOKENS, "structured_output": "prompt"},
    # text-generation-inference#2844.
    "tgi": _MAX_TOKENS,
}
