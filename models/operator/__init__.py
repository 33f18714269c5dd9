"""What operators are shown of responses and processes, and what they may request, for the command
line and the console. Nothing here reads the database."""
