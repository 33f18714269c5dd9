"""The error that ends a command with one sentence."""


class CommandFailed(Exception):
    """A command cannot do its work. The message is one sentence for the operator."""


def database_failure(error: Exception) -> CommandFailed:
    """The sentence for a database that could not be reached or refused the connection."""
    return CommandFailed(f"the database did not answer: {' '.join(str(error).split())}")
