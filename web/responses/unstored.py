"""Routes that run a response only for its result: `compact` and `input_tokens`.

Their bodies become create bodies.
"""

from collections.abc import Collection
from typing import Any

from models.wire.checks.faults import unknown_create_parameter
from web.http.body import json_object


def unstored_create(
    body: Any, supported: Collection[str], ignored: Collection[str]
) -> dict[str, Any]:
    """The supported parameters of `body`, without nulls, and `store: false`.

    Raises InvalidRequest for a body that is not an object, and for a parameter that is neither
    supported nor ignored.
    """
    parameters: dict[str, Any] = {}
    for name, value in json_object(body).items():
        if value is None or name in ignored:
            continue
        if name not in supported:
            raise unknown_create_parameter(name)
        parameters[name] = value
    return {**parameters, "store": False}
