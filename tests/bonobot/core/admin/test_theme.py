"""Widgets of the admin: what a page shows of a secret."""

from bonobot.core.admin.theme import SecretInput
from bonobot.core.text.masked_values import MASK


def test_what_was_typed_is_never_shown_and_has_to_be_typed_again() -> None:
    page = SecretInput().render("key", "sk-typed")
    assert "sk-typed" not in page
    assert "required" in page


def test_a_stored_secret_is_shown_as_its_mask_and_may_stay() -> None:
    page = SecretInput().render("key", MASK)
    assert f'value="{MASK}"' in page
    assert "required" not in page


def test_nothing_is_shown_of_nothing() -> None:
    page = SecretInput().render("key", None)
    assert "value=" not in page
    assert "required" not in page
