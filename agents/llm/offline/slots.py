"""The parameters of a tool as slots to fill: what kind of value each takes, and what it may be.

Kinds come from JSON Schema (type, format, enum), then from the parameter's name, then from what
its description says. The schema is a stranger's: anything odd in it makes a plain word of a slot.
"""

import re
from dataclasses import dataclass
from typing import Any, TypeGuard

from agents.llm.offline.words import listed, words

MAX_SLOTS = 60
MAX_HOPS = 8  # of $ref

UNSET: Any = object()

FORMATS = {
    "uri": "url", "url": "url", "uri-reference": "url", "email": "email", "uuid": "uuid",
    "date": "date", "date-time": "datetime", "time": "time",
}  # fmt: skip
PATHS = listed("path paths file files filename filepath dir directory folder workspace cwd")
TEXTS = listed(
    "query q search text message msg prompt question content contents body input title subject "
    "comment note term terms keyword keywords phrase sentence words thought summary topic"
)
PLACES = listed("city location place address country region town")
KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("timezone", listed("timezone tz timezones zone")),
    ("url", listed("url urls uri uris link href website webpage")),
    ("email", listed("email emails mail")),
    ("revision", listed("revision rev sha commit")),
    ("uuid", listed("uuid guid")),
    ("datetime", listed("datetime timestamp")),
    ("date", listed("date day")),
    ("time", listed("time")),
    ("path", PATHS),
    ("text", TEXTS),
    ("place", PLACES),
)
HINTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("timezone", re.compile(r"\bIANA\b|\btime ?zone", re.I)),
    ("url", re.compile(r"\bURLs?\b")),
    ("email", re.compile(r"\be-?mail address", re.I)),
    ("date", re.compile(r"\bYYYY-MM-DD\b(?!T)", re.I)),
    ("time", re.compile(r"\bHH:MM\b", re.I)),
    ("path", re.compile(r"\b(?:absolute|relative|file|directory) path\b|\bpath (?:to|of)\b", re.I)),
)
SOURCES = listed("source src from origin base start old input left")
TARGETS = listed("target to dest destination end new output right")
SPOKEN_DEFAULT = re.compile(
    r"(?:\bdefaults?(?: is| to|:)?|\buse)\s+['\"`]([^'\"`\n]{1,200})['\"`]", re.I
)
CHOICE = re.compile(r"['\"`]([\w.-]{1,40})['\"`]")
OFFERED = re.compile(r"\b(?:whether|one of|either|options?|allowed|must be|can be|valid)\b", re.I)
EXAMPLE = re.compile(r"\be\.g\b|\bexamples?\b|\bsuch as\b|\blike\b", re.I)


@dataclass(frozen=True)
class Slot:
    """A parameter: its name, the kind of value it takes, and whether it must have one."""

    name: str
    kind: str
    required: bool
    words: tuple[str, ...]
    role: str = ""  # "source" or "target" where two slots take the same kind
    choices: tuple[Any, ...] = ()
    default: Any = UNSET
    item: "Slot | None" = None  # what an array holds
    whole: bool = False  # a number without a fraction
    described: bool = False  # the choices are only the description's

    @property
    def typed(self) -> bool:
        """Tell whether its values are recognised by their form."""
        return self.kind not in ("text", "word", "place", "object", "boolean")


def slots_of(parameters: dict[str, Any]) -> tuple[Slot, ...]:
    """Return the slots of a tool's parameters, in the schema's order."""
    properties = parameters.get("properties")
    required = parameters.get("required")
    if not isinstance(properties, dict):
        return ()
    names = {name for name in required if isinstance(name, str)} if _is_list(required) else set()
    kept = sorted(properties, key=lambda name: name not in names)[:MAX_SLOTS]
    return tuple(
        _slot(name, _resolved(schema, parameters), name in names, parameters)
        for name, schema in properties.items()
        if name in kept
    )


def _slot(
    name: str, schema: dict[str, Any], required: bool, root: dict[str, Any], depth: int = 0
) -> Slot:
    said = str(schema.get("description") or "")
    named = tuple(words(name))
    choices, described = _choices(schema, said)
    kind = _kind(schema, named, said) if not choices or described else "choice"
    item = None
    if kind == "array" and depth < MAX_HOPS:
        inner = _resolved(schema.get("items") or {}, root)
        item = _slot(name, inner, required, root, depth + 1)
    return Slot(
        name=name,
        kind="choice" if described and kind == "word" else kind,
        required=required,
        words=named,
        role="source" if SOURCES & set(named) else "target" if TARGETS & set(named) else "",
        choices=choices,
        default=_default(schema, said),
        item=item,
        whole=schema.get("type") == "integer",
        described=described,
    )


def _kind(schema: dict[str, Any], named: tuple[str, ...], said: str) -> str:
    match schema.get("type"):
        case "boolean" | "array" | "object" as kind:
            return str(kind)
        case "integer" | "number":
            return "number"
    if (form := str(schema.get("format"))) in FORMATS:
        return FORMATS[form]
    last = set(named[-1:])
    for kind, names in KINDS:
        if last & names:
            return kind
    if PATHS & set(named):
        return "path"
    return next((kind for kind, hint in HINTS if hint.search(said)), "word")


def _choices(schema: dict[str, Any], said: str) -> tuple[tuple[Any, ...], bool]:
    """Return what a value may be, and whether only the description says so."""
    if "const" in schema:
        return (schema["const"],), False
    if _is_list(schema.get("enum")):
        return tuple(value for value in schema["enum"] if value is not None), False
    if (
        schema.get("type", "string") == "string"
        and OFFERED.search(said)
        and not EXAMPLE.search(said)
    ):
        found = tuple(dict.fromkeys(CHOICE.findall(said)))
        if len(found) > 1:
            return found, True
    return (), False


def _default(schema: dict[str, Any], said: str) -> Any:
    if schema.get("default") is not None:
        return schema["default"]
    spoken = SPOKEN_DEFAULT.search(said) if schema.get("type", "string") == "string" else None
    return spoken.group(1) if spoken else UNSET


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _resolved(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without references and alternatives: the first that isn't null."""
    for _ in range(MAX_HOPS):
        if not isinstance(schema, dict):
            return {}
        if "$ref" in schema:
            schema = _referred(str(schema["$ref"]), root)
            continue
        options = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(options, list):
            break
        others = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        first = next((o for o in options if isinstance(o, dict) and o.get("type") != "null"), {})
        schema = {**_resolved_once(first, root), **others}
    if isinstance(schema.get("type"), list):
        kinds = [kind for kind in schema["type"] if kind != "null"]
        schema = {**schema, "type": kinds[0] if kinds else "string"}
    return schema


def _resolved_once(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    return _referred(str(schema["$ref"]), root) if "$ref" in schema else schema


def _referred(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
