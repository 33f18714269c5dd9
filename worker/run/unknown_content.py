"""Content of an upstream's answer that this server does not understand: counted, logged once, and
noted for `backburner explain`."""

import structlog

from models.errors import UNKNOWN_CONTENT, FailedCall
from worker.metrics import UNKNOWN_CONTENT_TURNS
from worker.run.attempt import Attempt
from worker.upstream.upstreams import Candidate

logger = structlog.get_logger()

_MAX_NAMES = 10
"""Names that are noted of one answer."""
_MAX_NAME = 100
"""Characters of one."""
_MAX_LOGGED = 1000
"""Lines that one process logs: an upstream may make up names."""

_logged: set[tuple[str, str, str]] = set()
"""Upstream, model and name of what this process has logged."""


def note_unknown_content(attempt: Attempt, candidate: Candidate, names: set[str]) -> None:
    """Notes where the upstream has sent content that is not understood: `delta.NAME`."""
    if not names:
        return
    UNKNOWN_CONTENT_TURNS.labels(candidate.name).inc()
    shown = [name[:_MAX_NAME] for name in sorted(names)[:_MAX_NAMES]]
    attempt.failed_calls.append(FailedCall(candidate.name, UNKNOWN_CONTENT, ", ".join(shown)))
    for name in shown:
        key = (candidate.name, candidate.model, name)
        if key not in _logged and len(_logged) < _MAX_LOGGED:
            _logged.add(key)
            logger.warning(
                "unknown_content", upstream=candidate.name, model=candidate.model, field=name
            )
