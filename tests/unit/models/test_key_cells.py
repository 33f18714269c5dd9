"""Which cell a key names, and which of its characters may be shown."""

import pytest

from models.keys import KEY_PREFIX_LENGTH, cell_of_key, key_prefix, new_key


@pytest.mark.parametrize("cell", ["", "a", "eu1", "a2345678901b"])
def test_a_key_names_its_cell(cell: str) -> None:
    key = new_key(cell)
    assert cell_of_key(key) == cell
    shown = key_prefix(key)
    assert key.startswith(shown)
    assert len(shown) == KEY_PREFIX_LENGTH + (len(cell) + 1 if cell else 0)


def test_an_older_key_that_looks_like_one_of_a_cell_names_none() -> None:
    """43 characters of base64 may begin with `a-`."""
    assert cell_of_key(f"bb-a-{'x' * 41}") == ""
    assert cell_of_key(f"bb-A-{'x' * 43}") == ""
    assert cell_of_key(f"bb-a234567890123-{'x' * 43}") == ""
