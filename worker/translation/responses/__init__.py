"""Native upstreams (Responses API): the request out, the events of a turn in. Pure."""
