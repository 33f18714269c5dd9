"""`/v1/messages`: Anthropic's Messages API over the same responses (docs/messages.md)."""
