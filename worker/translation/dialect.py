"""How one upstream's Chat Completions differs from OpenAI's, as far as requests depend on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.config.dialect import (
    CallContent,
    CallIdForm,
    DeveloperRole,
    EffortField,
    MaxTokensField,
    ReasoningBack,
    ReasoningTurns,
    StrictTools,
    StructuredOutput,
    ToolChoice,
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
    reasoning_turns: ReasoningTurns = "last"
    structured_output: StructuredOutput = "json_schema"
    call_id_form: CallIdForm = "as_is"
    foreign_call_fields: Mapping[str, Any] = field(default_factory=dict)
    omit: tuple[str, ...] = ()
    omit_from_schemas: tuple[str, ...] = ()
    alternate_roles: bool = False
    empty_content: str = "(empty)"
    call_content: CallContent = "null"
    tool_choice: ToolChoice = "named"
    tools_for_calls: bool = False
    strict_tools: StrictTools = "as_sent"
    description_limit: int | None = None
    passthrough: tuple[str, ...] = ()
    has_service_tier: bool = False
