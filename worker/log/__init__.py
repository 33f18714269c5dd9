"""The event log of running responses: numbered, journalled, published, flushed."""
