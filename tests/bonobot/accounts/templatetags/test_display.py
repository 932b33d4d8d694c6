"""Template tags of the admin."""

from bonobot.accounts.templatetags.display import monogram


def test_a_monogram_has_the_first_letter_and_always_the_same_hue() -> None:
    first, again, other = monogram("(gitHub)"), monogram("(gitHub)"), monogram("Zendesk", "agent")
    assert first == again
    assert (first["letter"], first["kind"]) == ("G", "server")
    assert (other["letter"], other["kind"]) == ("Z", "agent")
    assert first["hue"] != other["hue"]
    assert monogram("…")["letter"] == "?"
