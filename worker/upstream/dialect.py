"""An upstream's settings as far as the translation of a request needs them."""

from models.config.upstream import UpstreamSettings
from worker.translation.dialect import Dialect


def dialect_of(upstream: UpstreamSettings) -> Dialect:
    """The quirks that a request to this upstream must obey."""
    return Dialect(
        max_tokens_field=upstream.max_tokens_field,
        developer_role=upstream.developer_role,
        single_system_message=upstream.single_system_message,
        effort_field=upstream.effort_field,
        reasoning_back=upstream.reasoning_back,
        structured_output=upstream.structured_output,
        passthrough=upstream.passthrough,
    )
