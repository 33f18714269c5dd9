"""Webhooks: what is sent, how it is signed, when it is tried again (docs/webhooks.md). Pure."""
