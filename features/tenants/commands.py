"""The commands for projects, their keys and their usage."""

from features.tenants import key_commands, project_commands, usage_commands

COMMANDS = (
    ("projects", project_commands.app),
    ("keys", key_commands.app),
    (None, usage_commands.app),
)
"""The name of a group of commands, or None, and the commands."""
