"""The settings of extraction: what reading one file may cost."""

from datetime import timedelta

from pydantic import Field

from models.config.values import Bytes, Duration, Group


class ExtractionSettings(Group):
    """What a worker lets one file of a vector store use while it reads its text, in a process of
    its own (docs/file-kinds.md)."""

    memory: Bytes = Field(default=384 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Most memory (address space) of the process."""
    cpu_time: Duration = Field(default=timedelta(minutes=2), ge=timedelta(seconds=1))
    """Longest CPU time of the process."""
    time: Duration = Field(default=timedelta(minutes=15), ge=timedelta(seconds=1))
    """Longest time that a worker waits for the process. The process has a low priority."""
    text: Bytes = Field(default=32 * 1024 * 1024, ge=1)
    """Most text of a file, in UTF-8."""
    unpacked: Bytes = Field(default=256 * 1024 * 1024, ge=1)
    """Most bytes of an Office file when it is unpacked, without its pictures."""
