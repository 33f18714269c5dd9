"""What an operator does to responses and processes, with secrets, and to see what was done."""

from features.operator import audit_commands, process_commands, response_commands, secret_commands

COMMANDS = (
    ("responses", response_commands.app),
    ("secrets", secret_commands.app),
    ("audit", audit_commands.app),
    (None, process_commands.app),
)
"""The name of a group of commands, or None, and the commands."""
