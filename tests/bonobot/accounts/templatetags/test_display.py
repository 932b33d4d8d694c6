"""Template tags of the admin."""

from datetime import timedelta

import pytest
from django.utils import timezone

from bonobot.accounts.templatetags.display import age, maybe_json, monogram, outcome


def test_a_monogram_has_the_first_letter_and_always_the_same_hue() -> None:
    first, again, other = monogram("(gitHub)"), monogram("(gitHub)"), monogram("Zendesk", "agent")
    assert first == again
    assert (first["letter"], first["kind"]) == ("G", "server")
    assert (other["letter"], other["kind"]) == ("Z", "agent")
    assert first["hue"] != other["hue"]
    assert monogram("…")["letter"] == "?"


def test_an_outcome_has_an_icon_and_a_word() -> None:
    assert [outcome(state)["text"] for state in ("ok", "refused", "pending")] == [
        "Succeeded",
        "Denied",
        "Pending approval",
    ]
    assert outcome("ok")["icon"] == "check_circle"
    assert outcome("something new")["text"] == "Unknown"


def test_a_result_of_too_many_levels_is_shown_as_text() -> None:
    assert str(maybe_json("[" * 2_000)) == "[" * 2_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "now"), (240, "4 min"), (3 * 3600 + 5, "3 h"), (2 * 86_400 + 5, "2 d")],
)
def test_an_age_fits_a_narrow_column(seconds: int, text: str) -> None:
    assert age(timezone.now() - timedelta(seconds=seconds)) == text
