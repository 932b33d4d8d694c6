"""Server slugs, tool names, name patterns (pure).

A tool is identified by its server and the server's own name for it. The name for models is built
from both once, stored and looked up; it is never parsed.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput

Style = Literal["single", "double"]
STYLES: tuple[Style, ...] = ("single", "double")

MAX_TOOL_NAME_LENGTH = 64
MAX_SLUG_LENGTH = 40
MAX_SERVER_NAME_LENGTH = 255
EVERY_SERVER = "*"
DEFAULT_SUFFIX = ":default"

_REPLACED = {"single": re.compile(r"[^A-Za-z0-9_]"), "double": re.compile(r"[^A-Za-z0-9_-]")}
_SEPARATORS = re.compile(r"[^a-z0-9_]+")
_GLOB = re.compile(r"[*?\[]")
_SUFFIX_LENGTH = 8
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


@dataclass(frozen=True, slots=True)
class RuleTarget:
    """What a rule applies to: tools of servers, built-in tools, or both.

    `server` is a slug, `*` for every server, or empty for none; `pattern` is a glob for the own
    names, or empty for the server's default; `builtin` includes built-in tools.
    """

    server: str
    pattern: str
    builtin: bool = False


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
        return f"server-{_hash_parts(name)}"
    if len(slug) <= MAX_SLUG_LENGTH:
        return slug
    return f"{slug[: MAX_SLUG_LENGTH - _SUFFIX_LENGTH - 1].rstrip('-_')}-{_hash_parts(slug)}"


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


def build_tool_name(
    server_slug: str,
    own_name: str,
    style: Style = "single",
    taken_names: Collection[str] = frozenset(),
) -> str:
    """Return a tool's name for models: `mcp_{server}_{tool}`, or with double underscores.

    Always 1 to 64 of `[A-Za-z0-9_-]` and not in `taken_names`; clashes and cuts end in a digest.
    """
    separator = "_" if style == "single" else "__"
    full_name = f"mcp{separator}{_fold(server_slug, style)}{separator}{_fold(own_name, style)}"
    name, attempt = full_name, 0
    while len(name) > MAX_TOOL_NAME_LENGTH or name in taken_names:
        suffix = _hash_parts(server_slug, own_name, *([str(attempt)] if attempt else []))
        name = f"{full_name[: MAX_TOOL_NAME_LENGTH - _SUFFIX_LENGTH - 1]}_{suffix}"
        attempt += 1
    return name


def has_style(name: str, style: Style) -> bool:
    """Return whether a tool's name for models is of this style; slugs never start with `_`."""
    return name.startswith("mcp__") == (style == "double")


def build_tool_names(
    tools: Sequence[tuple[str, str]], style: Style, taken_names: Collection[str] = frozenset()
) -> list[str]:
    """Return the names of tools, each a server's slug and an own name, in one style.

    The order doesn't matter: tools whose names would be equal all get a digest.
    """
    plain_names = [build_tool_name(*tool, style) for tool in tools]
    counts, used_names = Counter(plain_names), {*taken_names, *plain_names}
    names = []
    for tool, plain_name in zip(tools, plain_names, strict=True):
        name = plain_name
        if counts[plain_name] > 1 or plain_name in taken_names:
            name = build_tool_name(*tool, style, used_names)
            used_names.add(name)
        names.append(name)
    return names


def build_tool_aliases(tools: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return alias → name: the names of the same tools in the other style.

    `tools` maps each tool's name to its server's slug and own name.
    """
    aliases: dict[str, str] = {}
    for style in STYLES:
        names = [name for name in tools if not has_style(name, style)]
        other_names = build_tool_names([tools[name] for name in names], style, tools.keys())
        aliases |= dict(zip(other_names, names, strict=True))
    return aliases


def matches_tool_name(pattern: str, own_name: str) -> bool:
    """Return whether a rule's pattern matches this tool, by its own or its folded name."""
    return fnmatchcase(own_name, pattern) or fnmatchcase(fold_own_name(own_name), pattern)


def fold_own_name(own_name: str) -> str:
    """Return a tool's own name as it appears in the name for models."""
    return _fold(own_name, "single")


def is_exact_pattern(pattern: str) -> bool:
    """Return whether a rule's pattern matches only one name."""
    return _GLOB.search(pattern) is None


def build_rule_name(server_slug: str, pattern: str, style: Style) -> str:
    """Return how a rule for a server's tools is written, such as `mcp_github_get_*`.

    Without a pattern it is the server's default, such as `mcp_github:default`.
    """
    separator = "_" if style == "single" else "__"
    name = f"mcp{separator}{_fold(server_slug, style)}"
    return f"{name}{separator}{pattern}" if pattern else f"{name}{DEFAULT_SUFFIX}"


def parse_rule_target(
    pattern: str,
    servers: Iterable[str],
    known_servers: Mapping[str, tuple[str, str]] | None = None,
) -> RuleTarget:
    """Return the target of a pattern (`mcp_github_*`, `mcp__github__create-issue`, `clock`).

    `mcp_github:default` is the default of a server.

    `servers` are the existing slugs; `known_servers` maps stored tool names to (slug, own name), to
    resolve names with a digest. The longest slug wins. Raises `InvalidInput` (`rule_empty`,
    `rule_ambiguous`, `rule_unknown_server`) with the choices.
    """
    pattern = pattern.strip()
    if not pattern:
        raise InvalidInput("The rule doesn't specify a tool.", code="rule_empty", field="pattern")
    if known_servers and pattern in known_servers:
        slug, own_name = known_servers[pattern]
        return RuleTarget(slug, re.sub(r"([*?\[])", r"[\1]", own_name))
    if pattern == "*":
        return RuleTarget(EVERY_SERVER, "*", builtin=True)
    if pattern in ("mcp_*", "mcp__*"):
        return RuleTarget(EVERY_SERVER, "*")
    if not pattern.startswith("mcp_"):
        return _parse_builtin_target(pattern)
    return _parse_server_target(pattern, sorted(set(servers)))


def _parse_builtin_target(pattern: str) -> RuleTarget:
    # A glob that also matches `mcp_…` would match more than it seems to.
    head = _GLOB.split(pattern, maxsplit=1)[0]
    if head != pattern and "mcp_".startswith(head):
        raise InvalidInput(
            format_message(
                "`{pattern}` could match built-in tools and tools of any server.", pattern=pattern
            ),
            code="rule_ambiguous",
            field="pattern",
            remedy="Start with the name of the built-in tool, or with `mcp_` and a server.",
        )
    return RuleTarget("", pattern, builtin=True)


def _parse_server_target(pattern: str, slugs: list[str]) -> RuleTarget:
    style: Style = "double" if pattern.startswith("mcp__") else "single"
    separator = "__" if style == "double" else "_"
    remainder = pattern.removeprefix(f"mcp{separator}")
    if remainder.endswith(DEFAULT_SUFFIX):
        name = remainder.removesuffix(DEFAULT_SUFFIX)
        named_slugs = [slug for slug in slugs if name in (slug, _fold(slug, style))]
        if len(named_slugs) == 1:
            return RuleTarget(named_slugs[0], "")
        raise _build_server_error(pattern, separator, named_slugs, slugs)
    folded_name = (
        re.sub(r"[^A-Za-z0-9_*?\[\]!]", "_", remainder) if style == "single" else remainder
    )
    matching = {slug for slug in slugs if folded_name.startswith(_fold(slug, style) + separator)}
    longest = max((len(slug) for slug in matching), default=0)
    best = sorted(slug for slug in matching if len(slug) == longest)
    if len(best) == 1:
        return RuleTarget(best[0], remainder[longest + len(separator) :] or "*")
    head = _GLOB.split(folded_name, maxsplit=1)[0]
    candidates = best or [slug for slug in slugs if _fold(slug, style).startswith(head)]
    if not best and len(candidates) == 1 and folded_name == f"{head}*":
        return RuleTarget(candidates[0], "*")
    raise _build_server_error(
        pattern, separator, candidates if head != folded_name or best else [], slugs
    )


def _build_server_error(
    pattern: str, separator: str, candidates: list[str], slugs: list[str]
) -> InvalidInput:
    if candidates:
        style: Style = "double" if separator == "__" else "single"
        choices = ", ".join(
            f"`mcp{separator}{_fold(slug, style)}{separator}*`" for slug in candidates[:10]
        )
        return InvalidInput(
            format_message("`{pattern}` could match more than one server.", pattern=pattern),
            code="rule_ambiguous",
            field="pattern",
            remedy=format_message(
                "Create one rule per server, such as {choices}.", choices=choices
            ),
            extra={"choices": candidates},
        )
    slug_list = ", ".join(f"`{slug}`" for slug in slugs[:10]) or "not set up"
    return InvalidInput(
        format_message("`{pattern}` refers to a server that doesn't exist.", pattern=pattern),
        code="rule_unknown_server",
        field="pattern",
        remedy=format_message(
            "Start with `mcp{joint}`, a server and `{joint}`. Servers: {listed}.",
            joint=separator,
            listed=slug_list,
        ),
        extra={"choices": slugs},
    )


def _is_readable(name: str) -> bool:
    from mcp_servers.scanning.hidden_text import find_hidden_runs

    return (
        not any(ch in "\t\n\r\u2028\u2029" for ch in name)
        and next(find_hidden_runs(name), None) is None
    )


def _fold(name: str, style: Style) -> str:
    return _REPLACED[style].sub("_", name)


def _hash_parts(*parts: str) -> str:
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:_SUFFIX_LENGTH]


@lru_cache(maxsize=16_384)  # an import compares each name with all existing ones
def _build_comparison_forms(name: str) -> frozenset[str]:
    """Return the forms that must differ between servers: slug and appearance."""
    look = unicodedata.normalize("NFKC", name).translate(_LATIN_TWINS).casefold()
    if look.isascii():
        look = _fold(slugify(look), "single")
        for first_form, other_name in _ASCII_TWINS:
            look = look.replace(first_form, other_name)
    return frozenset((f"slug {_fold(slugify(name), 'single')}", f"look {look}"))


def _find_alphabet(ch: str) -> str:
    first = unicodedata.name(ch, "").partition(" ")[0]
    return first.capitalize() if first in _CONFUSABLE_ALPHABETS else ""
