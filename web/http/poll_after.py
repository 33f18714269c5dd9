"""When a client should ask again for what has not ended: the header that the official SDK reads in
its loops that poll."""

HEADER = "openai-poll-after-ms"
_SHORTEST = 1.0
_LONGEST = 10.0
_LONGEST_PAUSE = 60.0
"""Seconds. Before the end of a pause nothing changes, unless it is cancelled."""
_SHARE = 0.1
"""of the time that it has taken so far: so much later than its end is it seen, at most"""


def poll_after(age: float, pause: float | None = None) -> dict[str, str]:
    """The header. `age`: seconds since it was created. `pause`: seconds until it is tried again, if
    it waits for that."""
    wait = min(max(age * _SHARE, _SHORTEST), _LONGEST)
    if pause is not None:
        wait = max(wait, min(pause, _LONGEST_PAUSE))
    return {HEADER: str(round(wait * 1000))}
