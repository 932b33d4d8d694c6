"""Choose a tool for a message in words, and find its arguments there.

Enough for a demonstration without a network: only words and values that the message has are used,
and what isn't clear isn't called. Schemas are untrusted: what isn't understood is a plain text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zoneinfo import available_timezones

from agents.llm.interface import ToolSpec
from bonobot.core.process_cache import compute_once

MAX_TEXT = 2_000  # characters of a message that are read; longer ones have pasted text
MAX_DESCRIPTION = 400
MIN_COVERAGE = 0.5  # the share of the message's words that a tool must explain
DESCRIPTION_WEIGHT = 0.5  # of a word in a description; 1 in a name
MISSING_PENALTY = 0.25  # a tool whose arguments the message has is preferred

WORD = re.compile(r"[A-Za-z]+")
CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
STOP_WORDS = frozenset(
    WORD.findall(
        "a about all an and are at be by can could do does for from get give has have how i in is "
        "it its last let list me mcp my now of on or our please print run see shall should show "
        "tell that the their there these they this to tool up use want was we what when where "
        "which who will with would you your"
    )
)
# A tool whose name has such a verb is only called by a message that has it, too.
CHANGING_VERBS = frozenset(
    WORD.findall(
        "add apply cancel checkout commit create delete drop edit insert kill merge move post "
        "publish push put remove rename reset revoke send set stop submit update upload write"
    )
)
QUOTED = re.compile(r"\"([^\"\n]+)\"|“([^”\n]+)”|`([^`\n]+)`|(?<!\w)'([^'\n]+)'(?!\w)")
PATTERNS = {
    "url": re.compile(r"\bhttps?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]}]"),
    "time": re.compile(r"(?<![\w:.-])(?:[01]?\d|2[0-3]):[0-5]\d(?![\w:])"),
    "path": re.compile(r"(?<![\w:/.])(?:~|\.{1,2})?/[^\s\"'`,;<>|?*]*[\w/]"),
    "number": re.compile(r"(?<![\w.:/-])-?\d{1,15}(?:\.\d{1,15})?(?![\w:/]|\.\d)"),
}
PLACE = re.compile(r"[A-Z][a-z]+(?:[ _-][A-Z][a-z]+)*")
ZONE = re.compile(r"\b[A-Za-z_]+(?:/[A-Za-z0-9_+-]+){1,2}\b|\bUTC\b")
LEADING_WORDS = re.compile(r"(?:\s*\b(?:a|about|for|of|the|to)\b)*\s*[:,]?\s*", re.I)
# How the last word of a parameter's name says what its value is.
KIND_WORDS = {
    "timezone": {"timezone", "tz", "zone"},
    "url": {"url", "uri", "link", "website"},
    "time": {"time"},
    "path": {"path", "file", "filename", "folder", "directory", "dir"},
}
SAMPLES: Mapping[str, Any] = {
    "timezone": "Asia/Tokyo",
    "url": "https://example.com",
    "time": "14:30",
    "path": "/path",
    "number": 1,
    "boolean": True,
    "array": [],
    "object": {},
}

# The samples of these kinds are real. A path, a number, or a text such as an ID may not exist.
REAL_KINDS = frozenset({"timezone", "url", "time"})
SAMPLE_TEXT = "hello"  # for texts whose parameter's name ends in one of `FREE_TEXT_WORDS`
FREE_TEXT_WORDS = frozenset(
    {"content", "keyword", "message", "prompt", "q", "query", "question", "search", "text", "topic"}
)


@dataclass(frozen=True)
class ToolChoice:
    """A tool with its calls' arguments, or the names of the `missing` ones."""

    tool: ToolSpec
    arguments: tuple[dict[str, Any], ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class FoundValue:
    """A value in a text, and where it is."""

    kind: str
    value: Any
    start: int
    end: int


def choose_tools(text: str, tools: Sequence[ToolSpec], instructions: str = "") -> list[ToolChoice]:
    """Return the tool that a message asks for; several if it may be any of them, or none."""
    text = text[:MAX_TEXT]
    values = find_values(text)
    terms = _list_terms(text, values)
    ranked: list[tuple[float, ToolChoice]] = []
    for tool in tools:
        score = _calculate_score(terms, tool)
        if score >= MIN_COVERAGE and not _is_verb_missing(tool, terms):
            choice = fill_arguments(tool, text, instructions)
            ranked.append((score - MISSING_PENALTY * bool(choice.missing), choice))
    best = max((score for score, _choice in ranked), default=0.0)
    return [choice for score, choice in ranked if score == best]


def fill_arguments(tool: ToolSpec, text: str, instructions: str = "") -> ToolChoice:
    """Return a tool with the arguments that a message has.

    If one value fills its only parameter, other values of the same kind are calls, too. A path may
    come from the instructions.
    """
    text = text[:MAX_TEXT]
    unused = find_values(text)
    parameters = _list_parameters(tool)
    required = _list_required(tool, parameters)
    arguments: dict[str, Any] = {}
    for name in required:
        value = _take_value(name, parameters[name], text, unused, tool)
        if value is None and infer_kind(name, parameters[name]) == "path":
            paths = find_values(instructions[:MAX_TEXT], "path")
            value = paths[0].value if paths else None
        if value is not None:
            arguments[name] = value
    if counts := [name for name in parameters if _is_count(name, parameters[name], required)]:
        for value in [value for value in unused if value.kind == "number"][:1]:
            arguments[counts[0]] = value.value
    missing = tuple(name for name in required if name not in arguments)
    calls = [arguments]
    if len(required) == 1 and not missing and not list_changing_verbs(tool):
        kind = infer_kind(required[0], parameters[required[0]])
        others = (value.value for value in unused if value.kind == kind)
        calls += [arguments | {required[0]: value} for value in others if kind != "number"]
    return ToolChoice(tool, tuple(calls), missing)


def build_sample_arguments(tool: ToolSpec) -> dict[str, Any]:
    """Return an example of each required argument."""
    parameters = _list_parameters(tool)
    samples = {}
    for name in _list_required(tool, parameters):
        choices = _list_choices(parameters[name])
        kind = infer_kind(name, parameters[name])
        samples[name] = choices[0] if choices else SAMPLES.get(kind, "…")
    return samples


def build_real_arguments(tool: ToolSpec) -> dict[str, Any] | None:
    """Return a real value of each required argument; None if one has only a placeholder."""
    parameters = _list_parameters(tool)
    arguments = build_sample_arguments(tool)
    for name in arguments:
        kind = infer_kind(name, parameters[name])
        if kind == "text" and FREE_TEXT_WORDS.intersection(_split_words(name)[-1:]):
            arguments[name] = SAMPLE_TEXT
        elif kind not in REAL_KINDS and not _list_choices(parameters[name]):
            return None
    return arguments


def find_values(text: str, *kinds: str) -> list[FoundValue]:
    """Return the values in a text in order, each once; of some kinds only if they are given."""
    values = [
        FoundValue("quoted", next(filter(None, match.groups())), *match.span())
        for match in QUOTED.finditer(text)
    ]
    for kind, value, start, end in _iterate_typed_values(text):
        if not any(other.start < end and start < other.end for other in values):
            values.append(FoundValue(kind, value, start, end))
    chosen = (value for value in values if not kinds or value.kind in kinds)
    return sorted(chosen, key=lambda value: value.start)


def _iterate_typed_values(text: str) -> Iterator[tuple[str, Any, int, int]]:
    yield from (("url", match.group(), *match.span()) for match in PATTERNS["url"].finditer(text))
    for pattern in (ZONE, PLACE):
        for match in pattern.finditer(text):
            if zone := _list_zones().get(_normalize_place(match.group())):
                yield "timezone", zone, *match.span()
    for kind in ("time", "path", "number"):
        for match in PATTERNS[kind].finditer(text):
            value = match.group()
            yield kind, _parse_number(value) if kind == "number" else value, *match.span()


@compute_once
def _list_zones() -> dict[str, str]:
    """Return the time zones by name, and by the name of their city."""
    names = sorted(name for name in available_timezones() if "/" in name or name == "UTC")
    cities = {
        _normalize_place(name.rpartition("/")[2]): name for name in names if "Etc" not in name
    }
    return cities | {_normalize_place(name): name for name in names}


def _normalize_place(name: str) -> str:
    return name.replace("_", " ").replace("-", " ").lower()


def infer_kind(name: str, schema: Mapping[str, Any]) -> str:
    """Return the kind of a parameter's values: one of `SAMPLES`, or `text`."""
    declared = schema.get("type")
    if declared in ("integer", "number"):
        return "number"
    if declared in ("boolean", "array", "object"):
        return str(declared)
    last_words = _split_words(name)[-1:]
    for kind, words in KIND_WORDS.items():
        if words.intersection(last_words):
            return kind
    return "url" if schema.get("format") in ("uri", "url") else "text"


def _take_value(
    name: str, schema: Mapping[str, Any], text: str, unused: list[FoundValue], tool: ToolSpec
) -> Any:
    """Return the next value that fits a parameter, and remove it from `unused`; None without."""
    words = set(_split_words(text))
    if choices := _list_choices(schema):
        return next((choice for choice in choices if str(choice).lower() in words), None)
    kind = infer_kind(name, schema)
    expected_kind = "quoted" if kind == "text" else kind
    for found_value in unused:
        if found_value.kind == expected_kind:
            unused.remove(found_value)
            return found_value.value
    return _find_rest(text, tool) if kind == "text" else None


def _find_rest(text: str, tool: ToolSpec) -> str | None:
    """Return the text after the tool's last word in it: of `echo hello`, that is `hello`."""
    names = {_to_stem(word) for word in _split_words(_get_own_name(tool))}
    ends = [match.end() for match in WORD.finditer(text) if _to_stem(match.group()) in names]
    if not ends:
        return None
    rest = text[ends[0] :]
    skipped = LEADING_WORDS.match(rest)
    return rest[skipped.end() if skipped else 0 :].strip(" .!?\n") or None


def _calculate_score(terms: Sequence[str], tool: ToolSpec) -> float:
    """Return the share of the terms that a tool's name (or, less so, its description) has.

    A message that begins with a word of the name is a command, regardless of the rest.
    """
    names = {_to_stem(word) for word in _split_words(_get_own_name(tool))}
    if names.isdisjoint(terms):
        return 0.0
    described = {_to_stem(word) for word in _split_words(tool.description[:MAX_DESCRIPTION])}
    matched = sum(
        1.0 if term in names else DESCRIPTION_WEIGHT if term in described else 0.0 for term in terms
    )
    return max(matched / len(terms), MIN_COVERAGE if terms[0] in names else 0.0)


def _list_terms(text: str, values: Sequence[FoundValue]) -> list[str]:
    """Return the words of a message outside of its values, without those that say little.

    A time in a time zone without such words, as in "What is 14:30 UTC in Tokyo?", is to be
    converted.
    """
    for found_value in values:
        text = (
            text[: found_value.start]
            + " " * (found_value.end - found_value.start)
            + text[found_value.end :]
        )
    words = (word for word in _split_words(text) if word not in STOP_WORDS)
    terms = list(dict.fromkeys(_to_stem(word) for word in words))
    is_time = {"time", "timezone"} <= {found_value.kind for found_value in values}
    return ["convert", "time"] if is_time and not terms else terms


def list_changing_verbs(tool: ToolSpec) -> frozenset[str]:
    """Return the verbs in a tool's name that say that it changes something."""
    return CHANGING_VERBS.intersection(_split_words(_get_own_name(tool)))


def _is_verb_missing(tool: ToolSpec, terms: Sequence[str]) -> bool:
    return not {_to_stem(verb) for verb in list_changing_verbs(tool)}.issubset(terms)


def _get_own_name(tool: ToolSpec) -> str:
    """Return a tool's name without the prefix of MCP tools."""
    return tool.name.removeprefix("mcp_")


def _list_parameters(tool: ToolSpec) -> dict[str, Mapping[str, Any]]:
    properties = tool.parameters.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in properties.items()}


def _list_required(tool: ToolSpec, parameters: Mapping[str, object]) -> list[str]:
    required = tool.parameters.get("required")
    names = required if isinstance(required, list) else []
    return [name for name in parameters if name in names]


def _list_choices(schema: Mapping[str, Any]) -> list[Any]:
    choices = schema.get("enum")
    return choices if isinstance(choices, list) else []


def _is_count(name: str, schema: Mapping[str, Any], required: Sequence[str]) -> bool:
    """Return whether an optional parameter limits how much is returned."""
    limits = {"count", "limit", "max", "n", "number"}
    is_number = infer_kind(name, schema) == "number"
    return is_number and name not in required and not limits.isdisjoint(_split_words(name))


def _split_words(text: str) -> list[str]:
    """Return the words of a text or identifier in lower case: `getCurrent_time` has three."""
    return [word.lower() for word in WORD.findall(CAMEL_CASE.sub(" ", text.replace("'", "")))]


def _to_stem(word: str) -> str:
    word = word.lower()
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _parse_number(text: str) -> int | float:
    return float(text) if "." in text else int(text)
