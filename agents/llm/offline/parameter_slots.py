"""What the offline model knows about a tool's parameters: their kinds, choices and defaults."""

import re
from dataclasses import dataclass
from typing import Any, TypeGuard

from agents.llm.offline.text_analysis import (
    split_word_list,
    split_words,
)

MAX_SLOTS = 60
MAX_REFERENCES = 8  # of $ref

UNSET: Any = object()

FORMATS = {
    "uri": "url", "url": "url", "uri-reference": "url", "email": "email", "uuid": "uuid",
    "date": "date", "date-time": "datetime", "time": "time",
}  # fmt: skip
PATH_WORDS = split_word_list(
    "path paths file files filename filepath dir directory folder workspace cwd"
)
TEXT_WORDS = split_word_list(
    "query q search text message msg prompt question content contents body input title subject "
    "comment note term terms keyword keywords phrase sentence words thought summary topic"
)
PLACE_WORDS = split_word_list("city location place address country region town")
KIND_WORDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("timezone", split_word_list("timezone tz timezones zone")),
    ("url", split_word_list("url urls uri uris link href website webpage")),
    ("email", split_word_list("email emails mail")),
    ("revision", split_word_list("revision rev sha commit")),
    ("uuid", split_word_list("uuid guid")),
    ("datetime", split_word_list("datetime timestamp")),
    ("date", split_word_list("date day")),
    ("time", split_word_list("time")),
    ("path", PATH_WORDS),
    ("text", TEXT_WORDS),
    ("place", PLACE_WORDS),
)
KIND_HINTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("timezone", re.compile(r"\bIANA\b|\btime ?zone", re.I)),
    ("url", re.compile(r"\bURLs?\b")),
    ("email", re.compile(r"\be-?mail address", re.I)),
    ("date", re.compile(r"\bYYYY-MM-DD\b(?!T)", re.I)),
    ("time", re.compile(r"\bHH:MM\b", re.I)),
    ("path", re.compile(r"\b(?:absolute|relative|file|directory) path\b|\bpath (?:to|of)\b", re.I)),
)
SOURCE_WORDS = split_word_list("source src from origin base start old input left")
TARGET_WORDS = split_word_list("target to dest destination end new output right")
DESCRIBED_DEFAULT = re.compile(
    r"(?:\bdefaults?(?: is| to|:)?|\buse)\s+['\"`]([^'\"`\n]{1,200})['\"`]", re.I
)
QUOTED_CHOICE = re.compile(r"['\"`]([\w.-]{1,40})['\"`]")
CHOICE_HINT = re.compile(
    r"\b(?:whether|one of|either|options?|allowed|must be|can be|valid)\b", re.I
)
EXAMPLE_HINT = re.compile(r"\be\.g\b|\bexamples?\b|\bsuch as\b|\blike\b", re.I)


@dataclass(frozen=True)
class ParameterSlot:
    """A parameter: its name, the kind of its value, and whether it is required."""

    name: str
    kind: str
    required: bool
    words: tuple[str, ...]
    role: str = ""  # "source" or "target", for two slots of the same kind
    choices: tuple[Any, ...] = ()
    default: Any = UNSET
    item: "ParameterSlot | None" = None  # the items of an array
    is_integer: bool = False  # an integer
    choices_from_description: bool = False  # choices come only from the description

    @property
    def has_typed_form(self) -> bool:
        """Whether its values are recognized by their form."""
        return self.kind not in ("text", "word", "place", "object", "boolean")


def parse_slots(parameters: dict[str, Any]) -> tuple[ParameterSlot, ...]:
    """Return the slots of a tool's parameters, in the schema's order."""
    properties = parameters.get("properties")
    required = parameters.get("required")
    if not isinstance(properties, dict):
        return ()
    names = {name for name in required if isinstance(name, str)} if _is_list(required) else set()
    kept_names = sorted(properties, key=lambda name: name not in names)[:MAX_SLOTS]
    return tuple(
        _parse_slot(name, _resolve_schema(schema, parameters), name in names, parameters)
        for name, schema in properties.items()
        if name in kept_names
    )


def _parse_slot(
    name: str, schema: dict[str, Any], required: bool, root: dict[str, Any], depth: int = 0
) -> ParameterSlot:
    description = str(schema.get("description") or "")
    name_words = tuple(split_words(name))
    choices, from_description = _parse_choices(schema, description)
    kind = (
        _infer_kind(schema, name_words, description)
        if not choices or from_description
        else "choice"
    )
    item = None
    if kind == "array" and depth < MAX_REFERENCES:
        inner = _resolve_schema(schema.get("items") or {}, root)
        item = _parse_slot(name, inner, required, root, depth + 1)
    return ParameterSlot(
        name=name,
        kind="choice" if from_description and kind == "word" else kind,
        required=required,
        words=name_words,
        role="source"
        if SOURCE_WORDS & set(name_words)
        else "target"
        if TARGET_WORDS & set(name_words)
        else "",
        choices=choices,
        default=_parse_default(schema, description),
        item=item,
        is_integer=schema.get("type") == "integer",
        choices_from_description=from_description,
    )


def _infer_kind(schema: dict[str, Any], name_words: tuple[str, ...], description: str) -> str:
    match schema.get("type"):
        case "boolean" | "array" | "object" as kind:
            return str(kind)
        case "integer" | "number":
            return "number"
    if (format_name := str(schema.get("format"))) in FORMATS:
        return FORMATS[format_name]
    last_word = set(name_words[-1:])
    for kind, names in KIND_WORDS:
        if last_word & names:
            return kind
    if PATH_WORDS & set(name_words):
        return "path"
    return next((kind for kind, hint in KIND_HINTS if hint.search(description)), "word")


def _parse_choices(schema: dict[str, Any], description: str) -> tuple[tuple[Any, ...], bool]:
    """Return the allowed values, and whether they come only from the description."""
    if "const" in schema:
        return (schema["const"],), False
    if _is_list(schema.get("enum")):
        return tuple(value for value in schema["enum"] if value is not None), False
    if (
        schema.get("type", "string") == "string"
        and CHOICE_HINT.search(description)
        and not EXAMPLE_HINT.search(description)
    ):
        quoted_choices = tuple(dict.fromkeys(QUOTED_CHOICE.findall(description)))
        if len(quoted_choices) > 1:
            return quoted_choices, True
    return (), False


def _parse_default(schema: dict[str, Any], description: str) -> Any:
    if schema.get("default") is not None:
        return schema["default"]
    match = (
        DESCRIBED_DEFAULT.search(description) if schema.get("type", "string") == "string" else None
    )
    return match.group(1) if match else UNSET


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _resolve_schema(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without references; of alternatives, take the first that isn't null."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict):
            return {}
        if "$ref" in schema:
            schema = _find_referenced_schema(str(schema["$ref"]), root)
            continue
        options = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(options, list):
            break
        siblings = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        first = next(
            (
                option
                for option in options
                if isinstance(option, dict) and option.get("type") != "null"
            ),
            {},
        )
        schema = {**_resolve_reference(first, root), **siblings}
    if isinstance(schema.get("type"), list):
        kinds = [kind for kind in schema["type"] if kind != "null"]
        schema = {**schema, "type": kinds[0] if kinds else "string"}
    return schema


def _resolve_reference(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    return _find_referenced_schema(str(schema["$ref"]), root) if "$ref" in schema else schema


def _find_referenced_schema(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    node: Any = root
    for step in reference.removeprefix("#/").split("/"):
        node = node.get(step) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


Span = tuple[int, int]
