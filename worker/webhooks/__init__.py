"""The delivery of webhooks: one task of each worker (docs/webhooks.md)."""
