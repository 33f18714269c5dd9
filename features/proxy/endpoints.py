"""The endpoints that are forwarded to upstreams, each described once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from models.wire.account_ids import AccountId, body_account_ids, chat_account_ids
from models.wire.token_counts import UsageKind

_TEXT_TYPES = (
    "application/json",
    "text/event-stream",
    "text/plain",
    "application/problem+json",
)
"""Content types that are forwarded for every endpoint. Any other, such as a proxy's HTML, becomes
plain text."""
_AUDIO_TYPES = ("audio/", "application/octet-stream")
_SUBTITLE_TYPES = ("text/vtt", "application/x-subrip")
MODERATION_MODEL = "omni-moderation-latest"
"""OpenAI's default for moderations."""


@dataclass(frozen=True, slots=True)
class ProxiedEndpoint:
    """One path of the API, which upstreams have under their base URL too."""

    name: str
    """of its operation in the API document"""
    path: str
    """behind `/v1` here, and behind the base URL at the upstream"""
    summary: str
    description: str
    takes_form: bool = False
    """Whether a body may be `multipart/form-data`; JSON it may always be."""
    default_model: str | None = None
    """The model of a request that names none; None: it must name one."""
    output_limits: tuple[str, ...] = ()
    """Parameters that limit the output's tokens, the first one that is given counts."""
    has_output: bool = True
    """Whether the model produces tokens, whose number is estimated if nothing limits it."""
    answer_types: tuple[str, ...] = ()
    """Further content types that are forwarded; one that ends with `/` stands for all below it."""
    accept: str = "*/*"
    find_account_ids: Callable[[dict[str, Any]], Iterator[AccountId]] = body_account_ids
    """The ids in a JSON body that name objects of the upstream's account."""
    names_files: bool = False
    """Whether upstreams of any API look up objects of their account by these ids; else only native
    ones are taken to."""
    usage_kind: UsageKind = UsageKind.COMPLETIONS
    explains_absence: bool = True
    """Whether a client whose upstream lacks the endpoint gets an error of ours instead of the
    upstream's."""

    def forwards_type(self, content_type: str) -> bool:
        """Whether the client gets an answer with this content type."""
        kind = content_type.partition(";")[0].strip().lower()
        return kind in _TEXT_TYPES or any(
            kind.startswith(each) if each.endswith("/") else kind == each
            for each in self.answer_types
        )


CHAT = ProxiedEndpoint(
    "chat",
    "/chat/completions",
    "Create a chat completion",
    "Forwards a chat completion to the model's upstream, streamed or not, and its response to the "
    "client, unchanged. When the client disconnects, the connection to the upstream is closed.",
    output_limits=("max_completion_tokens", "max_tokens"),
    accept="text/event-stream, application/json",
    find_account_ids=lambda body: chat_account_ids(body.get("messages")),
    names_files=True,
    explains_absence=False,
)
ENDPOINTS = (
    CHAT,
    ProxiedEndpoint(
        "create_completion",
        "/completions",
        "Complete a text",
        "Forwards a completion of a text to the model's upstream, streamed or not.",
        output_limits=("max_tokens",),
        accept="text/event-stream, application/json",
    ),
    ProxiedEndpoint(
        "create_embeddings",
        "/embeddings",
        "Create embeddings",
        "Forwards texts, or whatever else the model embeds, to the model's upstream.",
        has_output=False,
        usage_kind=UsageKind.EMBEDDINGS,
    ),
    ProxiedEndpoint(
        "rerank",
        "/rerank",
        "Rank documents by a query",
        "Forwards a query and documents to the model's upstream, in the form of Cohere and Jina.",
        has_output=False,
    ),
    ProxiedEndpoint(
        "create_moderation",
        "/moderations",
        "Classify texts and images",
        f"Forwards texts and images to the model's upstream. The model is `{MODERATION_MODEL}` if "
        "the request names none.",
        default_model=MODERATION_MODEL,
        has_output=False,
        usage_kind=UsageKind.MODERATIONS,
    ),
    ProxiedEndpoint(
        "create_speech",
        "/audio/speech",
        "Speak a text",
        "Forwards a text to the model's upstream, and its audio to the client as it arrives.",
        answer_types=_AUDIO_TYPES,
        usage_kind=UsageKind.AUDIO_SPEECHES,
    ),
    ProxiedEndpoint(
        "create_transcription",
        "/audio/transcriptions",
        "Transcribe audio",
        "Streams audio to the model's upstream, and its text to the client.",
        takes_form=True,
        answer_types=_SUBTITLE_TYPES,
        usage_kind=UsageKind.AUDIO_TRANSCRIPTIONS,
    ),
    ProxiedEndpoint(
        "create_translation",
        "/audio/translations",
        "Translate audio to English",
        "Streams audio to the model's upstream, and its text in English to the client.",
        takes_form=True,
        answer_types=_SUBTITLE_TYPES,
        usage_kind=UsageKind.AUDIO_TRANSCRIPTIONS,
    ),
    ProxiedEndpoint(
        "generate_images",
        "/images/generations",
        "Generate images",
        "Forwards a prompt to the model's upstream, streamed or not.",
        usage_kind=UsageKind.IMAGES,
    ),
    ProxiedEndpoint(
        "edit_images",
        "/images/edits",
        "Edit images",
        "Streams images and a prompt to the model's upstream.",
        takes_form=True,
        usage_kind=UsageKind.IMAGES,
    ),
    ProxiedEndpoint(
        "vary_image",
        "/images/variations",
        "Vary an image",
        "Streams an image to the model's upstream.",
        takes_form=True,
        usage_kind=UsageKind.IMAGES,
    ),
)
