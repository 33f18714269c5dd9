"""Opens the tracer of a process."""

from models.config.settings import Settings
from models.tracing.spans import Tracer


def open_tracer(settings: Settings, process: str) -> Tracer | None:
    """The tracer of this process, of the kind `process`; None if traces are off."""
    if not settings.traces.enabled:
        return None
    from models.tracing.otel import OtelTracer  # the optional extra

    return OtelTracer(process)
