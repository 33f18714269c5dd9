"""An upstream's settings as far as the translation of a request depends on them."""

from dataclasses import fields

from models.config.upstream import UpstreamSettings
from worker.translation.dialect import Dialect

_FIELDS = tuple(field.name for field in fields(Dialect))


def dialect_of(upstream: UpstreamSettings) -> Dialect:
    """The dialect of this upstream: its settings of the same names."""
    return Dialect(**{name: getattr(upstream, name) for name in _FIELDS})
