"""Requests that only want to know how many tokens they have (contract §1)."""

COUNT_INPUT_TOKENS = "count_input_tokens"
"""Among the parameters of a response that is never shown: nothing is asked of the model, its usage says what was counted and by whom."""

COUNTED_BY = "counted_by"
"""The field of that usage."""
