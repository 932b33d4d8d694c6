"""The pages of REST: one for each tag of the OpenAPI document, and one for the shapes."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from drf_spectacular.generators import SchemaGenerator

from bonobot.core.documentation.reference import format_block as fenced
from bonobot.core.documentation.reference import format_code as code
from bonobot.core.documentation.reference import format_table as table

METHODS = ("get", "post", "put", "patch", "delete")
SHAPES = "shapes"
# Headers that every operation takes; said once.
EVERYWHERE = frozenset({"Bonobot-Organization", "Idempotency-Key"})
HEAD = """# REST: {title}

All paths start with `/api`. Authenticate with `Authorization: Bearer TOKEN`, or with a session of
the admin. Lists are `{{"results": […], "next": …}}` with cursor pagination. Errors are problem
details with a [code](../refusals.md). Writes accept `Idempotency-Key`. If you belong to several
organizations, send `Bonobot-Organization`. The OpenAPI document of an installation is at
`/api/schema`, and its interactive documentation at `/api/docs`.

"""


def pages() -> dict[str, str]:
    """Return the pages by their names."""
    document = SchemaGenerator().get_schema(request=None, public=True)
    by_tag: defaultdict[str, list[str]] = defaultdict(list)
    for path, operations in document["paths"].items():
        for method in METHODS:
            if operation := operations.get(method):
                tag = operation.get("tags", ["others"])[0]
                by_tag[tag].append(_operation(method, path, operation))
    found = {
        tag: HEAD.format(title=tag.replace("-", " ")) + "\n".join(parts)
        for tag, parts in sorted(by_tag.items())
    }
    shapes = document["components"]["schemas"]
    drawn = (_shape(name, shape) for name, shape in sorted(shapes.items()))
    found[SHAPES] = "# REST: schemas\n\nRequest and response bodies, by name.\n\n" + "\n".join(
        drawn
    )
    return found


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [f"## {method.upper()} {path}\n", f"{operation.get('summary', '')}.\n".lstrip(".")]
    if about := operation.get("description", ""):
        parts.append(f"{about}\n")
    parts.append(table(("parameter", "in", "type", "description"), _parameters(operation)))
    for content in (operation.get("requestBody") or {}).get("content", {}).values():
        parts.append(f"Body: {_type(content['schema'])}\n")
        parts += [_example(one) for one in content.get("examples", {}).values()]
        break
    parts.append("\n".join(_answers(operation)) + "\n")
    return "\n".join(part for part in parts if part.strip())


def _parameters(operation: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for one in operation.get("parameters", ()):
        if one["name"] not in EVERYWHERE:
            name = f"{code(one['name'])}{', required' if one.get('required') else ''}"
            yield name, one["in"], _type(one["schema"]), one.get("description", "")


def _example(example: Mapping[str, Any]) -> str:
    written = json.dumps(example["value"], indent=2, ensure_ascii=False)
    return f"{example.get('summary', 'Example')}:\n\n{fenced(written, 'json')}"


def _answers(operation: Mapping[str, Any]) -> Iterator[str]:
    for status, answer in sorted(operation["responses"].items()):
        content = next(iter(answer.get("content", {}).items()), None)
        if int(status) < 400:
            shown = _type(content[1].get("schema", {})) if content else "no content"
            yield f"- `{status}`: {shown}"
    refused = [f"`{status}`" for status in sorted(operation["responses"]) if int(status) >= 400]
    if refused:
        yield f"- errors: {', '.join(refused)}"


def _shape(name: str, shape: Mapping[str, Any]) -> str:
    required = set(shape.get("required", ()))
    rows = (
        (f"{code(field)}{', required' if field in required else ''}", _type(one), _about(one))
        for field, one in shape.get("properties", {}).items()
    )
    drawn = table(("field", "type", "description"), rows)
    return f"## {name}\n\n{shape.get('description', '')}\n\n{drawn or _type(shape)}\n"


def _about(schema: Mapping[str, Any]) -> str:
    choices = ", ".join(code(one) for one in schema.get("enum", ()) if one != "")
    about = str(schema.get("description", ""))
    if about.startswith("* "):  # a list of choices with their names
        return choices
    return " ".join(part for part in (about, choices) if part)


def _type(schema: Mapping[str, Any]) -> str:
    """Return a type in words, linked where it has a name."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}]({SHAPES}.md#{name.lower()})"
    for joined in ("allOf", "oneOf", "anyOf"):
        if joined in schema:
            return " or ".join(_type(one) for one in schema[joined])
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        kind = " or ".join(kind)
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)
