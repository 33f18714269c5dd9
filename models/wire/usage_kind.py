"""What kind of work usage is: each has a path under /v1/organization/usage (docs/projects.md)."""

from enum import StrEnum


class UsageKind(StrEnum):
    """The kinds, by the last part of their paths."""

    COMPLETIONS = "completions"
    """Text of a model, and whatever has no kind of its own."""
    EMBEDDINGS = "embeddings"
    MODERATIONS = "moderations"
    IMAGES = "images"
    AUDIO_SPEECHES = "audio_speeches"
    AUDIO_TRANSCRIPTIONS = "audio_transcriptions"
