"""The text of a file, read by a process of its own (docs/file-kinds.md).

`extraction.py` starts that process, `child.py` is its program. Nothing is imported here, so that
the process starts fast.
"""
