"""The secrets of a single-machine stack, made once and kept in its data folder."""

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from cli.embedded.process import StartFailed
from models import keys


@dataclass(frozen=True)
class Credentials:
    """What `credentials.json` holds."""

    api_key: str
    database_password: str
    redis_password: str
    sealing_key: str
    """32 bytes, URL-safe base64 without padding."""


def load_or_create(path: Path, api_key: str | None) -> Credentials:
    """The stored credentials, or new ones, stored 0600. `api_key` fixes the first key when there are none yet."""
    if path.exists():
        try:
            return Credentials(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise StartFailed(
                f"{path} is damaged; restore it, or move the whole data folder away to start anew"
            ) from error
    made = Credentials(
        api_key=api_key or keys.new_key(),
        database_password=secrets.token_urlsafe(32),
        redis_password=secrets.token_urlsafe(32),
        sealing_key=secrets.token_urlsafe(32),
    )
    write_private(path, json.dumps(asdict(made), indent=2) + "\n")
    return made


def write_private(path: Path, text: str) -> None:
    """Replace the file in one step, readable by its owner alone: nobody sees half of it, not even after a power cut."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
