"""The run of one claimed response: its turns, its tool calls, its ending."""
