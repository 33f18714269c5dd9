"""An upstream's own Responses API: the request out, the events of a turn in. Pure."""
