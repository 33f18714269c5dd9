"""Webhook endpoints in the API: bodies and objects (docs/webhooks.md)."""
