"""Names of tools for models, and the patterns of rules (pure).

A tool is identified by its server and the server's own name for it. The name for models is built
from both once, stored and looked up; it is never parsed.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from mcp_servers.server_names import NAME_DIGEST_LENGTH, compute_name_digest

Style = Literal["single", "double"]
STYLES: tuple[Style, ...] = ("single", "double")

MAX_TOOL_NAME_LENGTH = 64
EVERY_SERVER = "*"
DEFAULT_SUFFIX = ":default"

_REPLACED = {"single": re.compile(r"[^A-Za-z0-9_]"), "double": re.compile(r"[^A-Za-z0-9_-]")}
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class RuleTarget:
    """What a rule applies to: tools of servers, built-in tools, or both.

    `server` is a slug, `*` for every server, or empty for none; `pattern` is a glob for the own
    names, or empty for the server's default; `builtin` includes built-in tools.
    """

    server: str
    pattern: str
    builtin: bool = False


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
        suffix = compute_name_digest(server_slug, own_name, *([str(attempt)] if attempt else []))
        name = f"{full_name[: MAX_TOOL_NAME_LENGTH - NAME_DIGEST_LENGTH - 1]}_{suffix}"
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


def _fold(name: str, style: Style) -> str:
    return _REPLACED[style].sub("_", name)
