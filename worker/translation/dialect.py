"""How one upstream's Chat Completions differs from OpenAI's, as far as requests depend on it."""

from dataclasses import dataclass
from typing import Literal

StructuredOutput = Literal["json_schema", "json_object", "guided_json", "prompt"]
EffortField = Literal[
    "reasoning_effort", "reasoning", "enable_thinking", "thinking", "think", "none"
]
ReasoningBack = Literal[
    "none", "reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "think_tags"
]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Each field as in `UpstreamSettings`, where it is explained."""

    max_tokens_field: str = "max_completion_tokens"
    developer_role: str = "system"
    single_system_message: bool = False
    effort_field: EffortField = "reasoning_effort"
    reasoning_back: ReasoningBack = "none"
    structured_output: StructuredOutput = "json_schema"
    passthrough: tuple[str, ...] = ()
