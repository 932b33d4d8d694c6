"""Read an OpenAPI document: JSON or YAML, versions 3.0 to 3.2, references within it only: pure."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote

import yaml

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from mcp_servers.portability.yaml_reader import read_documents

LONGEST_TEXT = 4 * 1024 * 1024
LONGEST_CHAIN = 16
ALIASED = 100_000  # values that YAML's aliases may add
DEEPEST = 64
VERSION = re.compile(r"3\.([0-2])(?:\.\d{1,4})?(?:-[\w.]{1,20})?")
SWAGGER = (
    "Convert it to OpenAPI 3 first: Swagger Editor (Edit → Convert to OpenAPI 3) or "
    "`npx swagger2openapi` do."
)


class Refused(Exception):
    """A part of a document that can't be used; the text says why, `pointer` where."""

    def __init__(self, reason: str, pointer: str = "") -> None:
        super().__init__(reason)
        self.pointer = pointer


@dataclass(frozen=True)
class Document:
    """A document that could be read; `minor` is 0, 1 or 2 for OpenAPI 3.0 to 3.2."""

    root: Mapping[str, Any] = field(repr=False)
    version: str
    minor: int

    def follow(self, node: Any, pointer: str) -> tuple[Any, str]:
        """Return what `node` stands for, and its pointer; raises `Refused`.

        References lead to other places of the document, by a short chain without a circle.
        """
        seen: list[str] = []
        while isinstance(node, dict) and isinstance(node.get("$ref"), str):
            reference = node["$ref"]
            if reference in seen or len(seen) >= LONGEST_CHAIN:
                raise Refused(
                    say("`{reference}` refers to itself.", reference=visible(reference, 100)),
                    pointer,
                )
            seen.append(reference)
            node, pointer = self.at(reference, pointer), reference[1:]
        return node, pointer

    def at(self, reference: str, pointer: str) -> Any:
        """Return what a reference points to; raises `Refused`, whose place is `pointer`."""
        shown = visible(reference, 100)
        if not reference.startswith("#"):
            raise Refused(
                say("`{shown}` is in another document, which is never fetched.", shown=shown),
                pointer,
            )
        node: Any = self.root
        for token in parts_of(reference):
            if isinstance(node, list) and token.isdecimal() and len(token) < 6:
                node = node[int(token)] if int(token) < len(node) else None
            else:
                node = node.get(token) if isinstance(node, dict) else None
            if node is None:
                raise Refused(say("`{shown}` points nowhere.", shown=shown), pointer)
        return node


def read(text: str) -> Document:
    """Return the document of a text.

    Raises `Invalid`: `too_large`, `broken_document`, `unsupported_version`.
    """
    if len(text.encode("utf-8", "surrogatepass")) > LONGEST_TEXT:
        raise Invalid(
            say(
                "The document is larger than {longest_text} MiB.",
                longest_text=LONGEST_TEXT // 1024**2,
            ),
            code="too_large",
            field="document",
            remedy="Cut it down to the operations that you need.",
        )
    root = _parsed(text)
    if not isinstance(root, dict):
        raise _broken("it is not an object")
    if "swagger" in root and "openapi" not in root:
        raise _unsupported(
            say("This is Swagger {swagger}.", swagger=visible(str(root["swagger"]), 20)), SWAGGER
        )
    version = root.get("openapi")
    found = VERSION.fullmatch(version) if isinstance(version, str) else None
    if not found or not isinstance(version, str):
        if version is None:
            raise _broken("it has no `openapi`, which names the version")
        shown = visible(str(version), 20)
        raise _unsupported(
            say("There is no OpenAPI {shown} here.", shown=shown),
            "Versions 3.0, 3.1 and 3.2 are read.",
        )
    if not isinstance(root.get("paths", {}), dict):
        raise _broken("`paths` is not an object")
    return Document(root, version, int(found[1]))


def pointer_to(*tokens: str) -> str:
    """Return a JSON pointer (RFC 6901) of these tokens."""
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)


def parts_of(reference: str) -> Iterator[str]:
    """Yield the tokens of a local reference such as `#/paths/~1pets`."""
    for token in reference[1:].split("/")[1:]:
        yield unquote(token).replace("~1", "/").replace("~0", "~")


def _parsed(text: str) -> Any:
    bare = text.lstrip("\ufeff \t\r\n")
    if not bare:
        raise _broken("it is empty")
    try:
        if bare.startswith("{"):
            return _shallow(json.loads(bare, parse_constant=_refuse))
        # The parser in C, where there is one: documents are long.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        roots = read_documents(text, longest=LONGEST_TEXT, loader=loader, aliased=ALIASED)
    except RecursionError:
        raise _broken(say("it is nested deeper than {deepest}", deepest=DEEPEST)) from None
    except ValueError as error:
        where = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise _broken(say("it is not JSON{where}", where=where)) from None
    except Invalid as problem:
        problem.field = "document"
        raise
    if len(roots) != 1:
        raise _broken(say("it holds {count} YAML documents", count=len(roots)))
    return roots[0].plain()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _shallow(root: Any) -> Any:
    level = [root]
    for _ in range(DEEPEST):
        level = [inner for one in level for inner in _children(one)]
        if not level:
            return root
    raise _broken(say("it is nested deeper than {deepest}", deepest=DEEPEST))


def _children(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for one in inner if isinstance(one, dict | list)]


def _broken(why: str) -> Invalid:
    return Invalid(
        say("The OpenAPI document can't be read: {why}.", why=why),
        code="broken_document",
        field="document",
        remedy="Give the document itself, as JSON or YAML; a page about it is another thing.",
    )


def _unsupported(detail: str, remedy: str) -> Invalid:
    return Invalid(detail, code="unsupported_version", field="document", remedy=remedy)
