"""The wire's own types: requests, items, events, the Response object, and the fold from events to a snapshot. Pure."""
