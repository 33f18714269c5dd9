"""Chat upstreams (Chat Completions): the request out, the chunks of a turn in. Pure."""
