"""The web process: HTTP and WebSocket. It stores requests and streams events; workers run them."""
