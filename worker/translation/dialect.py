"""How one upstream's Chat Completions differs from OpenAI's: the quirks of its settings that a request must obey."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """Each field as in `UpstreamSettings`, where it is explained."""

    max_tokens_field: str = "max_completion_tokens"
    developer_role: str = "system"
    single_system_message: bool = False
    passthrough: tuple[str, ...] = ()
