"""The "Try it" page of a server: tools, resources and prompts.

Form fields are named by index: the server's names are untrusted text. The call itself validates
the arguments against the original schema.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from django import forms
from django.http import QueryDict
from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from agents.calls import pipeline
from agents.calls.results import decode_text_blob
from agents.calls.types import Method
from bonobot.accounts.admin_base import ObjectRequest
from bonobot.accounts.current_organization import read_client_name
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import IntegerInput, Select, Textarea, TextInput
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.admin.json_schema_table import build_example, build_schema_rows
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.models import Definition, Server
from mcp_servers.uri_templates import expand, list_variables

Kind = Literal["text", "number", "integer", "boolean", "choice", "choices", "lines", "json"]

MOST_ARGUMENTS = 60
MOST_OPTIONS = 200
# Longer texts get a multi-line field.
ONE_LINE = 200
PREFIX = "arg-"


@dataclass(frozen=True)
class ToolArgument:
    """An argument of a form; `options` are the values as JSON."""

    name: str
    kind: Kind
    required: bool
    schema: Mapping[str, Any]
    options: tuple[str, ...] = ()


def list_arguments(schema: Any) -> list[ToolArgument]:
    """Return the arguments of a tool in schema order."""
    shape = schema if isinstance(schema, Mapping) else {}
    properties = shape.get("properties")
    members = properties if isinstance(properties, Mapping) else {}
    required = shape.get("required")
    wanted = set(map(str, required)) if isinstance(required, list) else set()
    return [
        _build_argument(str(name), _normalize_schema(member, shape), required=str(name) in wanted)
        for name, member in list(members.items())[:MOST_ARGUMENTS]
    ]


def _build_argument(name: str, schema: Mapping[str, Any], *, required: bool) -> ToolArgument:
    options = _list_options(schema)
    kind: Kind = "choice" if options else "json"
    match schema.get("type"):
        case "string" if not options:
            kind = "text"
        case "number" | "integer" | "boolean" as plain if not options:
            kind = plain
        case "array":
            items = schema.get("items")
            each = items if isinstance(items, Mapping) else {}
            options = _list_options(each)
            kind = "choices" if options else "lines" if each.get("type") == "string" else "json"
    return ToolArgument(name, kind, required, schema, options)


def _normalize_schema(member: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a property's schema with references resolved and "or null" removed."""
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
            return {
                **_normalize_schema(others[0], root),
                **{k: v for k, v in schema.items() if k != word},
            }
    kinds = schema.get("type")
    if isinstance(kinds, list) and len(real := [one for one in kinds if one != "null"]) == 1:
        return {**schema, "type": real[0]}
    return schema


def _list_options(schema: Mapping[str, Any]) -> tuple[str, ...]:
    values = schema.get("enum")
    if "const" in schema:
        values = [schema["const"]]
    if not isinstance(values, list) or len(values) > MOST_OPTIONS:
        return ()
    return tuple(json.dumps(one, ensure_ascii=False) for one in values)


class ToolArgumentForm(forms.Form):
    """The arguments of one tool."""

    def __init__(self, schema: Any, *args: Any, **kwargs: Any) -> None:
        """Add a field for each argument."""
        super().__init__(*args, **kwargs)
        self.asked = list_arguments(schema)
        for place, one in enumerate(self.asked):
            self.fields[f"{PREFIX}{place}"] = _field(one)

    def said(self) -> dict[str, Any]:
        """Return the entered values by argument name; raises `InvalidInput` for invalid ones.

        Empty values are left out, except required strings, which may be empty.
        """
        if not self.is_valid():
            key, errors = next(iter(self.errors.items()))
            name = make_visible(self.asked[int(key.removeprefix(PREFIX))].name, 120)
            raise InvalidInput(
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


def _field(asked: ToolArgument) -> forms.Field:
    default = asked.schema.get("default")
    title = asked.schema.get("title")
    label = make_visible(asked.name, 200) + (" *" if asked.required else "")
    common: dict[str, Any] = {
        "label": label,
        "help_text": _build_help_text(asked, title if isinstance(title, str) else ""),
        "required": False,
    }
    if asked.kind in ("choice", "choices"):
        return _build_choice_field(asked, default, common)
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
        return forms.CharField(
            widget=_build_text_widget(asked), strip=False, initial=initial, **common
        )
    if asked.kind == "lines":
        initial = "\n".join(map(str, default)) if isinstance(default, list) else ""
        area = Textarea(attrs={"rows": 3, "class": "bb-mono"})
        return forms.CharField(widget=area, initial=initial, **common)
    area = Textarea(attrs={"rows": 3, "class": "bb-mono", "spellcheck": "false"})
    if default is None and asked.required:
        default = build_example(
            {"properties": {asked.name: asked.schema}, "required": [asked.name]}
        )
        default = default[asked.name]
    return _ReadableJSONField(widget=area, initial=default, **common)


class _ReadableJSONField(forms.JSONField):
    """A JSON field that is indented, and empty instead of `null`."""

    def prepare_value(self, value: Any) -> Any:
        if value is None:
            return ""
        plain = isinstance(value, dict | list)
        text = json.dumps(value, ensure_ascii=False, indent=2) if plain else ""
        return text or super().prepare_value(value)


def _build_choice_field(asked: ToolArgument, default: Any, common: dict[str, Any]) -> forms.Field:
    shown = [(one, make_visible(one.strip('"'), 200)) for one in asked.options]
    if asked.kind == "choices":
        several = forms.SelectMultiple(attrs={"class": "bb-input"})
        chosen = [json.dumps(one) for one in default] if isinstance(default, list) else []
        return forms.MultipleChoiceField(choices=shown, widget=several, initial=chosen, **common)
    initial = json.dumps(default, ensure_ascii=False) if "default" in asked.schema else ""
    if not initial and asked.required:
        initial = asked.options[0]
    return forms.ChoiceField(choices=[("", "–"), *shown], widget=Select, initial=initial, **common)


def _build_text_widget(asked: ToolArgument) -> forms.Widget:
    longest = asked.schema.get("maxLength")
    plain = {"autocomplete": "off", "spellcheck": "false"}
    if asked.schema.get("format") or (isinstance(longest, int) and longest <= ONE_LINE):
        return TextInput(attrs=plain)
    return Textarea(attrs={**plain, "rows": 1})


def _build_help_text(asked: ToolArgument, title: str) -> str:
    row = build_schema_rows({"properties": {asked.name: asked.schema}})[0]
    parts = [row.description or make_visible(title, 200), row.type, *row.bounds]
    kind = {"lines": _("one on each line"), "json": _("written as JSON")}.get(asked.kind)
    return " · ".join(str(part) for part in (*parts, kind) if part)


def _value(asked: ToolArgument, entered: Any) -> Any:
    if asked.kind in ("choice", "boolean"):
        return json.loads(entered)
    if asked.kind == "choices":
        return [json.loads(one) for one in entered]
    if asked.kind == "lines":
        return [line for line in entered.splitlines() if line.strip()]
    return entered


# Media types that are shown as images; other binary content is only named.
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
CHOICES = (
    ("resources", _("Resource"), (Definition.Kind.RESOURCE, Definition.Kind.RESOURCE_TEMPLATE)),
    ("prompts", _("Prompt"), (Definition.Kind.PROMPT,)),
)


@dataclass(frozen=True)
class DefinitionInput:
    """An input of a form: a template variable or a prompt argument."""

    name: str
    value: str
    required: bool = False
    description: str = ""


@dataclass(frozen=True)
class ContentPart:
    """A part of a result: text, an image, or other content that is only named."""

    who: str = ""
    text: str = ""
    mime: str = ""
    data: str = ""
    size: int = 0

    @property
    def picture(self) -> bool:
        """Return whether it can be shown as an image."""
        return bool(self.data) and self.mime in PICTURES


@ServerAdmin.add_page("ask", needs=Action.CALL_TOOLS)
def ask(visit: ObjectRequest) -> HttpResponseBase:
    """Show the form of a resource or prompt, or request it and show the result."""
    server: Server = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    query = posted if posted is not None else visit.request.GET
    slug, title, kinds = next(
        (one for one in CHOICES if one[0] == query.get("kind", "")), CHOICES[0]
    )
    offers = list(server.definitions.filter(kind__in=kinds, present=True).order_by("kind", "name"))
    wanted = query.get("name", "")
    offer = next((one for one in offers if wanted in ("", one.name)), None)
    inputs = _build_inputs(offer, query) if offer else []
    outcome: pipeline.CallOutcome | None = None
    problem: Problem | None = None
    if wanted and offer is None:
        problem = build_not_found(wanted)
    elif posted is not None and offer is not None:
        try:
            outcome = _ask(visit, offer, inputs, unapproved="unapproved" in posted)
        except Problem as refusal:
            problem = refusal
    return replace(visit, page="try").show(
        "servers/ask.html",
        server=server,
        kind=slug,
        title_of_kind=title,
        offers=offers,
        offer=offer,
        inputs=inputs,
        uri=_build_uri(offer, inputs) if offer and slug == "resources" else "",
        outcome=outcome,
        problem=problem,
        pieces=list(extract_content_parts(outcome.result))
        if outcome and not outcome.is_error
        else [],
        waits=offer is not None and offer.state in ("pending", "changed"),
        may_approve=visit.principal.may(Action.APPROVE_DEFINITIONS),
    )


def build_not_found(name: str) -> NotFound:
    """Return the error for a definition that no longer exists."""
    return NotFound(
        format_message("The server offers no {name!r} now.", name=name),
        remedy=format_message("Choose something else, or refresh the server."),
    )


def _build_inputs(offer: Definition, given: QueryDict) -> list[DefinitionInput]:
    if offer.kind == Definition.Kind.RESOURCE_TEMPLATE:
        return [
            DefinitionInput(name, given.get(f"in-{name}", ""))
            for name in list_variables(offer.name)
        ]
    declared = offer.payload.get("arguments")
    listed = declared if isinstance(declared, list) else []
    return [
        DefinitionInput(
            name=one["name"],
            value=given.get(f"in-{one['name']}", ""),
            required=one.get("required") is True,
            description=str(one.get("description") or one.get("title") or ""),
        )
        for one in listed
        if isinstance(one, dict) and isinstance(one.get("name"), str)
    ]


def _build_uri(offer: Definition, inputs: Iterable[DefinitionInput]) -> str:
    if offer.kind == Definition.Kind.RESOURCE:
        return offer.name
    return expand(offer.name, {one.name: one.value for one in inputs})


def _ask(
    visit: ObjectRequest, offer: Definition, inputs: list[DefinitionInput], *, unapproved: bool
) -> pipeline.CallOutcome:
    method: Method = "resources/read"
    name, arguments = _build_uri(offer, inputs), {}
    if offer.kind == Definition.Kind.PROMPT:
        method, name = "prompts/get", offer.name
        arguments = {one.name: one.value for one in inputs if one.value or one.required}
    request = pipeline.CallRequest(
        principal=visit.principal,
        method=method,
        tool=name,
        arguments=arguments,
        via="admin",
        client=read_client_name(visit.request),
        holder=f"server:{offer.server_id}:{visit.principal.id}",
        server_id=offer.server_id,
        unapproved=unapproved,
    )
    return get_runtime().call(pipeline.call, request)


def extract_content_parts(result: dict[str, Any]) -> Iterable[ContentPart]:
    """Yield the parts of a resource's contents or a prompt's messages."""
    for one in _filter_dicts(result.get("contents")):
        yield _build_resource_part(one, str(one.get("uri", "")))
    for message in _filter_dicts(result.get("messages")):
        content = message.get("content")
        for part in _filter_dicts(content if isinstance(content, list) else [content]):
            yield _build_part(part, str(message.get("role", "")))


def _build_part(part: dict[str, Any], who: str) -> ContentPart:
    if isinstance(part.get("resource"), dict):
        return _build_resource_part(
            part["resource"], f"{who} {part['resource'].get('uri', '')}".strip()
        )
    if "data" in part:
        return _build_data_part(who, part, part["data"])
    text = part.get("text", part.get("uri", ""))
    return ContentPart(who=who, text=str(text), mime=str(part.get("mimeType") or ""))


def _build_resource_part(resource: dict[str, Any], who: str) -> ContentPart:
    text = decode_text_blob(resource)
    if "blob" in resource and text is None:
        return _build_data_part(who, resource, resource["blob"])
    mime = str(resource.get("mimeType") or "")
    return ContentPart(who=who, text=str(resource.get("text", text or "")), mime=mime)


def _build_data_part(who: str, holder: dict[str, Any], data: Any) -> ContentPart:
    said = data if isinstance(data, str) else ""
    mime = str(holder.get("mimeType") or "")
    return ContentPart(who=who, mime=mime, data=said, size=len(said.rstrip("=")) * 3 // 4)


def _filter_dicts(found: Any) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


@ServerAdmin.add_page("try", _("Try it"), order=30, needs=Action.CALL_TOOLS)
def try_it(visit: ObjectRequest) -> HttpResponseBase:
    """Show the form of a tool's arguments, or call it and show the result."""
    server: Server = visit.object
    offered = server.definitions.tools().filter(present=True).order_by("name")
    tools = list(offered.only("server", "name"))
    posted = visit.request.POST if visit.request.method == "POST" else None
    wanted = (posted or visit.request.GET).get("tool", "")
    chosen = next((one for one in tools if wanted in ("", one.name)), None)
    tool = offered.filter(pk=chosen.pk).first() if chosen else None
    entry = ToolArgumentForm(tool.input_schema if tool else {}, posted)
    by_form = posted is None or posted.get("how") == "form"
    text = posted.get("arguments", "") if posted is not None else _start(tool)
    outcome: pipeline.CallOutcome | None = None
    problem: Problem | None = None
    if posted is None and wanted and tool is None:
        problem = build_not_found(wanted)
    if posted is not None:
        try:
            said = entry.said() if by_form else read_arguments(text)
            text = json.dumps(said, indent=2, ensure_ascii=False)
            outcome = _call(visit, server, wanted, said, unapproved="unapproved" in posted)
        except Problem as refusal:
            problem = refusal
    return visit.show(
        "servers/try.html",
        server=server,
        tools=tools,
        tool=tool,
        schema=build_schema_rows(tool.input_schema) if tool else [],
        form=entry if by_form else ToolArgumentForm(tool.input_schema if tool else {}),
        by_form=by_form,
        arguments=text,
        outcome=outcome,
        problem=problem,
        parts=_list_result_parts(outcome) if outcome else [],
        waits=tool is not None and tool.state in ("pending", "changed"),
        may_approve=visit.principal.may(Action.APPROVE_DEFINITIONS),
    )


def _call(
    visit: ObjectRequest, server: Server, tool: str, arguments: dict[str, Any], *, unapproved: bool
) -> pipeline.CallOutcome:
    principal = visit.principal
    request = pipeline.CallRequest(
        principal=principal,
        tool=tool,
        arguments=arguments,
        via="admin",
        client=read_client_name(visit.request),
        holder=f"server:{server.pk}:{principal.id}",
        server_id=server.pk,
        unapproved=unapproved,
    )
    return get_runtime().call(pipeline.call, request)


def read_arguments(text: str) -> dict[str, Any]:
    """Return the arguments as an object; raises `InvalidInput` if the text is not one."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise InvalidInput(
            format_message("The arguments are not valid JSON: {error}", error=error),
            code="broken_json",
            field="arguments",
            remedy='Write one object, such as {"city": "Berlin"}.',
        ) from None
    if not isinstance(found, dict):
        raise InvalidInput(
            "The arguments must be one JSON object.",
            code="invalid_arguments",
            field="arguments",
            remedy='Write it in braces: {"city": "Berlin"}.',
        )
    return found


def _start(tool: Definition | None) -> str:
    return (
        json.dumps(build_example(tool.input_schema), indent=2, ensure_ascii=False) if tool else "{}"
    )


def _list_result_parts(outcome: pipeline.CallOutcome) -> list[ContentPart]:
    """Return the parts of the result that are not text: images, links, audio, resources."""
    content = outcome.result.get("content")
    found = content if isinstance(content, list) else []
    more = [one for one in found if isinstance(one, dict) and one.get("type") != "text"]
    return list(extract_content_parts({"messages": [{"content": more}]}))
