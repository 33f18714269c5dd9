"""The failure of a request that is too long for the model's context."""

from models.errors import UpstreamFailed


def overflow_failure(message: str) -> UpstreamFailed:
    """The failure. With `truncation: auto` the run tries again with a shorter history. `message`
    is for the client."""
    return UpstreamFailed(
        message,
        code=OVERFLOW,
        reason=OVERFLOW,
        status=400,
        param="input",
        envelope_code=OVERFLOW,
    )


OVERFLOW = "context_length_exceeded"
"""The code and the `reason` of such a failure. OpenAI's SDK does not list the code for failed
responses, but OpenAI sends it, and Codex then shortens its history."""
