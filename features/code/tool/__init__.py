"""The tools `code_interpreter` and `shell`, as workers run them."""
