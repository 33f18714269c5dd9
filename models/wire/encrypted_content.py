"""`encrypted_content` of reasoning that a native upstream made, as this server stores and shows it.

Only its maker can read it, so it is tagged with the upstream's name. Many projects may share one
account there, so it is also bound to the project: by a mark that only this deployment can make
(models/secrets.py). Pure.
"""

import base64
import binascii
import re
from dataclasses import dataclass

_TAGGED = re.compile(r"bbu1\.([A-Za-z0-9_-]*)\.(.*)", re.DOTALL)
_SEALED = re.compile(r"bbs\d\.")
_SEPARATOR = b"\x00"


@dataclass(frozen=True, slots=True)
class TaggedContent:
    """Encrypted content of an upstream."""

    upstream: str
    content: str
    """as the upstream made it"""
    mark: bytes | None = None
    """None: the deployment had no sealing key"""

    def encode(self) -> str:
        """Its form for storage and clients: `bbu1.<name and mark>.<content>`."""
        name = self.upstream.encode() + (b"" if self.mark is None else _SEPARATOR + self.mark)
        return f"bbu1.{base64.urlsafe_b64encode(name).decode().rstrip('=')}.{self.content}"


def is_sealed_here(encrypted: str) -> bool:
    """Whether this server has sealed the content for itself (worker/run/sealing.py)."""
    return _SEALED.match(encrypted) is not None


def parse_tagged(encrypted: str) -> TaggedContent | None:
    """The content in its stored form; None for any other text."""
    parts = _TAGGED.fullmatch(encrypted)
    if parts is None:
        return None
    try:
        decoded = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        name, separator, mark = decoded.partition(_SEPARATOR)
        return TaggedContent(name.decode(), parts[2], mark if separator else None)
    except (binascii.Error, ValueError):
        return TaggedContent("", parts[2])
