"""Every SQL statement, one file a subject."""
