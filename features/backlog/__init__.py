"""The open responses of a deployment as figures of `/metrics`."""
