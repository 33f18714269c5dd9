"""The bodies of the creates that benchmarks send."""

from typing import Any

from bench.paced_upstream import model

INSTRUCTIONS = "Answer in one short sentence. " * 20
"""Makes a request about as large as a usual one: 900 bytes."""
SHORT = model(5)
"""The model that answers with five deltas at once."""


def body(name: str, **parameters: Any) -> dict[str, Any]:
    """The body of a create. `name`: the model, which is the plan of the upstream."""
    return {"model": name, "input": "hi", "instructions": INSTRUCTIONS, **parameters}
