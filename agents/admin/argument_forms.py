"""A form for a tool's arguments, made from its input schema; what a form can't say stays JSON.

The names of fields are their places: the server's own names are only text here. A form that was
filled in is no judgement: the door checks the arguments against the original schema.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from django import forms
from django.utils.translation import gettext_lazy as _

from bonobot.lib.admin import IntegerInput, Select, Textarea, TextInput
from bonobot.lib.problems import Invalid
from bonobot.lib.untrusted import visible
from mcp_servers.admin.schema_rows import example, rows

Kind = Literal["text", "number", "integer", "boolean", "choice", "choices", "lines", "json"]

MOST_ARGUMENTS = 60
MOST_OPTIONS = 200
# A text that may be longer than this is written in several lines.
ONE_LINE = 200
PREFIX = "arg-"


@dataclass(frozen=True)
class Argument:
    """One argument as it is asked for; `options` are JSON texts of the values."""

    name: str
    kind: Kind
    required: bool
    schema: Mapping[str, Any]
    options: tuple[str, ...] = ()


def arguments_of(schema: Any) -> list[Argument]:
    """Return the arguments that a tool takes, in its own order."""
    shape = schema if isinstance(schema, Mapping) else {}
    properties = shape.get("properties")
    members = properties if isinstance(properties, Mapping) else {}
    required = shape.get("required")
    wanted = set(map(str, required)) if isinstance(required, list) else set()
    return [
        _argument(str(name), _plain(member, shape), required=str(name) in wanted)
        for name, member in list(members.items())[:MOST_ARGUMENTS]
    ]


def _argument(name: str, schema: Mapping[str, Any], *, required: bool) -> Argument:
    options = _options(schema)
    kind: Kind = "choice" if options else "json"
    match schema.get("type"):
        case "string" if not options:
            kind = "text"
        case "number" | "integer" | "boolean" as plain if not options:
            kind = plain
        case "array":
            items = schema.get("items")
            each = items if isinstance(items, Mapping) else {}
            options = _options(each)
            kind = "choices" if options else "lines" if each.get("type") == "string" else "json"
    return Argument(name, kind, required, schema, options)


def _plain(member: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a member as a form can take it: references followed, "or null" left out."""
    schema = member if isinstance(member, Mapping) else {}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(("#/$defs/", "#/definitions/")):
        _root, group, name = reference.split("/", 2)
        known = root.get(group)
        found = known.get(name) if isinstance(known, Mapping) else None
        schema = {**(found if isinstance(found, Mapping) else {}), **schema}
    for word in ("anyOf", "oneOf"):
        several: Any = schema.get(word)
        several = several if isinstance(several, list) else []
        others = [one for one in several if one != {"type": "null"}]
        if len(others) == 1 and isinstance(others[0], Mapping):
            return {**_plain(others[0], root), **{k: v for k, v in schema.items() if k != word}}
    kinds = schema.get("type")
    if isinstance(kinds, list) and len(real := [one for one in kinds if one != "null"]) == 1:
        return {**schema, "type": real[0]}
    return schema


def _options(schema: Mapping[str, Any]) -> tuple[str, ...]:
    values = schema.get("enum")
    if "const" in schema:
        values = [schema["const"]]
    if not isinstance(values, list) or len(values) > MOST_OPTIONS:
        return ()
    return tuple(json.dumps(one, ensure_ascii=False) for one in values)


class ArgumentForm(forms.Form):
    """The arguments of one tool."""

    def __init__(self, schema: Any, *args: Any, **kwargs: Any) -> None:
        """Ask for each argument by its place."""
        super().__init__(*args, **kwargs)
        self.asked = arguments_of(schema)
        for place, one in enumerate(self.asked):
            self.fields[f"{PREFIX}{place}"] = _field(one)

    def said(self) -> dict[str, Any]:
        """Return what was entered, by the tool's names; raises `Invalid` for what is no such value.

        What is empty isn't sent, except a text that the tool requires: it may be empty there.
        """
        if not self.is_valid():
            key, errors = next(iter(self.errors.items()))
            name = visible(self.asked[int(key.removeprefix(PREFIX))].name, 120)
            raise Invalid(
                f"`{name}`: {errors[0]}",
                code="invalid_arguments",
                field="arguments",
                remedy="Correct the marked field, or write all arguments as JSON.",
            )
        found = {}
        for place, one in enumerate(self.asked):
            entered = self.cleaned_data[f"{PREFIX}{place}"]
            if entered in (None, "", []) and not (one.required and one.kind == "text"):
                continue
            found[one.name] = _value(one, entered)
        return found


def _field(asked: Argument) -> forms.Field:
    default = asked.schema.get("default")
    title = asked.schema.get("title")
    label = visible(asked.name, 200) + (" *" if asked.required else "")
    common: dict[str, Any] = {
        "label": label,
        "help_text": _help(asked, title if isinstance(title, str) else ""),
        "required": False,
    }
    if asked.kind in ("choice", "choices"):
        return _choosing(asked, default, common)
    if asked.kind == "boolean":
        yes_no = [("", "–"), ("true", _("yes")), ("false", _("no"))]
        begun = json.dumps(default) if isinstance(default, bool) else ""
        return forms.ChoiceField(choices=yes_no, widget=Select, initial=begun, **common)
    if asked.kind == "integer":
        return forms.IntegerField(widget=IntegerInput, initial=default, **common)
    if asked.kind == "number":
        step = IntegerInput(attrs={"step": "any"})
        return forms.FloatField(widget=step, initial=default, **common)
    if asked.kind == "text":
        initial = default if isinstance(default, str) else ""
        return forms.CharField(widget=_text(asked), strip=False, initial=initial, **common)
    if asked.kind == "lines":
        initial = "\n".join(map(str, default)) if isinstance(default, list) else ""
        area = Textarea(attrs={"rows": 3, "class": "bb-mono"})
        return forms.CharField(widget=area, initial=initial, **common)
    area = Textarea(attrs={"rows": 3, "class": "bb-mono", "spellcheck": "false"})
    if default is None and asked.required:
        default = example({"properties": {asked.name: asked.schema}, "required": [asked.name]})
        default = default[asked.name]
    return _Json(widget=area, initial=default, **common)


class _Json(forms.JSONField):
    """JSON as people write it: in lines, and what isn't there is blank, not `null`."""

    def prepare_value(self, value: Any) -> Any:
        if value is None:
            return ""
        plain = isinstance(value, dict | list)
        text = json.dumps(value, ensure_ascii=False, indent=2) if plain else ""
        return text or super().prepare_value(value)


def _choosing(asked: Argument, default: Any, common: dict[str, Any]) -> forms.Field:
    shown = [(one, visible(one.strip('"'), 200)) for one in asked.options]
    if asked.kind == "choices":
        several = forms.SelectMultiple(attrs={"class": "bb-input"})
        chosen = [json.dumps(one) for one in default] if isinstance(default, list) else []
        return forms.MultipleChoiceField(choices=shown, widget=several, initial=chosen, **common)
    initial = json.dumps(default, ensure_ascii=False) if "default" in asked.schema else ""
    if not initial and asked.required:
        initial = asked.options[0]
    return forms.ChoiceField(choices=[("", "–"), *shown], widget=Select, initial=initial, **common)


def _text(asked: Argument) -> forms.Widget:
    longest = asked.schema.get("maxLength")
    plain = {"autocomplete": "off", "spellcheck": "false"}
    if asked.schema.get("format") or (isinstance(longest, int) and longest <= ONE_LINE):
        return TextInput(attrs=plain)
    return Textarea(attrs={**plain, "rows": 1})


def _help(asked: Argument, title: str) -> str:
    row = rows({"properties": {asked.name: asked.schema}})[0]
    parts = [row.description or visible(title, 200), row.type, *row.bounds]
    kind = {"lines": _("one on each line"), "json": _("written as JSON")}.get(asked.kind)
    return " · ".join(str(part) for part in (*parts, kind) if part)


def _value(asked: Argument, entered: Any) -> Any:
    if asked.kind in ("choice", "boolean"):
        return json.loads(entered)
    if asked.kind == "choices":
        return [json.loads(one) for one in entered]
    if asked.kind == "lines":
        return [line for line in entered.splitlines() if line.strip()]
    return entered
