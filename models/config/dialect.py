"""How one upstream's Chat Completions may differ from OpenAI's: the values of its settings.

The settings (models/config/upstream.py) and the translation of requests (worker/translation) share
these types.
"""

from typing import Literal

StructuredOutput = Literal["json_schema", "json_object", "guided_json", "prompt"]
EffortField = Literal[
    "reasoning_effort", "reasoning", "enable_thinking", "thinking", "think", "none"
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
