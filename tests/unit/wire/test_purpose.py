"""The purpose of a response in its stored parameters."""

from models.wire.purpose import (
    Purpose,
    StoredParameters,
    forward_parameters,
    split_stored_parameters,
    stored_parameters,
)


def test_the_stored_form_of_a_count_is_fixed() -> None:
    """Two releases run side by side in an upgrade."""
    stored = {"truncation": "auto", "count_input_tokens": True}
    assert split_stored_parameters(stored) == StoredParameters(
        {"truncation": "auto"}, Purpose.COUNT
    )
    assert stored_parameters({"truncation": "auto"}, Purpose.COUNT) == stored


def test_parameters_of_an_answer_are_stored_as_they_are() -> None:
    parameters = {"temperature": 0.5}
    assert stored_parameters(parameters, Purpose.ANSWER) == parameters
    assert split_stored_parameters(parameters) == StoredParameters(parameters, Purpose.ANSWER)


def test_a_forwarded_request_has_a_path_and_no_parameters_of_a_response() -> None:
    stored = forward_parameters("/embeddings")
    assert split_stored_parameters(stored) == StoredParameters({}, Purpose.FORWARD, "/embeddings")
