"""Responses: creating, checking, continuing, storing and showing them."""
