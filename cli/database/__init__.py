"""Commands for the database: its schema, and the health check that reads it."""
