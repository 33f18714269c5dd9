"""One reader for each kind of file. Each is imported when a file of its kind is read."""
