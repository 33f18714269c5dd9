"""How one upstream's Chat Completions differs from OpenAI's, as far as requests depend on it."""

from dataclasses import dataclass

from models.config.dialect import (
    DeveloperRole,
    EffortField,
    MaxTokensField,
    ReasoningBack,
    StructuredOutput,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """Each field is the setting or the property of the same name in `UpstreamSettings`, which
    explains it."""

    max_tokens_field: MaxTokensField = "max_completion_tokens"
    developer_role: DeveloperRole = "system"
    single_system_message: bool = False
    effort_field: EffortField = "reasoning_effort"
    reasoning_back: ReasoningBack = "none"
    structured_output: StructuredOutput = "json_schema"
    passthrough: tuple[str, ...] = ()
    has_service_tier: bool = False
