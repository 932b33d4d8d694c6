"""Arguments of calls that people write as JSON."""

import pytest

from agents.calls.parse_arguments import parse_arguments
from bonobot.core.problems import InvalidInput


def test_an_object_is_returned() -> None:
    assert parse_arguments('{"city": "Berlin", "days": 2}') == {"city": "Berlin", "days": 2}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "broken_json"),
        ("{", "broken_json"),
        ("[" * 100_000, "broken_json"),
        ("[1]", "invalid_arguments"),
        ("null", "invalid_arguments"),
        ('"text"', "invalid_arguments"),
    ],
)
def test_other_text_is_refused_with_a_code(text: str, code: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_arguments(text, field="ARGUMENTS", remedy="Quote them.")
    problem = error.value
    assert (problem.code, problem.field, problem.remedy) == (code, "ARGUMENTS", "Quote them.")


def test_invalid_json_is_reported_with_its_place() -> None:
    with pytest.raises(InvalidInput, match="aren't valid JSON: check line 1, column 10"):
        parse_arguments('{"city": }')
    with pytest.raises(InvalidInput, match="too many levels"):
        parse_arguments("[" * 100_000)
