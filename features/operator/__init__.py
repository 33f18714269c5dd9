"""What operators do to responses and processes (docs/operations.md), and what they are shown of
them: for the command line and the console."""
