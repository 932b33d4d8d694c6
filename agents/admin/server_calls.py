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
from agents.calls.parse_arguments import parse_arguments
from agents.calls.result_text import decode_text_blob
from agents.calls.types import Method
from agents.images import SHOWN_TYPES
from bonobot.accounts.admin_base import ObjectRequest
from bonobot.accounts.current_organization import read_client_name
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import IntegerInput, Select, Textarea, TextInput
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.admin.json_schema_table import build_schema_rows
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.models import Definition, Server
from mcp_servers.schemas.examples import build_example
from mcp_servers.uri_templates import expand_template, list_variables

Kind = Literal["text", "number", "integer", "boolean", "choice", "choices", "lines", "json"]

MAX_ARGUMENTS = 60
MAX_OPTIONS = 200
# Longer texts get a multi-line field.
MAX_ONE_LINE_LENGTH = 200
FIELD_PREFIX = "arg-"
# Media types that are shown as images; other binary content is only named.
DEFINITION_CHOICES = (
    (
        "resources",
        _("Resource"),
        (Definition.Kind.RESOURCE, Definition.Kind.RESOURCE_TEMPLATE, Definition.Kind.SKILL),
    ),
    ("prompts", _("Prompt"), (Definition.Kind.PROMPT,)),
)


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
    input_schema = schema if isinstance(schema, Mapping) else {}
    properties = input_schema.get("properties")
    property_schemas = properties if isinstance(properties, Mapping) else {}
    required = input_schema.get("required")
    required_names = set(map(str, required)) if isinstance(required, list) else set()
    return [
        _build_argument(
            str(name),
            _normalize_schema(property_schema, input_schema),
            required=str(name) in required_names,
        )
        for name, property_schema in list(property_schemas.items())[:MAX_ARGUMENTS]
    ]


def _build_argument(name: str, schema: Mapping[str, Any], *, required: bool) -> ToolArgument:
    options = _list_options(schema)
    kind: Kind = "choice" if options else "json"
    match schema.get("type"):
        case "string" if not options:
            kind = "text"
        case "number" | "integer" | "boolean" as scalar if not options:
            kind = scalar
        case "array":
            items = schema.get("items")
            item_schema = items if isinstance(items, Mapping) else {}
            options = _list_options(item_schema)
            kind = (
                "choices" if options else "lines" if item_schema.get("type") == "string" else "json"
            )
    return ToolArgument(name, kind=kind, required=required, schema=schema, options=options)


def _normalize_schema(property_schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a property's schema with references resolved and "or null" removed."""
    schema = property_schema if isinstance(property_schema, Mapping) else {}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(("#/$defs/", "#/definitions/")):
        _root, group, name = reference.split("/", 2)
        definitions = root.get(group)
        definition = definitions.get(name) if isinstance(definitions, Mapping) else None
        schema = {**(definition if isinstance(definition, Mapping) else {}), **schema}
    for keyword in ("anyOf", "oneOf"):
        alternatives: Any = schema.get(keyword)
        alternatives = alternatives if isinstance(alternatives, list) else []
        non_null = [alternative for alternative in alternatives if alternative != {"type": "null"}]
        if len(non_null) == 1 and isinstance(non_null[0], Mapping):
            return {
                **_normalize_schema(non_null[0], root),
                **{k: v for k, v in schema.items() if k != keyword},
            }
    kinds = schema.get("type")
    if (
        isinstance(kinds, list)
        and len(non_null_types := [alternative for alternative in kinds if alternative != "null"])
        == 1
    ):
        return {**schema, "type": non_null_types[0]}
    return schema


def _list_options(schema: Mapping[str, Any]) -> tuple[str, ...]:
    values = schema.get("enum")
    if "const" in schema:
        values = [schema["const"]]
    if not isinstance(values, list) or len(values) > MAX_OPTIONS:
        return ()
    return tuple(json.dumps(value, ensure_ascii=False) for value in values)


class ToolArgumentForm(forms.Form):
    """The arguments of one tool."""

    def __init__(self, schema: Any, *args: Any, **kwargs: Any) -> None:
        """Add a field for each argument."""
        super().__init__(*args, **kwargs)
        self.tool_arguments = list_arguments(schema)
        for index, argument in enumerate(self.tool_arguments):
            self.fields[f"{FIELD_PREFIX}{index}"] = _build_field(argument)

    def parse_arguments(self) -> dict[str, Any]:
        """Return the entered values by argument name; raises `InvalidInput` for invalid ones.

        Empty values are left out, except required strings, which may be empty.
        """
        if not self.is_valid():
            key, errors = next(iter(self.errors.items()))
            name = make_visible(self.tool_arguments[int(key.removeprefix(FIELD_PREFIX))].name, 120)
            raise InvalidInput(
                f"`{name}`: {errors[0]}",
                code="invalid_arguments",
                field="arguments",
                remedy="Correct the marked field, or enter all arguments as JSON.",
            )
        values = {}
        for index, argument in enumerate(self.tool_arguments):
            entered_value = self.cleaned_data[f"{FIELD_PREFIX}{index}"]
            if entered_value in (None, "", []) and not (
                argument.required and argument.kind == "text"
            ):
                continue
            values[argument.name] = _parse_value(argument, entered_value)
        return values


def _build_field(argument: ToolArgument) -> forms.Field:
    default = argument.schema.get("default")
    title = argument.schema.get("title")
    label = make_visible(argument.name, 200) + (" *" if argument.required else "")
    common: dict[str, Any] = {
        "label": label,
        "help_text": _build_help_text(argument, title if isinstance(title, str) else ""),
        "required": False,
    }
    if argument.kind in ("choice", "choices"):
        return _build_choice_field(argument, default, common)
    if argument.kind == "boolean":
        yes_no = [("", "–"), ("true", _("yes")), ("false", _("no"))]
        initial_json = json.dumps(default) if isinstance(default, bool) else ""
        return forms.ChoiceField(choices=yes_no, widget=Select, initial=initial_json, **common)
    if argument.kind == "integer":
        return forms.IntegerField(widget=IntegerInput, initial=default, **common)
    if argument.kind == "number":
        number_widget = IntegerInput(attrs={"step": "any"})
        return forms.FloatField(widget=number_widget, initial=default, **common)
    if argument.kind == "text":
        initial = default if isinstance(default, str) else ""
        return forms.CharField(
            widget=_build_text_widget(argument), strip=False, initial=initial, **common
        )
    if argument.kind == "lines":
        initial = "\n".join(map(str, default)) if isinstance(default, list) else ""
        textarea = Textarea(attrs={"rows": 3, "class": "bb-mono"})
        return forms.CharField(widget=textarea, initial=initial, **common)
    textarea = Textarea(attrs={"rows": 3, "class": "bb-mono", "spellcheck": "false"})
    if default is None and argument.required:
        default = build_example(
            {"properties": {argument.name: argument.schema}, "required": [argument.name]}
        )
        default = default[argument.name]
    return _ReadableJSONField(widget=textarea, initial=default, **common)


class _ReadableJSONField(forms.JSONField):
    """A JSON field that is indented, and empty instead of `null`."""

    def prepare_value(self, value: Any) -> Any:
        if value is None:
            return ""
        is_container = isinstance(value, dict | list)
        text = json.dumps(value, ensure_ascii=False, indent=2) if is_container else ""
        return text or super().prepare_value(value)


def _build_choice_field(
    argument: ToolArgument, default: Any, common: dict[str, Any]
) -> forms.Field:
    choices = [(option, make_visible(option.strip('"'), 200)) for option in argument.options]
    if argument.kind == "choices":
        select = forms.SelectMultiple(attrs={"class": "bb-input"})
        initial_values = (
            [json.dumps(option) for option in default] if isinstance(default, list) else []
        )
        return forms.MultipleChoiceField(
            choices=choices, widget=select, initial=initial_values, **common
        )
    initial = json.dumps(default, ensure_ascii=False) if "default" in argument.schema else ""
    if not initial and argument.required:
        initial = argument.options[0]
    return forms.ChoiceField(
        choices=[("", "–"), *choices], widget=Select, initial=initial, **common
    )


def _build_text_widget(argument: ToolArgument) -> forms.Widget:
    max_length = argument.schema.get("maxLength")
    attributes = {"autocomplete": "off", "spellcheck": "false"}
    if argument.schema.get("format") or (
        isinstance(max_length, int) and max_length <= MAX_ONE_LINE_LENGTH
    ):
        return TextInput(attrs=attributes)
    return Textarea(attrs={**attributes, "rows": 1})


def _build_help_text(argument: ToolArgument, title: str) -> str:
    row = build_schema_rows({"properties": {argument.name: argument.schema}})[0]
    parts = [row.description or make_visible(title, 200), row.type, *row.bounds]
    kind = {"lines": _("one per line"), "json": _("as JSON")}.get(argument.kind)
    return " · ".join(str(part) for part in (*parts, kind) if part)


def _parse_value(argument: ToolArgument, entered_value: Any) -> Any:
    if argument.kind in ("choice", "boolean"):
        return json.loads(entered_value)
    if argument.kind == "choices":
        return [json.loads(option) for option in entered_value]
    if argument.kind == "lines":
        return [line for line in entered_value.splitlines() if line.strip()]
    return entered_value


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

    source: str = ""
    text: str = ""
    media_type: str = ""
    data: str = ""
    size: int = 0

    @property
    def is_image(self) -> bool:
        """Return whether it can be shown as an image."""
        return bool(self.data) and self.media_type in SHOWN_TYPES


@ServerAdmin.add_page("try_definition", required_actions=Action.CALL_TOOLS)
def show_definition_form(visit: ObjectRequest) -> HttpResponseBase:
    """Show the form of a resource or prompt, or request it and show the result."""
    server: Server = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    query = posted if posted is not None else visit.request.GET
    kind_slug, label, kinds = next(
        (candidate for candidate in DEFINITION_CHOICES if candidate[0] == query.get("kind", "")),
        DEFINITION_CHOICES[0],
    )
    definitions = list(
        server.definitions.filter(kind__in=kinds, present=True).order_by("kind", "name")
    )
    wanted_name = query.get("name", "")
    definition = next(
        (candidate for candidate in definitions if wanted_name in ("", candidate.name)), None
    )
    inputs = _build_inputs(definition, query) if definition else []
    outcome: pipeline.CallOutcome | None = None
    problem: Problem | None = None
    if wanted_name and definition is None:
        problem = build_not_found(wanted_name)
    elif posted is not None and definition is not None:
        try:
            outcome = _request_definition(
                visit, definition, inputs, unapproved="unapproved" in posted
            )
        except Problem as exc:
            problem = exc
    return replace(visit, page="try").render_tab(
        "server_calls/try_definition.html",
        server=server,
        kind=kind_slug,
        kind_label=label,
        definitions=definitions,
        definition=definition,
        inputs=inputs,
        uri=_build_uri(definition, inputs) if definition and kind_slug == "resources" else "",
        outcome=outcome,
        problem=problem,
        outcome_text=outcome.text if outcome and outcome.is_error else "",
        content_parts=list(extract_content_parts(outcome.result))
        if outcome and not outcome.is_error
        else [],
        needs_review=definition is not None and definition.state in ("pending", "changed"),
        may_approve=visit.principal.may(Action.APPROVE_DEFINITIONS),
    )


def build_not_found(name: str) -> NotFound:
    """Return the error for a definition that no longer exists."""
    return NotFound(
        format_message("The server doesn't currently declare {name!r}.", name=name),
        remedy=format_message("Choose another one, or refresh the server."),
    )


def _build_inputs(definition: Definition, posted: QueryDict) -> list[DefinitionInput]:
    if definition.kind == Definition.Kind.RESOURCE_TEMPLATE:
        return [
            DefinitionInput(name, posted.get(f"in-{name}", ""))
            for name in list_variables(definition.name)
        ]
    declared = definition.payload.get("arguments")
    declared_arguments = declared if isinstance(declared, list) else []
    return [
        DefinitionInput(
            name=argument["name"],
            value=posted.get(f"in-{argument['name']}", ""),
            required=argument.get("required") is True,
            description=str(argument.get("description") or argument.get("title") or ""),
        )
        for argument in declared_arguments
        if isinstance(argument, dict) and isinstance(argument.get("name"), str)
    ]


def _build_uri(definition: Definition, inputs: Iterable[DefinitionInput]) -> str:
    if definition.kind != Definition.Kind.RESOURCE_TEMPLATE:
        return definition.name
    return expand_template(
        definition.name, {form_input.name: form_input.value for form_input in inputs}
    )


def _request_definition(
    visit: ObjectRequest, definition: Definition, inputs: list[DefinitionInput], *, unapproved: bool
) -> pipeline.CallOutcome:
    method: Method = "resources/read"
    name, arguments = _build_uri(definition, inputs), {}
    if definition.kind == Definition.Kind.PROMPT:
        method, name = "prompts/get", definition.name
        arguments = {
            form_input.name: form_input.value
            for form_input in inputs
            if form_input.value or form_input.required
        }
    request = pipeline.CallRequest(
        principal=visit.principal,
        method=method,
        tool=name,
        arguments=arguments,
        via="admin",
        client=read_client_name(visit.request),
        holder=f"server:{definition.server_id}:{visit.principal.id}",
        server_id=definition.server_id,
        allow_unapproved=unapproved,
    )
    return get_runtime().call(pipeline.make_call, request)


def extract_content_parts(result: dict[str, Any]) -> Iterable[ContentPart]:
    """Yield the parts of a resource's contents or a prompt's messages."""
    for content_item in _filter_dicts(result.get("contents")):
        yield _build_resource_part(content_item, str(content_item.get("uri", "")))
    for message in _filter_dicts(result.get("messages")):
        content = message.get("content")
        for part in _filter_dicts(content if isinstance(content, list) else [content]):
            yield _build_part(part, str(message.get("role", "")))


def _build_part(part: dict[str, Any], source: str) -> ContentPart:
    if isinstance(part.get("resource"), dict):
        return _build_resource_part(
            part["resource"], f"{source} {part['resource'].get('uri', '')}".strip()
        )
    if "data" in part:
        return _build_data_part(source, part, part["data"])
    text = part.get("text", part.get("uri", ""))
    return ContentPart(source=source, text=str(text), media_type=str(part.get("mimeType") or ""))


def _build_resource_part(resource: dict[str, Any], source: str) -> ContentPart:
    text = decode_text_blob(resource)
    if "blob" in resource and text is None:
        return _build_data_part(source, resource, resource["blob"])
    media_type = str(resource.get("mimeType") or "")
    return ContentPart(
        source=source, text=str(resource.get("text", text or "")), media_type=media_type
    )


def _build_data_part(source: str, part: dict[str, Any], data: Any) -> ContentPart:
    encoded = data if isinstance(data, str) else ""
    media_type = str(part.get("mimeType") or "")
    return ContentPart(
        source=source, media_type=media_type, data=encoded, size=len(encoded.rstrip("=")) * 3 // 4
    )


def _filter_dicts(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


@ServerAdmin.add_page("try", _("Try it"), order=30, required_actions=Action.CALL_TOOLS)
def show_tool_form(visit: ObjectRequest) -> HttpResponseBase:
    """Show the form of a tool's arguments, or call it and show the result."""
    server: Server = visit.object
    tool_rows = server.definitions.tools().filter(present=True).order_by("name")
    tools = list(tool_rows.only("server", "name"))
    posted = visit.request.POST if visit.request.method == "POST" else None
    tool_name = (posted or visit.request.GET).get("tool", "")
    selected = next((candidate for candidate in tools if tool_name in ("", candidate.name)), None)
    tool = tool_rows.filter(pk=selected.pk).first() if selected else None
    form = ToolArgumentForm(tool.input_schema if tool else {}, posted)
    is_form = posted is None or posted.get("input") == "form"
    text = posted.get("arguments", "") if posted is not None else _format_example_arguments(tool)
    outcome: pipeline.CallOutcome | None = None
    problem: Problem | None = None
    if posted is None and tool_name and tool is None:
        problem = build_not_found(tool_name)
    if posted is not None:
        try:
            arguments = form.parse_arguments() if is_form else parse_arguments(text or "{}")
            text = json.dumps(arguments, indent=2, ensure_ascii=False)
            outcome = _call_tool(
                visit, server, tool_name, arguments, unapproved="unapproved" in posted
            )
        except Problem as exc:
            problem = exc
    return visit.render_tab(
        "server_calls/try_tool.html",
        server=server,
        tools=tools,
        tool=tool,
        schema=build_schema_rows(tool.input_schema) if tool else [],
        form=form if is_form else ToolArgumentForm(tool.input_schema if tool else {}),
        by_form=is_form,
        arguments=text,
        outcome=outcome,
        problem=problem,
        outcome_text=outcome.text if outcome else "",
        content_parts=_list_result_parts(outcome) if outcome else [],
        needs_review=tool is not None and tool.state in ("pending", "changed"),
        may_approve=visit.principal.may(Action.APPROVE_DEFINITIONS),
    )


def _call_tool(
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
        allow_unapproved=unapproved,
    )
    return get_runtime().call(pipeline.make_call, request)


def _format_example_arguments(tool: Definition | None) -> str:
    return (
        json.dumps(build_example(tool.input_schema), indent=2, ensure_ascii=False) if tool else "{}"
    )


def _list_result_parts(outcome: pipeline.CallOutcome) -> list[ContentPart]:
    """Return the parts of the result that are not text: images, links, audio, resources."""
    content = outcome.result.get("content")
    items = content if isinstance(content, list) else []
    other_items = [item for item in items if isinstance(item, dict) and item.get("type") != "text"]
    return list(extract_content_parts({"messages": [{"content": other_items}]}))
