"""The event logs of running responses: numbered, journaled, published, flushed."""
