"""How one upstream's Chat Completions differs from OpenAI's, as far as requests depend on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.config.dialect import (
    CallIdForm,
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
    call_id_form: CallIdForm = "as_is"
    foreign_call_fields: Mapping[str, Any] = field(default_factory=dict)
    passthrough: tuple[str, ...] = ()
    has_service_tier: bool = False
