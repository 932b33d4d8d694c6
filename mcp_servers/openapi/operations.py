"""Build tools from OpenAPI operations, parameters and Bonobot's `x-` extensions (pure).

The plan of the request is stored in the tool's `_meta`, so that it is reviewed with the tool.

`x-bonobot-result` is a JSON pointer to the part of a response that is the result,
`x-bonobot-send-defaults` sends defaults for omitted arguments, `x-bonobot-labels` holds the flow
labels of an operation that an administrator declared. All of them are part of the plan.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from bonobot.core.i18n.messages import format_message
from mcp_servers.openapi.document import OpenApiDocument, UnusableDocumentPart, build_pointer
from mcp_servers.openapi.schema_conversion import SchemaConverter, find_text, format_node

MAX_PARAMETER_NAME = 64
STYLES = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
# Headers that HTTP, the sign-in or OpenAPI sets: a parameter can't.
OURS = re.compile(
    r"(?i)accept|content-type|authorization|host|connection|content-length|transfer-encoding|"
    r"cookie|te|trailer|upgrade|expect|keep-alive|user-agent|accept-encoding|proxy-.*"
)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TEMPLATE = re.compile(r"\{([^{}]*)\}")
_JSON_MEDIA_RANGE = re.compile(r"application/(?:json|[\w.+-]+\+json|\*)|\*/\*|text/json")
_TEXT = re.compile(r"text/[\w.+-]+|application/(?:xml|[\w.+-]+\+xml|yaml|graphql)")
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"


@dataclass
class OperationArguments:
    """The arguments of a tool and their locations in the request."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    parameters: list[dict[str, Any]] = field(default_factory=list)
    body: dict[str, Any] | None = None

    def claim(self, name: str, place: str) -> str:
        """Return an unused argument name for a parameter: its own, sanitized, if that is free."""
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")[:MAX_PARAMETER_NAME] or place
        chosen, number = plain, 2
        if chosen in self.properties:
            chosen = f"{place}_{plain}"[:MAX_PARAMETER_NAME]
        while chosen in self.properties:
            tail = f"_{number}"
            chosen, number = plain[: MAX_PARAMETER_NAME - len(tail)] + tail, number + 1
        return chosen


def collect_arguments(
    document: OpenApiDocument,
    translation: SchemaConverter,
    path: str,
    levels: list[tuple[Any, str]],
) -> OperationArguments:
    """Return an operation's arguments; `levels` are path item and operation with their pointers."""
    taken = OperationArguments()
    found: dict[tuple[str, str], tuple[dict[str, Any], str]] = {}
    for node, pointer in levels:
        for parameter, place in _walk_parameters(document, node, pointer):
            name, where = parameter.get("name"), parameter.get("in")
            if not isinstance(name, str) or not name:
                raise UnusableDocumentPart("A parameter has no name.", place)
            if not isinstance(where, str) or where not in STYLES:
                raise UnusableDocumentPart(
                    format_message(
                        "`{name}` is in `{where}`, which isn't known.",
                        name=format_node(name),
                        where=format_node(where),
                    ),
                    place,
                )
            found[name, where] = parameter, place
    for (name, where), (parameter, place) in found.items():
        if where == "header" and OURS.fullmatch(name):
            continue
        _take(document, translation, taken, parameter, place)
    _check_path(path, {name for name, where in found if where == "path"}, levels[-1][1])
    operation, pointer = levels[-1]
    _take_body(document, translation, taken, operation.get("requestBody"), f"{pointer}/requestBody")
    return taken


def _walk_parameters(
    document: OpenApiDocument, node: Any, pointer: str
) -> Iterator[tuple[dict[str, Any], str]]:
    listed = node.get("parameters", [])
    if not isinstance(listed, list):
        raise UnusableDocumentPart("`parameters` is not a list.", pointer)
    for index, one in enumerate(listed):
        parameter, place = document.follow(one, f"{pointer}/parameters/{index}")
        if not isinstance(parameter, dict):
            raise UnusableDocumentPart("A parameter is not an object.", place)
        yield parameter, place


def _take(
    document: OpenApiDocument,
    translation: SchemaConverter,
    taken: OperationArguments,
    parameter: Mapping[str, Any],
    place: str,
) -> None:
    name, where = parameter["name"], parameter["in"]
    if where in ("header", "cookie") and not TOKEN.fullmatch(name):
        raise UnusableDocumentPart(
            format_message(
                "`{name}` is not a name for a {where}.", name=format_node(name), where=where
            ),
            place,
        )
    argument = taken.claim(name, where)
    put: dict[str, Any] = {"argument": argument, "name": name, "in": where}
    content = parameter.get("content")
    if isinstance(content, dict) and content:
        media, inner = next(iter(content.items()))
        if not _JSON_MEDIA_RANGE.fullmatch(media.partition(";")[0].strip().lower()):
            raise UnusableDocumentPart(
                format_message(
                    "`{name}` is written as `{media}`.",
                    name=format_node(name),
                    media=format_node(media),
                ),
                place,
            )
        schema = inner.get("schema", {}) if isinstance(inner, dict) else {}
        put["json"] = True
    else:
        schema = parameter.get("schema", {})
        put |= _parse_style(parameter, where, place)
    taken.properties[argument] = _add_description(
        translation.schema(schema, f"{place}/schema"), find_text(parameter, "description")
    )
    if parameter.get("required") is True or where == "path":
        taken.required.append(argument)
    taken.parameters.append(put)


def _parse_style(parameter: Mapping[str, Any], where: str, place: str) -> dict[str, Any]:
    style = parameter.get("style", STYLES[where][0])
    if style not in STYLES[where]:
        raise UnusableDocumentPart(
            format_message(
                "There is no style `{style}` in a {where}.", style=format_node(style), where=where
            ),
            place,
        )
    explode = parameter.get("explode", style in ("form", "deepObject"))
    return {"style": style, "explode": explode is True}


def _check_path(path: str, declared: set[str], pointer: str) -> None:
    """Raise if the path is unsafe or its parameters differ from the declared ones."""
    named = _TEMPLATE.findall(path)
    bare = _TEMPLATE.sub("x", path)
    if not path.startswith("/") or re.search(r"[{}?#\\\x00-\x20\x7f]", bare):
        raise UnusableDocumentPart(
            "Its path has to begin with `/`, without a query, blanks or `\\`.", pointer
        )
    if any(unquote(part) in (".", "..") for part in bare.split("/")):
        raise UnusableDocumentPart("Its path leads out of itself.", pointer)
    if missing := [name for name in named if name not in declared]:
        raise UnusableDocumentPart(
            format_message(
                "Its path names `{missing}`, which no parameter is.",
                missing=format_node(missing[0]),
            ),
            pointer,
        )
    if extra := declared - set(named):
        raise UnusableDocumentPart(
            format_message(
                "Its path doesn't name the parameter `{extra}`.", extra=format_node(min(extra))
            ),
            pointer,
        )


def _take_body(
    document: OpenApiDocument,
    translation: SchemaConverter,
    taken: OperationArguments,
    node: Any,
    pointer: str,
) -> None:
    if node is None:
        return
    body, place = document.follow(node, pointer)
    content = body.get("content") if isinstance(body, dict) else None
    if not isinstance(content, dict) or not content:
        raise UnusableDocumentPart("Its body has no content.", place)
    chosen = _choose_media_type(content)
    needed = body.get("required") is True
    if chosen is None:
        if needed:
            listed = ", ".join(f"`{format_node(media)}`" for media in list(content)[:3])
            raise UnusableDocumentPart(
                format_message(
                    "Its body can only be {listed}, which isn't written here.", listed=listed
                ),
                place,
            )
        return
    media, kind = chosen
    inner = content[media] if isinstance(content[media], dict) else {}
    where = place + build_pointer("content", media, "schema")
    schema = inner.get("schema", {"type": "string"} if kind == "text" else {})
    if kind == MULTIPART:
        _check_no_files(document, schema, where)
    argument = taken.claim("body", "request")
    taken.properties[argument] = _add_description(
        translation.schema(schema, where), find_text(body, "description")
    )
    if needed:
        taken.required.append(argument)
    sent = "application/json" if "*" in media else media
    taken.body = {"argument": argument, "type": sent, "as": kind}


def _choose_media_type(content: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the media type to send and its encoding; None if none is supported."""
    kinds = {media: media.partition(";")[0].strip().lower() for media in content}
    for kind, pattern in (
        ("json", _JSON_MEDIA_RANGE),
        (FORM, re.compile(re.escape(FORM))),
        (MULTIPART, re.compile(re.escape(MULTIPART))),
        ("text", _TEXT),
    ):
        for media, bare in kinds.items():
            if pattern.fullmatch(bare) and media.isascii() and media.isprintable():
                return media, kind
    return None


def _check_no_files(document: OpenApiDocument, schema: Any, pointer: str) -> None:
    """Raise for a form that requires a file."""
    form, place = document.follow(schema, pointer)
    properties = form.get("properties") if isinstance(form, dict) else None
    required = form.get("required") if isinstance(form, dict) else None
    for name in required if isinstance(required, list) else ():
        part = properties.get(name) if isinstance(properties, dict) else None
        part, where = document.follow(part, place + build_pointer("properties", str(name)))
        if isinstance(part, dict) and (
            part.get("format") == "binary" or "contentMediaType" in part
        ):
            raise UnusableDocumentPart(
                format_message(
                    "Its body needs a file, `{name}`; texts alone are sent.", name=format_node(name)
                ),
                where,
            )


def _add_description(schema: Any, description: str) -> Any:
    if isinstance(schema, dict) and description:
        return schema | {"description": description}
    return schema


# The key in a tool's `_meta` for the plan of its request.
PLAN = "bonobot/operation"

RESULT = "x-bonobot-result"
SEND_DEFAULTS = "x-bonobot-send-defaults"
LABELS = "x-bonobot-labels"
LONGEST_POINTER = 200
DEEPEST = 16
MOST_LABELS = 10

_MISSING = object()


def build_plan_extensions(
    operation: Mapping[str, Any], properties: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the `x-` parts of an operation's plan; `properties` are its arguments' schemas."""
    found: dict[str, Any] = {}
    pointer = operation.get(RESULT)
    if isinstance(pointer, str) and pointer.startswith("/") and len(pointer) <= LONGEST_POINTER:
        found["result"] = pointer
    defaults = _collect_defaults(properties, 0) if operation.get(SEND_DEFAULTS) is True else None
    if defaults:
        found["defaults"] = defaults
    labels = operation.get(LABELS)
    if isinstance(labels, list) and len(labels) <= MOST_LABELS:
        found["labels"] = [one for one in labels if isinstance(one, str)]
    return found


def find_declared_labels(payload: Mapping[str, Any]) -> list[str] | None:
    """Return the labels in a tool's plan; None if it has none."""
    meta = payload.get("_meta")
    plan = meta.get(PLAN) if isinstance(meta, Mapping) else None
    found = plan.get("labels") if isinstance(plan, Mapping) else None
    return found if isinstance(found, list) else None


def with_defaults(plan: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments with the plan's defaults for omitted ones."""
    defaults = plan.get("defaults")
    return _merge_defaults(arguments, defaults) if isinstance(defaults, Mapping) else arguments


def resolve_pointer(value: Any, pointer: str) -> tuple[Any, bool]:
    """Return the value that a JSON pointer refers to, and whether it exists."""
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            found = value.get(key, _MISSING)
        elif isinstance(value, list) and key.isdecimal() and len(key) < 6:
            found = value[int(key)] if int(key) < len(value) else _MISSING
        else:
            found = _MISSING
        if found is _MISSING:
            return None, False
        value = found
    return value, True


def _collect_defaults(properties: Any, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        if not isinstance(schema, Mapping):
            continue
        if "default" in schema:
            found[name] = schema["default"]
        elif depth < DEEPEST and (inner := _collect_defaults(schema.get("properties"), depth + 1)):
            found[name] = inner
    return found


def _merge_defaults(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    whole = {**defaults, **given}
    for name, under in defaults.items():
        over = whole[name]
        if isinstance(under, Mapping) and isinstance(over, Mapping):
            whole[name] = _merge_defaults(over, under)
    return whole


METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "query")
READING = ("get", "head", "options", "query")
IDEMPOTENT = (*READING, "put", "delete")
LONGEST_NAME = 64
LONGEST_SUMMARY = 300
ANSWER_NODES = 400
MOST_OPERATIONS = 10_000
_JSON = re.compile(r"application/(?:json|[\w.+-]+\+json)")


@dataclass(frozen=True, kw_only=True)
class OpenApiOperation:
    """One operation, identified by `key` (`GET /pets`).

    `refusal_reason` says why it can't be a tool; `refusal_pointer` where in the document.
    """

    key: str
    name: str
    method: str
    path: str
    pointer: str
    operation_id: str = ""
    summary: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    deprecated: bool = False
    refused: str = ""
    at: str = ""
    tool: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def reads(self) -> bool:
        """Tell whether the method is read-only."""
        return self.method in READING

    def as_dict(self) -> dict[str, Any]:
        """Return the summary that a person selects operations from."""
        return {
            "key": self.key,
            "name": self.name,
            "operation_id": self.operation_id,
            "method": self.method.upper(),
            "path": self.path,
            "summary": (self.summary or self.description.partition("\n")[0])[:LONGEST_SUMMARY],
            "tags": list(self.tags),
            "writes": not self.reads,
            "deprecated": self.deprecated,
            "refused": self.refused,
            "pointer": self.at or self.pointer,
        }


def list_operations(document: OpenApiDocument) -> Iterator[OpenApiOperation]:
    """Yield every operation of a document, in document order."""
    found = list(_walk_paths(document))[:MOST_OPERATIONS]
    names = _build_names([(key, node) for key, _, _, node, _ in found])
    for key, path, method, node, levels in found:
        yield _build_operation(document, key, names[key], path, method, node, levels)


_Level = tuple[Any, str]


def _walk_paths(document: OpenApiDocument) -> Iterator[tuple[str, str, str, Any, list[_Level]]]:
    for path, item in document.root.get("paths", {}).items():
        pointer = build_pointer("paths", path)
        if path.startswith("x-"):
            continue
        try:
            item, pointer = document.follow(item, pointer)
        except UnusableDocumentPart as refusal:
            yield f"ANY {path}", path, "any", refusal, [({}, pointer)]
            continue
        if not isinstance(item, dict):
            continue
        for method in METHODS:
            if method in item:
                place = pointer + build_pointer(method)
                key = f"{method.upper()} {path}"
                yield key, path, method, item[method], [(item, pointer), (item[method], place)]


def _build_operation(
    document: OpenApiDocument,
    key: str,
    name: str,
    path: str,
    method: str,
    node: Any,
    levels: list[_Level],
) -> OpenApiOperation:
    known: dict[str, Any] = {"key": key, "name": name, "method": method, "path": path}
    known["pointer"] = levels[-1][1]
    if isinstance(node, UnusableDocumentPart):
        return OpenApiOperation(**known, refused=str(node), at=node.pointer)
    if not isinstance(node, dict):
        return OpenApiOperation(**known, refused="The operation is not an object.")
    tags = node.get("tags")
    known |= {
        "operation_id": find_text(node, "operationId"),
        "summary": find_text(node, "summary"),
        "description": find_text(node, "description"),
        "tags": tuple(one for one in tags if isinstance(one, str))
        if isinstance(tags, list)
        else (),
        "deprecated": node.get("deprecated") is True,
    }
    try:
        _check_servers(document, levels)
        tool = _build_tool(document, key, name, path, method, levels)
        return OpenApiOperation(**known, tool=tool)
    except UnusableDocumentPart as refusal:
        return OpenApiOperation(**known, refused=str(refusal), at=refusal.pointer)


def _check_servers(document: OpenApiDocument, levels: list[_Level]) -> None:
    """Raise for an operation with its own servers: a credential is for one server only."""
    for node, pointer in levels:
        if isinstance(node, dict) and node.get("servers", document.root.get("servers")) != (
            document.root.get("servers")
        ):
            raise UnusableDocumentPart(
                "It has servers of its own; add it as a server by itself.", pointer
            )


def _build_tool(
    document: OpenApiDocument, key: str, name: str, path: str, method: str, levels: list[_Level]
) -> dict[str, Any]:
    operation, pointer = levels[-1]
    translation = SchemaConverter(document)
    taken = collect_arguments(document, translation, path, levels)
    schema: dict[str, Any] = {"type": "object", "properties": taken.properties}
    if taken.required:
        schema["required"] = taken.required
    schema["additionalProperties"] = False
    plan: dict[str, Any] = {"key": key, "method": method.upper(), "path": path}
    plan["parameters"] = taken.parameters
    if taken.body:
        plan["body"] = taken.body
    plan |= build_plan_extensions(operation, taken.properties)
    summary, description = find_text(operation, "summary"), find_text(operation, "description")
    tool: dict[str, Any] = {
        "name": name,
        "description": "\n\n".join(dict.fromkeys(filter(None, (summary, description)))) or key,
        "inputSchema": translation.whole(schema),
        "annotations": _build_annotations(method, summary),
        "_meta": {PLAN: plan},
    }
    if answer := _answer(document, operation, pointer):
        tool["outputSchema"] = answer
    return tool


def _build_annotations(method: str, title: str) -> dict[str, Any]:
    """Return annotations derived from the method."""
    hints: dict[str, Any] = {"readOnlyHint": method in READING}
    if method not in READING:
        hints |= {"destructiveHint": method != "post", "idempotentHint": method in IDEMPOTENT}
    return hints | {"openWorldHint": True} | ({"title": title} if title else {})


def _answer(
    document: OpenApiDocument, operation: Mapping[str, Any], pointer: str
) -> dict[str, Any] | None:
    """Return the schema of the successful JSON response; None if it is missing or unusable."""
    try:
        schema, place = _find_success_schema(document, operation, f"{pointer}/responses")
        if schema is None:
            return None
        translation = SchemaConverter(document, of="answer", most=ANSWER_NODES)
        root, place = translation.root(schema, place)
        if isinstance(root, dict) and root.get("type") == "object":
            found = translation.schema(root, place)
            return translation.whole(found | {"type": "object"})
        inner = translation.schema(schema, place)
        return translation.whole({"type": "object", "properties": {"result": inner}})
    except UnusableDocumentPart:
        return None


def _find_success_schema(
    document: OpenApiDocument, operation: Mapping[str, Any], pointer: str
) -> tuple[Any, str]:
    responses = operation.get("responses")
    if not isinstance(responses, dict):
        return None, pointer
    for status in sorted(responses):
        if not str(status).startswith("2"):
            continue
        response, place = document.follow(responses[status], pointer + build_pointer(str(status)))
        content = response.get("content") if isinstance(response, dict) else None
        for media, inner in content.items() if isinstance(content, dict) else ():
            if _JSON.fullmatch(media.partition(";")[0].strip().lower()) and isinstance(inner, dict):
                return inner.get("schema"), place + build_pointer("content", media, "schema")
    return None, pointer


def _build_names(found: list[tuple[str, Any]]) -> dict[str, str]:
    """Return a unique, plain name for each key, independent of the order."""
    wanted = {key: _build_plain_name(key, node) for key, node in found}
    often = Counter(name.lower() for name in wanted.values())
    return {
        key: name
        if often[name.lower()] == 1 and len(name) <= LONGEST_NAME
        else _add_name_suffix(name, key)
        for key, name in wanted.items()
    }


def _build_plain_name(key: str, node: Any) -> str:
    said = find_text(node, "operationId") or key.lower()
    return re.sub(r"[^A-Za-z0-9-]+", "_", said).strip("_") or "operation"


def _add_name_suffix(name: str, key: str) -> str:
    mark = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - len(mark) - 1]}_{mark}"
