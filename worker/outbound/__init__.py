"""The guard of every connection that is made for a client."""
