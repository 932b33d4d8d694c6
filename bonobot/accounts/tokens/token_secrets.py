"""The texts of tokens and of links: keys, secrets, and their digests with peppers.

Peppers are numbered, so that a new one can be added while tokens of older ones keep working.
"""

import hmac
import secrets

from django.conf import settings

from bonobot.accounts.models import Invitation, Token

ISSUED_PREFIX = "bnb"
GRANT_PREFIX = "bno"


def _compute_digest(pepper_id: int, secret: str) -> str:
    pepper = settings.BONOBOT_TOKEN_PEPPERS[pepper_id]
    return hmac.new(pepper.encode(), secret.encode(), "sha256").hexdigest()


def parse_token(text: str) -> tuple[str, str]:
    """Return the public key and secret of a token's text, or two blank strings."""
    prefix, _, secret_part = text.partition("_")
    key, _, secret = secret_part.partition("_")
    return (key, secret) if prefix in (ISSUED_PREFIX, GRANT_PREFIX) else ("", "")


def generate_token_key() -> str:
    return secrets.token_hex(6)


def get_newest_pepper() -> int:
    """Return the number of the pepper for new secrets."""
    return max(settings.BONOBOT_TOKEN_PEPPERS)


def hash_secret(secret: str) -> tuple[int, str]:
    """Return the pepper number and digest to store for a new secret."""
    return get_newest_pepper(), _compute_digest(get_newest_pepper(), secret)


def is_matching_secret(token: Token | Invitation, secret: str) -> bool:
    """Return whether `secret` is the token's, or the invitation's, in constant time."""
    if token.pepper_id not in settings.BONOBOT_TOKEN_PEPPERS:
        return False
    return hmac.compare_digest(token.digest, _compute_digest(token.pepper_id, secret))
