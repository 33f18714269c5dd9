"""The secrets of a single-machine stack: made once, stored in its data folder."""

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from cli.errors import CommandFailed
from models import keys


@dataclass(frozen=True)
class Credentials:
    """The content of `credentials.json`."""

    api_key: str
    database_password: str
    redis_password: str
    sealing_key: str
    """32 bytes, URL-safe base64 without padding."""


def load_or_create(path: Path, api_key: str | None) -> Credentials:
    """The stored credentials, else new ones, which are stored with mode 0600.

    `api_key` is the API key of new credentials; None makes a random one. Raises CommandFailed if
    the file is damaged.
    """
    if path.exists():
        try:
            return Credentials(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise CommandFailed(
                f"{path} is damaged; restore it, or move the whole data folder away to "
                "start from nothing"
            ) from error
    credentials = Credentials(
        api_key=api_key or keys.new_key(),
        database_password=secrets.token_urlsafe(32),
        redis_password=secrets.token_urlsafe(32),
        sealing_key=secrets.token_urlsafe(32),
    )
    write_private(path, json.dumps(asdict(credentials), indent=2) + "\n")
    return credentials


def write_private(path: Path, text: str) -> None:
    """Replaces a file atomically, also across a power failure; only its owner can read it."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
