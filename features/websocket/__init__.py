"""WebSocket mode: one session a connection, its frames, and the protocol class for uvicorn."""
