"""What the front and the workers share: settings, rows, statements, ownership, and the API's own types."""
