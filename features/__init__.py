"""What is beside creating, running and reading responses: one folder a subject."""
