"""Secret inputs of the admin."""

from bonobot.core.admin.theme import SecretInput
from bonobot.core.text.masked_values import MASK


def test_an_entered_secret_is_never_shown_again_and_must_be_reentered() -> None:
    page = SecretInput().render("key", "sk-typed")
    assert "sk-typed" not in page
    assert "required" in page


def test_a_stored_secret_is_shown_masked_and_can_be_kept() -> None:
    page = SecretInput().render("key", MASK)
    assert f'value="{MASK}"' in page
    assert "required" not in page


def test_an_empty_secret_shows_nothing() -> None:
    page = SecretInput().render("key", None)
    assert "value=" not in page
    assert "required" not in page
