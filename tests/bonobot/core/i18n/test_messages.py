"""Messages: English text with its template and values."""

import copy
import json
import pickle

import pytest

from bonobot.core.i18n.messages import format_message, split_template


def test_a_message_is_its_english_sentence() -> None:
    message = format_message(
        "`{name}` has {size:,} bytes of {kind!r}.", name="a.txt", size=12_345, kind="text"
    )
    assert message == "`a.txt` has 12,345 bytes of 'text'."
    assert json.loads(json.dumps({"detail": message})) == {
        "detail": "`a.txt` has 12,345 bytes of 'text'."
    }
    assert message.placeholder_values == {
        "{name}": "a.txt",
        "{size:,}": "12,345",
        "{kind!r}": "'text'",
    }


def test_braces_in_a_value_arent_interpreted() -> None:
    assert format_message("Unknown `{name}`.", name="{0} {x!r}") == "Unknown `{0} {x!r}`."


@pytest.mark.parametrize(
    "copy_message",
    [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))],  # noqa: S301
)
def test_copies_and_pickles_of_a_message_are_plain_text(copy_message: object) -> None:
    copied = copy_message(format_message("Unknown `{name}`.", name="x"))  # type: ignore[operator]
    assert type(copied) is str
    assert copied == "Unknown `x`."


def test_a_message_within_a_message_stays_a_message() -> None:
    inner = format_message("it is empty")
    assert (
        format_message("Document can't be read: {why}.", why=inner).placeholder_values["{why}"]
        is inner
    )


def test_a_text_without_named_placeholders_isnt_a_template() -> None:
    with pytest.raises(ValueError, match="valid placeholder name"):
        list(split_template('Write an object, such as {"a": 1}.'))
