"""What a declared operation takes: parameters and fields of its body, read and checked: pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.lib.secret_names import names_secret
from mcp_servers.openapi.parameters import LONGEST_NAME, OURS, TOKEN
from mcp_servers.openapi.translating import shown

PLACES = ("path", "query", "header", "body")
SCALARS = ("string", "integer", "number", "boolean")
LISTS = tuple(f"{kind}[]" for kind in SCALARS)
TYPES = (*SCALARS, *LISTS, "object")
MEMBERS = ("name", "in", "type", "required", "description", "default", "enum")
MOST_INPUTS = 100
MOST_CHOICES = 200
LONGEST_TEXT = 1_000


@dataclass(frozen=True, kw_only=True)
class Input:
    """A value of the request: its name, where it goes, and what it may be."""

    name: str
    place: str
    type: str = "string"
    required: bool = False
    description: str = ""
    default: Any = None
    choices: tuple[Any, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as it is kept and read back."""
        found: dict[str, Any] = {"name": self.name, "in": self.place, "type": self.type}
        found["required"] = self.required
        if self.description:
            found["description"] = self.description
        if self.default is not None:
            found["default"] = self.default
        if self.choices:
            found["enum"] = list(self.choices)
        return found

    def schema(self) -> dict[str, Any]:
        """Return its JSON Schema."""
        found: dict[str, Any] = {"type": self.type}
        bounded = found
        if self.type in LISTS:
            bounded = {"type": self.type.removesuffix("[]")}
            found = {"type": "array", "items": bounded}
        if self.choices:
            bounded["enum"] = list(self.choices)
        if self.default is not None:
            found["default"] = self.default
        return found | ({"description": self.description} if self.description else {})


def read_inputs(raw: Any, in_path: Sequence[str], field: str) -> tuple[Input, ...]:
    """Return what is declared; what the path alone names is a text in it. Raises `Invalid`."""
    if raw is not None and not isinstance(raw, list):
        raise refused(field, "`parameters` must be a list.", "bad_value")
    if len(raw or ()) > MOST_INPUTS:
        raise refused(
            field,
            say("There are more than {most_inputs} parameters.", most_inputs=MOST_INPUTS),
            "too_many",
        )
    found = [_read(one, in_path, f"{field}[{i}]") for i, one in enumerate(raw or ())]
    seen: set[tuple[str, str]] = set()
    for index, one in enumerate(found):
        if (one.name, one.place) in seen:
            raise refused(
                f"{field}[{index}].name",
                say("`{name}` is in the {place} twice.", name=shown(one.name), place=one.place),
                "duplicate_name",
                "Keep one of them.",
            )
        seen.add((one.name, one.place))
    missing = [
        Input(name=name, place="path", required=True)
        for name in dict.fromkeys(in_path)
        if (name, "path") not in seen
    ]
    return (*missing, *found)


def refused(field: str, detail: str, code: str, remedy: str = "") -> Invalid:
    """Return the problem of something that doesn't hold."""
    return Invalid(detail, code=code, field=field, remedy=remedy)


def _read(raw: Any, in_path: Sequence[str], field: str) -> Input:
    if not isinstance(raw, Mapping):
        raise refused(field, "A parameter must be an object.", "bad_value")
    if strange := sorted(set(map(str, raw)) - set(MEMBERS)):
        raise refused(
            f"{field}.{strange[0][:64]}",
            say("A parameter has no member `{strange}`.", strange=shown(strange[0])),
            "unknown_field",
            say("Members: {members}.", members=", ".join(MEMBERS)),
        )
    name = raw["name"].strip() if isinstance(raw.get("name"), str) else ""
    place = raw.get("in") or ("path" if name in in_path else "query")
    kind = raw.get("type") or "string"
    for member, said, known in (("in", place, PLACES), ("type", kind, TYPES)):
        if said not in known:
            code = "unknown_type" if member == "type" else "unknown_place"
            detail = say("There is no `{said}` for `{member}`.", said=shown(said), member=member)
            raise refused(
                f"{field}.{member}",
                detail,
                code,
                say("Use one of: {known}.", known=", ".join(known)),
            )
    _name_holds(name, place, in_path, f"{field}.name")
    required = raw.get("required", False)
    if not isinstance(required, bool):
        raise refused(f"{field}.required", "`required` must be true or false.", "bad_value")
    found = Input(
        name=name,
        place=place,
        type=kind,
        required=required or place == "path",
        description=_text(raw.get("description"), f"{field}.description"),
        default=raw.get("default"),
        choices=_choices(raw.get("enum"), kind, f"{field}.enum"),
    )
    _default_holds(found, f"{field}.default")
    return found


def _text(said: Any, field: str) -> str:
    text = "" if said is None else said
    if not isinstance(text, str) or len(text) > LONGEST_TEXT:
        detail = say(
            "A parameter's description is a text of at most {longest_text:,} characters.",
            longest_text=LONGEST_TEXT,
        )
        raise refused(field, detail, "bad_value", "Say it in fewer words.")
    return text.strip()


def _name_holds(name: str, place: str, in_path: Sequence[str], field: str) -> None:
    if not name:
        raise refused(field, "A parameter has no name.", "missing_value", "Write its name.")
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise refused(
            field,
            say("`{name}` can't be the name of a parameter.", name=shown(name)),
            "bad_name",
            say("At most {longest_name} characters that can be seen.", longest_name=LONGEST_NAME),
        )
    if place == "path" and name not in in_path:
        raise refused(
            field,
            say("The path doesn't name `{{{name}}}`.", name=shown(name)),
            "not_in_path",
            "Write it into the path in braces, or choose another place for it.",
        )
    if place == "header" and (OURS.fullmatch(name) or not TOKEN.fullmatch(name)):
        raise refused(
            field,
            say("`{name}` can't be a header that is declared.", name=shown(name)),
            "reserved_header",
            "Credentials belong into the sign-in; what HTTP itself sets can't be chosen.",
        )


def _choices(raw: Any, kind: str, field: str) -> tuple[Any, ...]:
    if raw in (None, []):
        return ()
    if not isinstance(raw, list) or len(raw) > MOST_CHOICES or kind in ("object", "boolean"):
        raise refused(
            field,
            say(
                "`enum` must be a list of at most {most_choices} texts or numbers.",
                most_choices=MOST_CHOICES,
            ),
            "bad_choice",
            "Leave it out where anything may be given.",
        )
    for one in raw:
        if not _fits(one, kind.removesuffix("[]")):
            raise refused(
                field,
                say("`{one}` is none of the type `{kind}`.", one=shown(one), kind=kind),
                "bad_choice",
                "Correct it.",
            )
    return tuple(dict.fromkeys(raw))


def _default_holds(one: Input, field: str) -> None:
    if one.default is None:
        return
    name = shown(one.name)
    if one.required:
        raise refused(
            field,
            say("`{name}` always has to be given, so that its default is never used.", name=name),
            "default_unused",
            "Make it optional, or leave the default out.",
        )
    given = one.default if one.type in LISTS else [one.default]
    plain = one.type.removesuffix("[]")
    if not isinstance(given, list) or not all(_fits(value, plain) for value in given):
        raise refused(
            field,
            say("The default of `{name}` isn't of the type `{kind}`.", name=name, kind=one.type),
            "bad_default",
            "Correct it, or leave it out.",
        )
    if one.choices and not all(value in one.choices for value in given):
        raise refused(
            field,
            say("The default of `{name}` is none of its choices.", name=name),
            "bad_default",
            "Choose one of them.",
        )
    if plain == "string" and names_secret(one.name):
        raise refused(
            field,
            say("The default of `{name}` looks like a secret; defaults are open.", name=name),
            "secret_in_default",
            "Use the sign-in (or a header of the server), whose value is sealed.",
        )


def _fits(value: Any, kind: str) -> bool:
    """Tell whether a value is of a type; texts are bounded, numbers are such that JSON has."""
    if kind == "string":
        return isinstance(value, str) and len(value) <= LONGEST_TEXT
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "object":
        return isinstance(value, Mapping) and len(str(value)) <= LONGEST_TEXT
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = number and (isinstance(value, int) or math.isfinite(value))
    return whole and (kind == "number" or isinstance(value, int))
