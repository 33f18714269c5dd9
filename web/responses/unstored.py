"""Routes that run a response only for its result: `compact` and `input_tokens`.

Their bodies become create bodies.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from models.wire.checks.faults import unknown_create_parameter
from web.http.body import json_object


@dataclass(frozen=True, slots=True)
class UnstoredCreate:
    """The create that such a request becomes."""

    body: dict[str, Any]
    ignored: list[str]
    """Parameters of the request that have no effect, besides those of the create."""


def unstored_create(
    body: Any, supported: Collection[str], ignored: Collection[str] = ()
) -> UnstoredCreate:
    """The supported parameters of `body`, without nulls, and `store: false`.

    Raises InvalidRequest for a body that is not an object, and for a parameter that is neither
    supported nor ignored.
    """
    parameters: dict[str, Any] = {"store": False}
    unused: list[str] = []
    for name, value in json_object(body).items():
        if value is None:
            continue
        if name in supported:
            parameters[name] = value
        elif name in ignored:
            unused.append(name)
        else:
            raise unknown_create_parameter(name)
    return UnstoredCreate(parameters, unused)
