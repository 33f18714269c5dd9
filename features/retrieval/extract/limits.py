"""What the process that reads a file may use. Also imported by that process."""

import json
from dataclasses import asdict, dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ExtractionLimits:
    """Bytes and seconds for one file."""

    memory: int = 384 * MIB
    """Bytes of address space of the process."""
    cpu_time: float = 120.0
    """Seconds of CPU of the process."""
    time: float = 900.0
    """Seconds that the caller waits for the process. The time in which the caller works on what it
    has got does not count."""
    text: int = 32 * MIB
    """Bytes of the text in UTF-8."""
    unpacked: int = 256 * MIB
    """Bytes that the parts of an Office file have when they are unpacked, without its pictures."""

    def encode(self) -> str:
        """As an argument of the process."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, argument: str) -> "ExtractionLimits":
        """What `encode` made."""
        return cls(**json.loads(argument))


def shown(size: int) -> str:
    """A number of bytes for the user."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size} bytes"
