"""Steering: user input for a response that runs (docs/websocket.md, docs/background.md)."""
