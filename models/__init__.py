"""What web and workers share: settings, statements, ownership, and the API's own types."""
