"""The settings of files in a bucket: the table `[s3]` of `backburner.toml`."""

import re
from datetime import timedelta
from importlib.util import find_spec
from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from models.config.values import HTTP_ADDRESS, Duration, Group

_BUCKET = r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}"
_PREFIX = r"[A-Za-z0-9._/-]{0,200}"


class S3Settings(Group):
    """Files in a bucket of S3, or of a server with its API, instead of a folder (docs/files.md).
    Needs the package's extra `s3`."""

    bucket: str | None = None
    """The bucket, the same for all web processes and workers; `files.folder` is not used then."""
    endpoint: str | None = None
    """The address of the server. Unset: Amazon's for the region."""
    region: str = Field(default="us-east-1", min_length=1)
    """The region of the bucket."""
    path_style: bool = False
    """Names the bucket in the path, as most servers other than Amazon's need it."""
    prefix: str = ""
    """What the key of each object begins with."""
    access_key: SecretStr | None = None
    """The access key. Unset: that of Amazon's tools, or of the role of this machine."""
    secret_key: SecretStr | None = None
    """Its secret."""
    timeout: Annotated[Duration, Field(ge=timedelta(seconds=1))] = timedelta(seconds=10)
    """Longest wait for an answer, and for its next bytes; a request is tried three times."""

    @field_validator("bucket", "endpoint", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return value or None

    @field_validator("access_key", "secret_key")
    @classmethod
    def _empty_key_is_unset(cls, value: SecretStr | None) -> SecretStr | None:
        return value if value is not None and value.get_secret_value() else None

    @field_validator("bucket")
    @classmethod
    def _check_bucket(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(_BUCKET, value):
            raise ValueError("must be the name of a bucket, without an address")
        if value is not None and find_spec("botocore") is None:
            raise ValueError("needs a package that is missing: pip install 'backburner[s3]'")
        return value

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(HTTP_ADDRESS, value):
            raise ValueError(
                "must be an http:// or https:// address without user name, query or fragment"
            )
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
