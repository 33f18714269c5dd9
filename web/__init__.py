"""The front: accepts requests, stores rows, rings the bell, relays events. It never runs a response."""
