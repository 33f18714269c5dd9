"""Files in a bucket that all web processes and workers share (docs/files.md). botocore is Amazon's
own library; its client is callable in all threads."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Final, TypeVar

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
from models.files.storage import CHUNK, StorageError, StorageThreads

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import CompletedPartTypeDef

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


PIECE = 5 * 1024 * 1024
"""Bytes that are gathered before they are sent: the smallest piece that S3 takes. A smaller object
is stored by one request, a larger one by a multipart upload."""
_THREADS = 16
"""Requests of one process at a time."""
_PAUSE = 2.0
"""Seconds in which nothing is sent to a server that did not answer."""
_NO_UPLOADS = ("NoSuchUpload", "NotImplemented", "MethodNotAllowed")
"""Codes with which servers answer that they have no multipart upload of an object."""

T = TypeVar("T")


class S3Storage:
    """Each object is an object of the bucket. The client blocks: it sends, hashes and receives in
    threads."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._bucket = settings.bucket or ""
        self._prefix = f"{settings.prefix}/" if settings.prefix else ""
        self._threads = StorageThreads(_THREADS)
        self._connecting = threading.Lock()
        self._client: S3Client | None = None
        self._unreachable = (0.0, "")
        """until when, on the monotonic clock, the server counts as unreachable; and the reason"""

    async def write(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        """Holds PIECE bytes and a chunk."""
        upload = _Upload(self, self._bucket, self._prefix + key)
        try:
            async for chunk in chunks:
                await upload.add(chunk)
            return await upload.finish()
        except BaseException:
            await asyncio.shield(upload.abort())
            raise

    async def read(self, key: str, start: int, length: int) -> AsyncGenerator[bytes, None]:
        """Asks for the range with the first chunk, and again for the rest of it if the connection
        is lost on the way."""
        end = start + length
        while start < end:
            body = await self.request(partial(self._open, key, start, end))
            opened_at = start
            try:
                while chunk := await self.request(partial(_read_chunk, body)):
                    start += len(chunk)
                    yield chunk
            except StorageError:
                if start == opened_at:
                    raise
            finally:
                body.close()

    def _open(self, key: str, start: int, end: int, client: "S3Client") -> "StreamingBody":
        """The body of the answer, which has exactly these bytes."""
        wanted = f"bytes={start}-{end - 1}"
        try:
            answer = client.get_object(Bucket=self._bucket, Key=self._prefix + key, Range=wanted)
        except FAILURES as error:
            if code_of(error) == "InvalidRange":
                raise _shorter(key) from error
            raise
        if answer["ContentLength"] != end - start:
            answer["Body"].close()
            raise _shorter(key)
        return answer["Body"]

    async def delete(self, key: str) -> None:
        """One request."""
        place = self._prefix + key
        await self.request(lambda client: client.delete_object(Bucket=self._bucket, Key=place))

    async def discard(self, key: str) -> None:
        """Also aborts multipart uploads of the object, which a bucket keeps but does not show."""
        await self.delete(key)
        await self.request(partial(self._abort_uploads, self._prefix + key))

    def _abort_uploads(self, place: str, client: "S3Client") -> None:
        try:
            listed = client.list_multipart_uploads(Bucket=self._bucket, Prefix=place)
            for upload in listed.get("Uploads", ()):
                if upload["Key"] == place:
                    client.abort_multipart_upload(
                        Bucket=self._bucket, Key=place, UploadId=upload["UploadId"]
                    )
        except FAILURES as error:
            if code_of(error) not in _NO_UPLOADS:
                raise

    async def check(self) -> None:
        """Lists at most one object."""
        await self.request(
            lambda client: client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1
            )
        )

    async def close(self) -> None:
        """Waits for what is being sent."""
        await self._threads.close()
        if self._client is not None:
            self._client.close()

    async def request(self, work: "Callable[[S3Client], T]") -> T:
        """The result of `work`, which runs in a thread. Raises StorageError; at once while the
        server is known to be unreachable."""
        return await self._threads.run(partial(self._attempt, work))

    def _attempt(self, work: "Callable[[S3Client], T]") -> T:
        until, reason = self._unreachable
        if time.monotonic() < until:
            raise StorageError(reason)
        try:
            return work(self._connect())
        except FAILURES as error:
            reason = explain(error, self._settings)
            if is_unreachable(error):
                self._unreachable = (time.monotonic() + _PAUSE, reason)
            raise StorageError(reason) from error

    def _connect(self) -> "S3Client":
        with self._connecting:
            if self._client is None:
                self._client = connect(self._settings)
            return self._client


class _Upload:
    """An object that is being written."""

    def __init__(self, storage: S3Storage, bucket: str, key: str) -> None:
        self._storage = storage
        self._bucket = bucket
        self._key = key
        self._piece = BytesIO()
        self._size = 0
        self._id: str | None = None
        """of the multipart upload"""
        self._sent: list[CompletedPartTypeDef] = []

    async def add(self, chunk: bytes) -> None:
        """The next bytes."""
        self._piece.write(chunk)
        self._size += len(chunk)
        if self._piece.tell() >= PIECE:
            await self._storage.request(self._send)

    async def finish(self) -> int:
        """Stores the object, and returns its size."""
        await self._storage.request(self._store)
        return self._size

    async def abort(self) -> None:
        """Gives the multipart upload up, if there is one and the server answers."""
        if self._id is not None:
            with suppress(StorageError):
                await self._storage.request(self._abort)

    def _send(self, client: "S3Client") -> None:
        """Sends what was gathered as the next piece of a multipart upload."""
        if self._id is None:
            created = client.create_multipart_upload(Bucket=self._bucket, Key=self._key)
            self._id = created["UploadId"]
        number = len(self._sent) + 1
        self._piece.seek(0)
        sent = client.upload_part(
            Bucket=self._bucket,
            Key=self._key,
            UploadId=self._id,
            PartNumber=number,
            Body=self._piece,
        )
        self._sent.append({"PartNumber": number, "ETag": sent["ETag"]})
        self._piece = BytesIO()

    def _store(self, client: "S3Client") -> None:
        if self._id is None:
            self._piece.seek(0)
            client.put_object(Bucket=self._bucket, Key=self._key, Body=self._piece)
            return
        if self._piece.tell():
            self._send(client)
        client.complete_multipart_upload(
            Bucket=self._bucket,
            Key=self._key,
            UploadId=self._id,
            MultipartUpload={"Parts": self._sent},
        )

    def _abort(self, client: "S3Client") -> None:
        if self._id is not None:
            client.abort_multipart_upload(Bucket=self._bucket, Key=self._key, UploadId=self._id)


def _read_chunk(body: "StreamingBody", _: "S3Client") -> bytes:
    chunk: bytes = body.read(CHUNK)
    return chunk


def _shorter(key: str) -> StorageError:
    return StorageError(f"the stored object {key} is shorter than it was")
