"""Recognize names of secrets."""

import re
from functools import lru_cache

MAX_CACHED_LENGTH = 64  # longer names aren't cached
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset(
    {
        "apikey",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "passcode",
        "passphrase",
        "passwd",
        "password",
        "pwd",
        "secret",
        "secrets",
    }
)
_KEY_KINDS = frozenset(
    {
        "access",
        "account",
        "api",
        "auth",
        "encryption",
        "master",
        "private",
        "secret",
        "service",
        "shared",
        "signing",
    }
)
# Words that mark a token as a count or a position, not a secret.
_HARMLESS_TOKENS = frozenset(
    {"cancel", "continuation", "cursor", "max", "next", "page", "progress", "sync", "total"}
)
# Last words of names that describe a secret: `authorization_endpoint`, `password_policy`.
_METADATA_WORDS = frozenset(
    {
        "count",
        "endpoint",
        "expires",
        "field",
        "id",
        "ids",
        "in",
        "length",
        "name",
        "names",
        "path",
        "policy",
        "required",
        "supported",
        "type",
        "uri",
        "url",
        "version",
    }
)


def is_secret_name(key: str) -> bool:
    return is_short_secret_name(key) if len(key) <= MAX_CACHED_LENGTH else _has_secret_words(key)


@lru_cache(maxsize=4096)
def is_short_secret_name(key: str) -> bool:
    """Return whether a key of at most `MAX_CACHED_LENGTH` characters is the name of a secret."""
    return _has_secret_words(key)


def _has_secret_words(key: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(key)]
    if not words or words[-1] in _METADATA_WORDS:
        return False
    if _SECRET_WORDS.intersection(words) or "".join(words) in _SECRET_WORDS:
        return True
    if words[-1] == "token":
        return not _HARMLESS_TOKENS.intersection(words)
    return words[-1] in {"key", "keys"} and bool(_KEY_KINDS.intersection(words[:-1]))
