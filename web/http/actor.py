"""Who sent a request, for the audit log."""

from starlette.requests import HTTPConnection

from models.db.queries.audit import Actor, ActorKind
from web.http.request_record import request_record


def actor_of(connection: HTTPConnection) -> Actor:
    """The client of an authenticated request."""
    record = request_record(connection)
    return Actor(
        ActorKind.KEY,
        key_id=record.key_id,
        key_prefix=record.key_prefix,
        project=record.project,
        address=connection.client.host if connection.client else None,
        request_id=record.id,
    )
