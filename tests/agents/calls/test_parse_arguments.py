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
