"""Upstreams with Anthropic's Messages API: the request out. Their streams are read as chunks of a
chat upstream (worker/upstream/messages_chunks.py). Pure."""
