"""The groups of settings of features, as those of models/config/groups.py."""

import re
from datetime import timedelta
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from models.config import values
from models.hosts import allowed_hosts

_MIN_TOKEN = 16
_PATH = r"(/[A-Za-z0-9._~-]+)*"


class ConsoleSettings(values.Group):
    """The console ([console.md](console.md))."""

    operator_token: values.Secret = None
    """The token of operators, at least 16 characters. Without any token or `user_header`, only a
    loopback address has the console."""
    read_only_token: values.Secret = None
    """The token of users who only look, at least 16 characters."""
    session_time: values.Duration = Field(default=timedelta(hours=12))
    """Limit: how long a login is valid."""
    path_prefix: str = ""
    """The path, such as `/backburner`, that a proxy removes from requests."""
    user_header: str = ""
    """The header in which a proxy names the user, such as `X-Forwarded-User`. Needs
    `trusted_proxies`."""
    groups_header: str = ""
    """The header with the user's groups, separated by commas."""
    operator_groups: values.TextList = ()
    """Groups of operators. `*`: every user."""
    read_only_groups: values.TextList = ()
    """Groups that only look. `*`: every user."""
    trusted_proxies: values.TextList = ()
    """Networks (CIDR) of the proxies whose `user_header` is believed."""

    @field_validator("operator_token", "read_only_token")
    @classmethod
    def _check_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < _MIN_TOKEN:
            raise ValueError(f"must have at least {_MIN_TOKEN} characters")
        return value

    @field_validator("path_prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        prefix = value.rstrip("/")
        if not re.fullmatch(_PATH, prefix):
            raise ValueError("must be a path such as /backburner")
        return prefix

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            try:
                ip_network(entry, strict=False)
            except ValueError:
                raise ValueError(f"{entry!r} is no network such as 10.1.0.0/16") from None
        return value

    @model_validator(mode="after")
    def _check_users(self) -> Self:
        if self.user_header and not self.trusted_proxies:
            raise ValueError("console.user_header needs console.trusted_proxies")
        if self.user_header and not (self.operator_groups or self.read_only_groups):
            raise ValueError(
                "console.user_header needs console.operator_groups or console.read_only_groups"
            )
        if self.operator_token is not None and self.operator_token == self.read_only_token:
            raise ValueError("the two tokens of the console must differ")
        return self

    @property
    def has_login(self) -> bool:
        """Whether somebody can log in without a link of this machine."""
        tokens = (self.operator_token, self.read_only_token)
        return bool(self.user_header) or any(token is not None for token in tokens)


class SearchSettings(values.Group):
    """How operators find responses ([console.md](console.md#finding-a-response))."""

    text: bool = True
    """Operators find responses by words of input and output; `text_search` in a policy overrides
    it. If it becomes false, the stored words are deleted."""
    characters: int = Field(default=4096, ge=100, le=65536)
    """Limit: characters of the input, newest items first, and of the output whose words are stored
    when a response ends."""


class ExtractionSettings(values.Group):
    """What the process that reads a file of a vector store may use (docs/file-kinds.md)."""

    memory: values.Bytes = Field(default=384 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Limit: most memory (address space) of the process."""
    cpu_time: values.Duration = Field(default=timedelta(minutes=2), ge=timedelta(seconds=1))
    """Limit: longest CPU time of the process."""
    time: values.Duration = Field(default=timedelta(minutes=15), ge=timedelta(seconds=1))
    """Limit: longest time of the process."""
    text: values.Bytes = Field(default=32 * 1024 * 1024, ge=1)
    """Limit: most text of a file, in UTF-8."""
    unpacked: values.Bytes = Field(default=256 * 1024 * 1024, ge=1)
    """Limit: most bytes of an unpacked Office file, without its pictures."""


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


class RetrievalSettings(values.Group):
    """Vector stores (docs/vector-stores.md)."""

    embedding_model: str | None = Field(default=None, min_length=1)
    """The model for embeddings; a store keeps its own. Unset: new stores are searched by words
    alone."""
    dimensions: int | None = Field(default=None, ge=1, le=4000)
    """Dimensions of embeddings, at most 4000. Unset: as many as the model has."""
    embedding_batch: int = Field(default=64, ge=1, le=2048)
    """Limit: most texts of one request for embeddings."""
    embedding_time: values.Duration = timedelta(seconds=60)
    """Limit: longest time for such a request."""
    rewrite_model: str | None = Field(default=None, min_length=1)
    """The model that rewrites queries. Unset: none does."""
    rewrite_time: values.Duration = timedelta(seconds=5)
    """Limit: longest time for that; then the query itself is searched."""
    language: Language = "english"
    """The language of the words in new stores, one of PostgreSQL's; `simple`: none."""
    files: int = Field(default=10_000, ge=1)
    """Limit: most files of one store."""
    index_from: int = Field(default=50_000, ge=1)
    """Limit: chunks from which a store gets an HNSW index."""
    index_memory: values.Bytes = Field(default=256 * 1024 * 1024, ge=64 * 1024 * 1024)
    """PostgreSQL's memory for that."""
    ingests: int = Field(default=2, ge=1)
    """Limit: files that one worker ingests at a time, and two more for projects without one."""
    ingest_time: values.Duration = timedelta(days=1)
    """Limit: a file fails if no upstream makes its embeddings for so long."""


_BUCKET = r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}"
_PREFIX = r"[A-Za-z0-9._/-]{0,200}"


class S3Settings(values.Group):
    """Files in a bucket of S3, or of a server with its API (docs/files.md). Needs the package's
    extra `s3`."""

    bucket: Annotated[str | None, values.EMPTY_IS_UNSET] = None
    """The bucket, the same for all processes; `files.folder` is not used then."""
    endpoint: Annotated[values.HttpAddress | None, values.EMPTY_IS_UNSET] = None
    """The address of the server. Unset: Amazon's for the region."""
    region: str = Field(default="us-east-1", min_length=1)
    """The region of the bucket."""
    path_style: bool = False
    """Names the bucket in the path, as most servers but Amazon's need it."""
    prefix: str = ""
    """What the key of each object begins with."""
    access_key: values.Secret = None
    """The access key. Unset: that of Amazon's tools, or the machine's role."""
    secret_key: values.Secret = None
    """Its secret."""
    timeout: Annotated[values.Duration, Field(ge=timedelta(seconds=1))] = timedelta(seconds=10)
    """Limit: longest wait for an answer and its next bytes; a request is tried three times."""

    @field_validator("bucket")
    @classmethod
    def _check_bucket(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(_BUCKET, value):
            raise ValueError("must be the name of a bucket, without an address")
        if value is not None and find_spec("botocore") is None:
            raise ValueError("needs a package that is missing: pip install 'backburner[s3]'")
        return value

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        if not re.fullmatch(_PREFIX, value) or ".." in value:
            raise ValueError("may have letters, digits and the characters . _ - /")
        return value.strip("/")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("s3.access_key and s3.secret_key are set together, or both are not")
        return self

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no line of a log may show."""
        return () if self.secret_key is None else (self.secret_key.get_secret_value(),)


class WebhookSettings(values.Group):
    """The delivery of webhooks."""

    timeout: values.Duration = timedelta(seconds=15)
    """Limit: longest time until an endpoint answers."""
    retention: values.Duration = timedelta(days=30)
    """How long deliveries are listed and can be sent again."""
    endpoints: int = Field(default=20, ge=1)
    """Limit: most endpoints of a project."""


class FileSettings(values.Group):
    """Files (docs/files.md)."""

    folder: Path | None = None
    """The folder, the same for all processes. Unset, without `s3.bucket`: no files are stored. `up`
    uses `files` in its data folder."""
    bytes: values.Bytes = Field(default=512 * 1024 * 1024, ge=1)
    """Limit: largest file."""
    batch_bytes: values.Bytes = Field(default=200 * 1024 * 1024, ge=1)
    """Limit: largest file of purpose `batch`."""
    part_bytes: values.Bytes = Field(default=64 * 1024 * 1024, ge=1)
    """Limit: largest part of an upload."""
    per_request: int = Field(default=1000, ge=1)
    """Limit: most stored files that one request names."""
    upload_time: values.Duration = timedelta(hours=1)
    """Limit: longest time for one upload."""
    batch_retention: values.Duration | None = timedelta(days=30)
    """How long files of purpose `batch` and `batch_output` are kept, unless the client says
    less."""


class BatchSettings(values.Group):
    """Batches (docs/batches.md)."""

    requests: int = Field(default=50_000, ge=1)
    """Limit: most requests."""
    line: values.Bytes = Field(default=8 * 1024 * 1024, ge=1000)
    """Limit: longest line of an input file."""
    open: int = Field(default=1000, ge=1)
    """Limit: most requests of one batch that wait, run, or have no written result."""
    longest_window: values.Duration = timedelta(days=7)
    """Limit: longest `completion_window`."""
    retention: values.Duration = timedelta(days=30)
    """How long a batch is listed after its end."""


class ScheduleSettings(values.Group):
    """Schedules (docs/background.md)."""

    per_project: int = Field(default=200, ge=1)
    """Limit: most schedules of a project, those that are completed too."""
    template: values.Bytes = Field(default=256 * 1024, ge=1000)
    """Limit: largest `template`, as JSON."""
    late: values.Duration = Field(default=timedelta(minutes=1), ge=timedelta(seconds=1))
    """Limit: a slot is missed if no web process has worked on it for so long."""
    catch_up: int = Field(default=100, ge=1, le=1000)
    """Limit: most slots that `missed: run_all` runs after a pause or outage, the newest."""
    retention: values.Duration = timedelta(days=30)
    """How long runs are listed, and a schedule after its last slot."""


class SteeringSettings(values.Group):
    """Input for responses that run (docs/websocket.md)."""

    pending: int = Field(default=16, ge=1, le=1000)
    """Limit: most inputs that may be queued for one response."""
    pending_bytes: values.Bytes = Field(default=4 * 1024 * 1024, ge=1000)
    """Limit: most bytes of all of them together."""


class ModerationSettings(values.Group):
    """Moderation by a route of `/v1/moderations` ([moderation.md](moderation.md))."""

    window: Annotated[values.Characters, Field(ge=1)] = 500
    """Limit: text of a model that is held back until it is judged."""
    hold: values.Duration = timedelta(seconds=2)
    """Limit: age from which less text is judged, with the next piece."""
    characters: Annotated[values.Characters, Field(ge=100)] = 8_000
    """Limit: most text of one call; more is divided."""
    time: values.Duration = timedelta(seconds=30)
    """Limit: longest time of one call."""


class CodeSettings(values.Group):
    """Running code for models ([code.md](code.md))."""

    sandboxes: values.TextList = ()
    """Base URLs of the sandboxes, such as `http://sandbox-0:8600`. Empty: no code is run."""
    token: SecretStr = SecretStr("")
    """The workers' token for sandboxes, at least 16 characters."""
    wall_time: values.Duration = Field(default=timedelta(minutes=2), ge=timedelta(seconds=1))
    """Limit: longest time of one call of code."""
    idle_time: values.Duration = Field(default=timedelta(minutes=20), ge=timedelta(seconds=1))
    """Limit: a container expires after so long without use, unless a client names less."""
    memory_limit: Literal["1g", "4g", "16g", "64g"] = "1g"
    """Largest `memory_limit` of a client: sandboxes must be run with as much."""
    file_bytes: values.Bytes = Field(default=64 * 1024 * 1024, ge=1)
    """Limit: largest file that code leaves in a container and that is kept."""
    allowed_hosts: values.TextList = ()
    """Hosts that a client's `network_policy` may name, as `pypi.org`, `*.example.org` or
    `name:8443`, and private networks to which they may lead. Sandboxes need the same list."""

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        allowed_hosts(value)
        return value

    @model_validator(mode="after")
    def _check_sandboxes(self) -> Self:
        if self.sandboxes and len(self.token.get_secret_value()) < _MIN_TOKEN:
            raise ValueError(f"code.sandboxes needs code.token of at least {_MIN_TOKEN} characters")
        return self


class CellSettings(values.Group):
    """A cell, as the other ones reach it (docs/cells.md)."""

    url: values.HttpAddress
    """Where it is reached, without the router and without `/v1`."""
    admin_key: SecretStr
    """A key of it with the scope `admin`."""
