"""The settings of vector stores."""

from datetime import timedelta
from typing import Literal

from pydantic import Field

from models.config.values import Bytes, Duration, Group

Language = Literal[
    "simple",
    "arabic",
    "armenian",
    "basque",
    "catalan",
    "danish",
    "dutch",
    "english",
    "finnish",
    "french",
    "german",
    "greek",
    "hindi",
    "hungarian",
    "indonesian",
    "irish",
    "italian",
    "lithuanian",
    "nepali",
    "norwegian",
    "portuguese",
    "romanian",
    "russian",
    "serbian",
    "spanish",
    "swedish",
    "tamil",
    "turkish",
    "yiddish",
]
"""The text search configurations of PostgreSQL itself."""


class RetrievalSettings(Group):
    """Vector stores (docs/vector-stores.md)."""

    embedding_model: str | None = Field(default=None, min_length=1)
    """The model that makes embeddings, by the name that clients would use. A store keeps its model.
    Unset: new stores are searched by words alone."""
    dimensions: int | None = Field(default=None, ge=1, le=4000)
    """Dimensions that the model is asked for; at most 4000. Unset: as many as it has."""
    embedding_batch: int = Field(default=64, ge=1, le=2048)
    """Most texts of one request for embeddings."""
    embedding_time: Duration = timedelta(seconds=60)
    """Longest time for one request for embeddings."""
    rewrite_model: str | None = Field(default=None, min_length=1)
    """The model that rewrites queries with `rewrite_query`. Unset: they stay as they are."""
    rewrite_time: Duration = timedelta(seconds=5)
    """Longest time for that; then the query itself is searched."""
    language: Language = "english"
    """The language of the words in new stores; `simple`: none."""
    files: int = Field(default=10_000, ge=1)
    """Most files of one store."""
    index_from: int = Field(default=50_000, ge=1)
    """Chunks from which on a store gets an HNSW index. Smaller ones are compared chunk by chunk."""
    index_memory: Bytes = Field(default=256 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Memory in which PostgreSQL makes it; a chunk needs about 800 bytes, and two for each
    dimension."""
    ingests: int = Field(default=2, ge=1)
    """Files that one worker ingests at a time, and two more for projects without one there."""
    ingest_time: Duration = timedelta(days=1)
    """A file fails if no upstream has made its embeddings for so long."""
