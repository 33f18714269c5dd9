"""The commands that look at a running deployment and change it."""
