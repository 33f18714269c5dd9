"""The settings of one upstream: its address, its key, its limits, and how it differs from
OpenAI."""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from models.config import dialect
from models.config.prices import ModelPrices
from models.config.values import Duration, Group, HttpAddress, TextList

_NEVER_OMITTED = frozenset(("model", "messages", "stream"))
_CACHE_PARAMETERS = ("prompt_cache_key", "prompt_cache_retention")
_FOR_MESSAGES = frozenset(("adaptive", "budget", "thinking", "none"))
_FOR_MESSAGES_ALONE = frozenset(("adaptive", "budget"))
_NOT_IN_MESSAGES = ("presence_penalty", "frequency_penalty", "top_logprobs")
_HAVE_SERVICE_TIER = frozenset(("api.openai.com", "openrouter.ai"))


class UpstreamSettings(Group):
    """A server that runs models (docs/upstreams.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = "default"
    """The upstream's name in routes. Not a setting: models/config/routes.py fills it in."""
    preset: str = ""
    """A vendor whose settings are used where this upstream sets none."""
    base_url: HttpAddress = ""
    """The base URL, with `/v1`."""
    api_key_env: str | None = None
    """The environment variable with the key."""
    api_key: SecretStr = Field(default=SecretStr("none"), validate_default=True)
    """The key, sent as `Authorization: Bearer`, or as `key_header` says."""
    key_header: dialect.KeyHeader = "authorization"
    """The header with the key; `x-api-key` if `api` is `messages`."""
    api: dialect.Api = "chat"
    """Chat Completions, the Responses API or Anthropic's Messages API."""
    headers: dict[str, SecretStr] = {}
    """Headers of every request, as secret as the key."""
    query: dict[str, SecretStr] = {}
    """Query parameters of every request, as secret."""
    max_tokens_field: dialect.MaxTokensField = "max_completion_tokens"
    """The field that limits output tokens; `max_tokens` for Mistral and older servers."""
    max_tokens: Annotated[int, Field(ge=1)] = 32_000
    """`max_tokens` with `api = "messages"` without `max_output_tokens`."""
    cache_prompts: bool = False
    """With `api = "messages"`: marks each prompt for the vendor's cache, not only those with
    `prompt_cache_key`."""
    developer_role: dialect.DeveloperRole = "system"
    """The role of instructions; `developer` for OpenAI's reasoning models."""
    single_system_message: bool = False
    """Joins all system and developer messages at the start."""
    think_tags: bool = False
    """Text between `<think>` and `</think>` becomes reasoning items."""
    think_opened: bool = False
    """The same, where the text has only `</think>`; the text before it is held back."""
    finish_reasons: dict[str, dialect.FinishReason] = {}
    """What this upstream's `finish_reason` means: `stop`, `length`, `content_filter` or `error`."""
    effort_field: dialect.EffortField = "reasoning_effort"
    """How `reasoning.effort` is sent (docs/output.md)."""
    reasoning_back: dialect.ReasoningBack = "none"
    """The field that returns reasoning to the model after tool calls (docs/output.md)."""
    reasoning_turns: dialect.ReasoningTurns = "last"
    """Whose reasoning goes back: turns since the last user message, also earlier ones with tool
    calls (`calls`), every turn."""
    reasoning_summary: bool = False
    """Makes a requested `reasoning.summary` by a second call. Only with `api = "chat"`."""
    reasoning_summary_time: Duration = timedelta(seconds=30)
    """Limit: longest time for such a call; then there is no summary."""
    structured_output: dialect.StructuredOutput = "json_schema"
    """How a JSON schema is sent (docs/output.md)."""
    call_id_form: dialect.CallIdForm = "as_is"
    """Ids of other upstreams' tool calls: unchanged up to 40 letters, digits, `_` and `-`; nine
    letters and digits; `functions.NAME:INDEX`."""
    foreign_call_fields: dict[str, Any] = {}
    """Fields for the first call of a message that this upstream did not make."""
    omit: TextList = ()
    """Fields that are never sent: top-level, of messages, functions and `json_schema`."""
    omit_from_schemas: TextList = ()
    """Keywords left out of all JSON schemas, at any depth; `const` becomes `enum`."""
    alternate_roles: bool = False
    """For templates that need user and model in turn: joins messages of one role, and adds short
    ones where one is missing."""
    empty_content: str = "(empty)"
    """Replaces a blank text of a user or a tool; empty: sent as it is."""
    call_content: dialect.CallContent = "null"
    """The `content` of a message with tool calls only: `null`, empty, or no field."""
    tool_choice: dialect.ToolChoice = "named"
    """The most that it accepts as `tool_choice`. Beyond that, only the named function is
    offered."""
    tools_for_calls: bool = False
    """Offers the functions of earlier calls, with `tool_choice: none`, to requests without
    tools."""
    strict_tools: dialect.StrictTools = "as_sent"
    """`strict` of functions: as the client set it, true for all, or never sent."""
    description_limit: Annotated[int, Field(ge=16)] | None = None
    """Characters of a function's description; the rest is cut."""
    passthrough: TextList = ()
    """Top-level parameters that are sent unchanged. `service_tier` needs it except at
    `api.openai.com` and `openrouter.ai`."""
    account_ids: TextList = ()
    """Projects that may name objects of this upstream's account; `*`: all."""
    count: Literal["auto", "responses", "messages", "vllm", "llama.cpp", "none"] = "auto"
    """How it counts tokens. `auto`: as `api`; `none` for `chat`."""
    tokenizer: str = ""
    """A `tokenizer.json` on the workers' machines for counts; needs the package `tokenizers`."""
    max_retries: int = 2
    """Limit: retries before the first byte, after 408, 409, 429, 5xx and lost connections."""
    connect_timeout: Duration = timedelta(seconds=10)
    """Limit: longest wait for a connection."""
    first_token: Duration | None = None
    """Limit: overrides `limits.first_token`."""
    token_gap: Duration | None = None
    """Limit: overrides `limits.token_gap`."""
    turn: Duration | None = None
    """Limit: overrides `limits.turn`."""
    repeat_turns: Annotated[int, Field(ge=0)] = 3
    """Limit: repeats of a turn of a background response that the upstream breaks off."""
    concurrency: Annotated[int, Field(ge=1)] | None = None
    """Limit: calls at a time of each worker. Unset: its slots, or three quarters of them with
    several upstreams."""
    wait: Duration = timedelta(seconds=10)
    """Limit: longest wait when `concurrency` is reached."""
    waiting_per_project: Annotated[int, Field(ge=1)] = 256
    """Limit: foreground calls of one project that wait for that, in each worker; background ones:
    `concurrency`."""
    circuit_failures: Annotated[int, Field(ge=1)] = 5
    """Limit: failures in a row after which a worker pauses the upstream, or a model there."""
    circuit_pause: Duration = timedelta(seconds=10)
    """Limit: for how long; doubles with each failed probe, up to four times."""
    prices: ModelPrices = {}
    """Prices at this upstream, in place of `prices.models`."""

    @property
    def plain_headers(self) -> dict[str, str]:
        """`headers` as they are sent."""
        return {name: value.get_secret_value() for name, value in self.headers.items()}

    @property
    def plain_query(self) -> dict[str, str]:
        """`query` as it is sent."""
        return {name: value.get_secret_value() for name, value in self.query.items()}

    @property
    def accepted_parameters(self) -> tuple[str, ...]:
        """The parameters that it gets besides those that every upstream gets."""
        is_messages = self.api == "messages"
        return (*self.passthrough, *(_CACHE_PARAMETERS if is_messages else ()))

    @property
    def moderates(self) -> bool:
        """Whether it gets the parameter `moderation`."""
        return self.api == "responses" or "moderation" in self.passthrough

    @property
    def unsent(self) -> list[str]:
        """What it does not get of `UNSENT_BY_SOME` (models/wire/without_effect.py), and the fields
        that it is never sent."""
        is_sent = {
            "reasoning.context": self.reasoning_back != "none",
            "reasoning.effort": self.effort_field != "none",
            "service_tier": self.has_service_tier,
        }
        never = _NOT_IN_MESSAGES if self.api == "messages" else ()
        return [*(name for name, sent in is_sent.items() if not sent), *self.omit, *never]

    @property
    def has_service_tier(self) -> bool:
        """Whether its Chat Completions have `service_tier` with OpenAI's values, as far as its
        address says: OpenAI's own and OpenRouter's. Others may refuse a field that they do not
        know; there `passthrough` may list it."""
        return urlsplit(self.base_url).hostname in _HAVE_SERVICE_TIER

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        merged = {**dialect.PRESETS.get(str(data.get("preset")), {}), **data}
        return (
            {**dialect.MESSAGES_DEFAULTS, **merged} if merged.get("api") == "messages" else merged
        )

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, value: str) -> str:
        if value and value not in dialect.PRESETS:
            raise ValueError(
                f"there is no preset '{value}' (known: {', '.join(sorted(dialect.PRESETS))})"
            )
        return value

    @field_validator("omit")
    @classmethod
    def _check_omitted(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if needed := _NEVER_OMITTED.intersection(value):
            raise ValueError(f"no request is possible without {', '.join(sorted(needed))}")
        return value

    @model_validator(mode="after")
    def _check_summary(self) -> Self:
        if self.reasoning_summary and self.api != "chat":
            raise ValueError('reasoning_summary needs api = "chat"')
        return self

    @model_validator(mode="after")
    def _check_effort(self) -> Self:
        is_messages = self.api == "messages"
        if (
            self.effort_field not in _FOR_MESSAGES
            if is_messages
            else (self.effort_field in _FOR_MESSAGES_ALONE)
        ):
            raise ValueError(
                f'effort_field = "{self.effort_field}" does not go with api = "{self.api}"'
            )
        return self

    @field_validator("api_key_env")
    @classmethod
    def _check_variable(cls, value: str | None) -> str | None:
        if value is not None and not _variable(value):
            raise ValueError(f"the variable {value} is not set in the environment")
        return value

    @field_validator("api_key")
    @classmethod
    def _read_variable(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        variable = info.data.get("api_key_env")
        return (
            SecretStr(_variable(variable))
            if variable is not None and value.get_secret_value() == "none"
            else value
        )


def _variable(name: str) -> str:
    """An environment variable that the file names; empty if it is not set."""
    return os.environ.get(name, "")  # noqa: TID251  (this reads a setting)
