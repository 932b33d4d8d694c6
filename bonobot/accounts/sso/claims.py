"""What an identity provider's claims say about a user. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from bonobot.core.text.untrusted_text import make_visible

MAX_NAME_LENGTH = 150
MAX_EMAIL_LENGTH = 254


@dataclass(frozen=True, slots=True)
class ProviderUser:
    """A user as the provider describes them; `email_verified` is None if it doesn't say.

    `logout_url` ends the session at the provider; empty if unsupported.
    """

    subject: str
    email: str
    email_verified: bool | None
    first_name: str
    last_name: str
    claims: Mapping[str, Any]
    logout_url: str = ""


def build_provider_user(claims: Mapping[str, Any]) -> ProviderUser:
    """Return the user whom verified claims describe."""
    email = claims.get("email")
    first, last = claims.get("given_name"), claims.get("family_name")
    if not first and not last and isinstance(claims.get("name"), str):
        first, _, last = claims["name"].partition(" ")
    email_verified = claims.get("email_verified")
    return ProviderUser(
        subject=str(claims["sub"]),
        email=email.strip().lower() if is_plain_text(email, MAX_EMAIL_LENGTH) else "",
        email_verified=None if email_verified is None else email_verified is True,
        first_name=_clean_name(first),
        last_name=_clean_name(last),
        claims=claims,
    )


def _clean_name(text: Any) -> str:
    return make_visible(text, MAX_NAME_LENGTH) if isinstance(text, str) else ""


def is_plain_text(value: Any, max_length: int) -> TypeGuard[str]:
    """Return whether a claim is text without control characters that isn't too long."""
    return isinstance(value, str) and 0 < len(value) <= max_length and value.isprintable()
