"""One claimed response: its turns, its tools, its ending."""
