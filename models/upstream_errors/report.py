"""An error as an upstream reports it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """What an error's body, or an error inside a stream, says."""

    message: str = ""
    """The upstream's words; empty if there are none."""
    codes: tuple[str, ...] = ()
    """Its codes, types and names, the finest first."""
    status: int = 0
    """The HTTP status that it names, or that its names or words mean; 0: unknown."""
    retry_after: int | None = None
    """Seconds to wait, if it names them."""
    param: str | None = None
