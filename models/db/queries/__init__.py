"""Every SQL statement with the type of its rows, one file for each subject."""
