"""What an operation takes: its parameters and its body, as properties of a tool's arguments: pure.

Each place that a value goes to is written down beside the schema, and approved together with it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from bonobot.lib.sayings import say
from mcp_servers.openapi.reading import Document, Refused, pointer_to
from mcp_servers.openapi.translating import Translation, shown, text_of

LONGEST_NAME = 64
STYLES = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
# What the protocol, the sign-in or OpenAPI itself says: a parameter can't.
OURS = re.compile(
    r"(?i)accept|content-type|authorization|host|connection|content-length|transfer-encoding|"
    r"cookie|te|trailer|upgrade|expect|keep-alive|user-agent|accept-encoding|proxy-.*"
)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TEMPLATE = re.compile(r"\{([^{}]*)\}")
_JSON = re.compile(r"application/(?:json|[\w.+-]+\+json|\*)|\*/\*|text/json")
_TEXT = re.compile(r"text/[\w.+-]+|application/(?:xml|[\w.+-]+\+xml|yaml|graphql)")
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"


@dataclass
class Taken:
    """The arguments of a tool, and where each goes."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    parameters: list[dict[str, Any]] = field(default_factory=list)
    body: dict[str, Any] | None = None

    def claim(self, name: str, place: str) -> str:
        """Return the argument's name for a parameter: as it is, if that is plain and free."""
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")[:LONGEST_NAME] or place
        chosen, number = plain, 2
        if chosen in self.properties:
            chosen = f"{place}_{plain}"[:LONGEST_NAME]
        while chosen in self.properties:
            tail = f"_{number}"
            chosen, number = plain[: LONGEST_NAME - len(tail)] + tail, number + 1
        return chosen


def taken_by(
    document: Document, translation: Translation, path: str, levels: list[tuple[Any, str]]
) -> Taken:
    """Return what an operation takes; `levels` are path item and operation, with their pointers."""
    taken = Taken()
    found: dict[tuple[str, str], tuple[dict[str, Any], str]] = {}
    for node, pointer in levels:
        for parameter, place in _listed(document, node, pointer):
            name, where = parameter.get("name"), parameter.get("in")
            if not isinstance(name, str) or not name:
                raise Refused("A parameter has no name.", place)
            if not isinstance(where, str) or where not in STYLES:
                raise Refused(
                    say(
                        "`{name}` is in `{where}`, which isn't known.",
                        name=shown(name),
                        where=shown(where),
                    ),
                    place,
                )
            found[name, where] = parameter, place
    for (name, where), (parameter, place) in found.items():
        if where == "header" and OURS.fullmatch(name):
            continue
        _take(document, translation, taken, parameter, place)
    _fits(path, {name for name, where in found if where == "path"}, levels[-1][1])
    operation, pointer = levels[-1]
    _take_body(document, translation, taken, operation.get("requestBody"), f"{pointer}/requestBody")
    return taken


def _listed(document: Document, node: Any, pointer: str) -> Iterator[tuple[dict[str, Any], str]]:
    listed = node.get("parameters", [])
    if not isinstance(listed, list):
        raise Refused("`parameters` is not a list.", pointer)
    for index, one in enumerate(listed):
        parameter, place = document.follow(one, f"{pointer}/parameters/{index}")
        if not isinstance(parameter, dict):
            raise Refused("A parameter is not an object.", place)
        yield parameter, place


def _take(
    document: Document,
    translation: Translation,
    taken: Taken,
    parameter: Mapping[str, Any],
    place: str,
) -> None:
    name, where = parameter["name"], parameter["in"]
    if where in ("header", "cookie") and not TOKEN.fullmatch(name):
        raise Refused(
            say("`{name}` is not a name for a {where}.", name=shown(name), where=where), place
        )
    argument = taken.claim(name, where)
    put: dict[str, Any] = {"argument": argument, "name": name, "in": where}
    content = parameter.get("content")
    if isinstance(content, dict) and content:
        media, inner = next(iter(content.items()))
        if not _JSON.fullmatch(media.partition(";")[0].strip().lower()):
            raise Refused(
                say("`{name}` is written as `{media}`.", name=shown(name), media=shown(media)),
                place,
            )
        schema = inner.get("schema", {}) if isinstance(inner, dict) else {}
        put["json"] = True
    else:
        schema = parameter.get("schema", {})
        put |= _style(parameter, where, place)
    taken.properties[argument] = _described(
        translation.schema(schema, f"{place}/schema"), text_of(parameter, "description")
    )
    if parameter.get("required") is True or where == "path":
        taken.required.append(argument)
    taken.parameters.append(put)


def _style(parameter: Mapping[str, Any], where: str, place: str) -> dict[str, Any]:
    style = parameter.get("style", STYLES[where][0])
    if style not in STYLES[where]:
        raise Refused(
            say("There is no style `{style}` in a {where}.", style=shown(style), where=where), place
        )
    explode = parameter.get("explode", style in ("form", "deepObject"))
    return {"style": style, "explode": explode is True}


def _fits(path: str, declared: set[str], pointer: str) -> None:
    """Refuse a path whose parameters aren't those that are declared, or that leads elsewhere."""
    named = _TEMPLATE.findall(path)
    bare = _TEMPLATE.sub("x", path)
    if not path.startswith("/") or re.search(r"[{}?#\\\x00-\x20\x7f]", bare):
        raise Refused("Its path has to begin with `/`, without a query, blanks or `\\`.", pointer)
    if any(unquote(part) in (".", "..") for part in bare.split("/")):
        raise Refused("Its path leads out of itself.", pointer)
    if missing := [name for name in named if name not in declared]:
        raise Refused(
            say("Its path names `{missing}`, which no parameter is.", missing=shown(missing[0])),
            pointer,
        )
    if extra := declared - set(named):
        raise Refused(
            say("Its path doesn't name the parameter `{extra}`.", extra=shown(min(extra))), pointer
        )


def _take_body(
    document: Document, translation: Translation, taken: Taken, node: Any, pointer: str
) -> None:
    if node is None:
        return
    body, place = document.follow(node, pointer)
    content = body.get("content") if isinstance(body, dict) else None
    if not isinstance(content, dict) or not content:
        raise Refused("Its body has no content.", place)
    chosen = _chosen(content)
    needed = body.get("required") is True
    if chosen is None:
        if needed:
            listed = ", ".join(f"`{shown(media)}`" for media in list(content)[:3])
            raise Refused(
                say("Its body can only be {listed}, which isn't written here.", listed=listed),
                place,
            )
        return
    media, kind = chosen
    inner = content[media] if isinstance(content[media], dict) else {}
    where = place + pointer_to("content", media, "schema")
    schema = inner.get("schema", {"type": "string"} if kind == "text" else {})
    if kind == MULTIPART:
        _no_files(document, schema, where)
    argument = taken.claim("body", "request")
    taken.properties[argument] = _described(
        translation.schema(schema, where), text_of(body, "description")
    )
    if needed:
        taken.required.append(argument)
    sent = "application/json" if "*" in media else media
    taken.body = {"argument": argument, "type": sent, "as": kind}


def _chosen(content: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the media type to send, and how it is written; None where it is none of ours."""
    kinds = {media: media.partition(";")[0].strip().lower() for media in content}
    for kind, pattern in (
        ("json", _JSON),
        (FORM, re.compile(re.escape(FORM))),
        (MULTIPART, re.compile(re.escape(MULTIPART))),
        ("text", _TEXT),
    ):
        for media, bare in kinds.items():
            if pattern.fullmatch(bare) and media.isascii() and media.isprintable():
                return media, kind
    return None


def _no_files(document: Document, schema: Any, pointer: str) -> None:
    """Refuse a form that can't be sent without a file."""
    form, place = document.follow(schema, pointer)
    properties = form.get("properties") if isinstance(form, dict) else None
    required = form.get("required") if isinstance(form, dict) else None
    for name in required if isinstance(required, list) else ():
        part = properties.get(name) if isinstance(properties, dict) else None
        part, where = document.follow(part, place + pointer_to("properties", str(name)))
        if isinstance(part, dict) and (
            part.get("format") == "binary" or "contentMediaType" in part
        ):
            raise Refused(
                say("Its body needs a file, `{name}`; texts alone are sent.", name=shown(name)),
                where,
            )


def _described(schema: Any, description: str) -> Any:
    if isinstance(schema, dict) and description:
        return schema | {"description": description}
    return schema
