"""Names and slugs of servers: suggested ones, and those that look like others (pure)."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput

MAX_SLUG_LENGTH = 40
MAX_SERVER_NAME_LENGTH = 255
_SEPARATORS = re.compile(r"[^a-z0-9_]+")
NAME_DIGEST_LENGTH = 8
_CONFUSABLE_ALPHABETS = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"})
# Latin letters and the Cyrillic and Greek ones that look like them (from Unicode's confusables).
_TWINS = {
    "a": "\u0430\u0410\u03b1\u0391",
    "b": "\u0432\u0412\u0392",
    "c": "\u0441\u0421",
    "d": "\u0501",
    "e": "\u0435\u0415\u03b5\u0395",
    "h": "\u04bb\u043d\u041d\u0397",
    "i": "\u0456\u0406\u03b9\u0399",
    "j": "\u0458\u0408",
    "k": "\u043a\u041a\u03ba\u039a",
    "m": "\u043c\u041c\u039c",
    "n": "\u039d",
    "o": "\u043e\u041e\u03bf\u039f",
    "p": "\u0440\u0420\u03c1\u03a1",
    "q": "\u051b",
    "s": "\u0455\u0405",
    "t": "\u0442\u0422\u03c4\u03a4",
    "u": "\u03c5",
    "v": "\u03bd",
    "w": "\u051d\u03c9\u051c",
    "x": "\u0445\u0425\u03c7\u03a7",
    "y": "\u0443\u0423\u03b3\u03a5",
    "z": "\u0396",
}
_LATIN_TWINS = {ord(twin): latin for latin, twins in _TWINS.items() for twin in twins}
# Other look-alikes; applied to both names, so the direction does not matter.
_ASCII_TWINS = (("0", "o"), ("1", "l"), ("rn", "m"), ("vv", "w"))

# Parts of host names that say nothing about the service.
COMMON_LABELS = frozenset({"mcp", "www", "api", "server", "co", "com", "org", "net", "gov", "ac"})
DEFAULT_NAME = "server"


def slugify(name: str) -> str:
    """Return the slug of a server's name: ASCII, lower case, `-` and `_` inside, at most 40 long.

    A name without ASCII letters or digits gets a slug from its digest; an empty one stays "".
    """
    if not name.strip():
        return ""
    folded_name = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", name)).casefold()
    ascii_only = "".join(ch for ch in folded_name if not unicodedata.combining(ch))
    slug = re.sub(r"([_-])[_-]+", r"\1", _SEPARATORS.sub("-", ascii_only)).strip("-_")
    if not slug:
        return f"server-{compute_name_digest(name)}"
    if len(slug) <= MAX_SLUG_LENGTH:
        return slug
    start = slug[: MAX_SLUG_LENGTH - NAME_DIGEST_LENGTH - 1].rstrip("-_")
    return f"{start}-{compute_name_digest(slug)}"


def check_name(name: str, other_names: Iterable[str] = ()) -> None:
    """Check that a server name is readable, of one alphabet and unlike all of `other_names`.

    Raises `InvalidInput` (`missing_name`, `bad_name`, `confusable_name`), `Conflict` (`name_taken`)
    """
    if not name.strip():
        raise InvalidInput(
            "The server has no name.", code="missing_name", field="name", remedy="Enter a name."
        )
    if len(name) > MAX_SERVER_NAME_LENGTH or not _is_readable(name):
        raise InvalidInput(
            format_message(
                "The name is longer than {longest_server_name} characters or contains "
                "invisible characters.",
                longest_server_name=MAX_SERVER_NAME_LENGTH,
            ),
            code="bad_name",
            field="name",
            remedy="Use a short name of visible characters.",
        )
    if mixed := find_mixed_alphabets(name):
        raise InvalidInput(
            format_message(
                "The name mixes letters from {mixed} within one word.", mixed=" and ".join(mixed)
            ),
            code="confusable_name",
            field="name",
            remedy="Write each word in one alphabet. Look-alike letters can disguise a name.",
        )
    if (other_name := find_collision(name, other_names)) is not None:
        raise Conflict(
            format_message("The name is identical or too similar to `{other}`.", other=other_name),
            code="name_taken",
            field="name",
            remedy="Choose a name that can't be confused with another server's name.",
        )


def find_collision(name: str, other_names: Iterable[str]) -> str | None:
    """Return the first of `other_names` (names, slugs) that `name` equals or looks like, if any."""
    forms = _build_comparison_forms(name)
    return next(
        (other_name for other_name in other_names if forms & _build_comparison_forms(other_name)),
        None,
    )


def find_mixed_alphabets(name: str) -> tuple[str, ...]:
    """Return the confusable alphabets that one word of `name` mixes."""
    for word in re.split(r"[\W\d_]+", name):
        alphabets = {alphabet for ch in word if (alphabet := _find_alphabet(ch))}
        if len(alphabets) > 1:
            return tuple(sorted(alphabets))
    return ()


def _is_readable(name: str) -> bool:
    from mcp_servers.scanning.hidden_text import find_hidden_runs

    return (
        not any(ch in "\t\n\r\u2028\u2029" for ch in name)
        and next(find_hidden_runs(name), None) is None
    )


def compute_name_digest(*parts: str) -> str:
    """Return a short digest that makes a name unique."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:NAME_DIGEST_LENGTH]


@lru_cache(maxsize=16_384)  # an import compares each name with all existing ones
def _build_comparison_forms(name: str) -> frozenset[str]:
    """Return the forms that must differ between servers: slug and appearance."""
    look = unicodedata.normalize("NFKC", name).translate(_LATIN_TWINS).casefold()
    if look.isascii():
        look = slugify(look).replace("-", "_")
        for first_form, other_name in _ASCII_TWINS:
            look = look.replace(first_form, other_name)
    slug = slugify(name).replace("-", "_")
    return frozenset((f"slug {slug}", f"look {look}"))


def _find_alphabet(ch: str) -> str:
    first = unicodedata.name(ch, "").partition(" ")[0]
    return first.capitalize() if first in _CONFUSABLE_ALPHABETS else ""


def suggest_server_name(url: str, declared_name: str = "") -> str:
    """Return a name: `sentry` for mcp.sentry.dev; for an address, the server's own name."""
    host = urlsplit(url).hostname or ""
    labels = [label for label in host.split(".")[:-1] if label not in COMMON_LABELS]
    is_address = ":" in host or host.replace(".", "").isdigit()
    if labels and not is_address:
        return slugify(labels[-1])
    return slugify(declared_name)[:40].strip("-") or DEFAULT_NAME
