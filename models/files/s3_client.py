"""The client of a bucket, and what operators read when it fails. botocore is Amazon's own library;
its client is callable in all threads (docs/files.md)."""

from typing import TYPE_CHECKING, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    ResponseStreamingError,
)
from botocore.exceptions import ConnectionError as ConnectionFailed
from urllib3.exceptions import HTTPError

from models.config.feature_groups import S3Settings

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

FAILURES: Final = (BotoCoreError, ClientError, HTTPError, OSError)
"""What a request raises."""
_TRIES = 3
_CONNECTIONS = 256
"""That are kept open. A connection that is used is never one too many."""
_REASONS = {
    "AccessDenied": "its access key may not do this; docs/files.md lists what it must be allowed",
    "AuthorizationHeaderMalformed": "it has another region; set BACKBURNER_S3__REGION",
    "ExpiredToken": "the credentials of this process have expired",
    "IllegalLocationConstraintException": "it has another region; set BACKBURNER_S3__REGION",
    "InvalidAccessKeyId": "the server does not know the access key",
    "NoSuchBucket": "there is no such bucket",
    "NoSuchKey": "the stored object is lost",
    "PermanentRedirect": "it has another region or address; set BACKBURNER_S3__REGION",
    "RequestTimeTooSkewed": "the clock of this machine and the server's differ",
    "SignatureDoesNotMatch": "the secret key is wrong",
}
"""Code of an error -> what operators should know."""


def connect(settings: S3Settings) -> "S3Client":
    """A client for the server. It connects with its first request. Raises what FAILURES names."""
    keys = (settings.access_key, settings.secret_key)
    access_key, secret_key = (None if key is None else key.get_secret_value() for key in keys)
    timeout = settings.timeout.total_seconds()
    client: S3Client = botocore.session.Session().create_client(
        "s3",
        region_name=settings.region,
        endpoint_url=settings.endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(
            connect_timeout=min(timeout, 5),
            read_timeout=timeout,
            retries={"mode": "standard", "total_max_attempts": _TRIES},
            max_pool_connections=_CONNECTIONS,
            s3={"addressing_style": "path" if settings.path_style else "virtual"},
            # Servers other than Amazon's do not know all checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    return client


def is_unreachable(error: Exception) -> bool:
    """The server does not answer, so it will not answer the next request either."""
    return isinstance(error, (ConnectionFailed, HTTPClientError)) and not isinstance(
        error, ResponseStreamingError
    )


def code_of(error: Exception) -> str | None:
    """The code with which the server has refused a request; None: it has not."""
    return error.response["Error"].get("Code") if isinstance(error, ClientError) else None


def explain(error: Exception, settings: S3Settings) -> str:
    """A sentence for operators. It repeats nothing of what the server has sent but the code: some
    servers send the key, or what was signed."""
    where = f"the bucket {settings.bucket} at {settings.endpoint or 'Amazon'}"
    if isinstance(error, ClientError):
        code = code_of(error) or "no code"
        status = error.response["ResponseMetadata"].get("HTTPStatusCode")
        reason = _REASONS.get(code, f"the server has refused {error.operation_name}")
        return f"{where}: {reason} ({code}, HTTP {status})"
    if is_unreachable(error):
        return f"{where}: the server does not answer ({type(error).__name__})"
    if isinstance(error, NoCredentialsError):
        return f"{where}: no access key; set BACKBURNER_S3__ACCESS_KEY and …__SECRET_KEY"
    return f"{where}: a request has failed ({type(error).__name__})"
