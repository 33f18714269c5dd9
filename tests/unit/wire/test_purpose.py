"""The purpose of a response in its stored parameters."""

from models.wire.purpose import Purpose, split_stored_parameters, stored_parameters


def test_a_count_of_another_release_is_counted_and_not_answered() -> None:
    """The stored form is the same in the release before: both run side by side in an upgrade."""
    stored = {"truncation": "auto", "count_input_tokens": True}
    assert split_stored_parameters(stored) == ({"truncation": "auto"}, Purpose.COUNT)
    assert stored_parameters({"truncation": "auto"}, Purpose.COUNT) == stored


def test_parameters_of_an_answer_are_stored_as_they_are() -> None:
    parameters = {"temperature": 0.5}
    assert stored_parameters(parameters, Purpose.ANSWER) == parameters
    assert split_stored_parameters(parameters) == (parameters, Purpose.ANSWER)
