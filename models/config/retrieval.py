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
    """The model that makes embeddings, by the name that clients would use: a route leads to its
    upstream. A store keeps the model that was set when it was made. Unset: new stores are searched
    by words alone."""
    dimensions: int | None = Field(default=None, ge=1, le=4000)
    """Dimensions that the model is asked for. Unset: as many as it has, up to 4000."""
    embedding_batch: int = Field(default=64, ge=1, le=2048)
    """Most texts of one request for embeddings."""
    embedding_time: Duration = timedelta(seconds=60)
    """Longest time for one request for embeddings."""
    rewrite_model: str | None = Field(default=None, min_length=1)
    """The model that rewrites queries where a search says `rewrite_query`, by the name that clients
    would use: a route leads to its upstream. Unset: queries stay as they are."""
    rewrite_time: Duration = timedelta(seconds=5)
    """Longest time for that; then the query itself is searched."""
    language: Language = "english"
    """The language of the words in new stores: a text search configuration of PostgreSQL. `simple`
    knows no language."""
    files: int = Field(default=10_000, ge=1)
    """Most files of one store."""
    index_from: int = Field(default=50_000, ge=1)
    """Chunks from which on a store with embeddings gets an HNSW index. Smaller ones are searched by
    comparing each chunk, which is exact."""
    index_memory: Bytes = Field(default=256 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Memory in which PostgreSQL makes such an index. A larger index takes many times as long: a
    chunk needs about 800 bytes, and two for each dimension."""
    ingests: int = Field(default=2, ge=1)
    """Files that one worker ingests at a time, and two more for projects that have none there."""
    ingest_time: Duration = timedelta(days=1)
    """A file fails if no upstream has made its embeddings for so long."""
