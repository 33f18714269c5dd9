"""What the admin API shows and changes, in OpenAI's shapes (docs/projects.md)."""
