"""`/v1/models`: the models that clients can request."""
