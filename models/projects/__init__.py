"""What a project and its keys may do. Pure: rows are read elsewhere."""
