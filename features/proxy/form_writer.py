"""Writes the parts of a form anew, in the plainest form, so that no two readers can disagree on
what it holds. Pure."""

import re
import secrets

from features.files.form_parser import FileBegin, FileData, FormEvent, FormField

_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')
_MAX_FILENAME = 255


class FormWriter:
    """Encodes events with a boundary of its own."""

    def __init__(self) -> None:
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._begin = f"--{boundary}\r\n".encode()
        self.end = f"--{boundary}--\r\n".encode()
        """What comes behind the last part."""

    def encode(self, event: FormEvent) -> bytes:
        """The bytes of this event."""
        if isinstance(event, FileData):
            return event.data
        if isinstance(event, FormField):
            return self._head(event.name, None, event.content_type) + event.value + b"\r\n"
        if isinstance(event, FileBegin):
            return self._head(event.name, event.filename, event.content_type)
        return b"\r\n"

    def _head(self, name: str, filename: str | None, content_type: str | None) -> bytes:
        lines = [f'Content-Disposition: form-data; name="{name}"']
        if filename is not None:
            # A quote or a backslash ends or hides the end of a quoted string for some readers.
            lines[0] += f'; filename="{_UNSAFE.sub("_", filename)[-_MAX_FILENAME:]}"'
        if content_type is not None:
            lines.append(f"Content-Type: {content_type}")
        return self._begin + "\r\n".join((*lines, "", "")).encode()
