"""Parse OpenAPI documents and resolve their references (pure)."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible

MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
MAX_REFERENCE_CHAIN = 16
MAX_ALIASED_VALUES = 100_000  # values that YAML aliases may add
MAX_DEPTH = 64
SUPPORTED_VERSION = re.compile(r"3\.([0-2])(?:\.\d{1,4})?(?:-[\w.]{1,20})?")
SWAGGER_REMEDY = (
    "Convert it to OpenAPI 3 first, using Swagger Editor (Edit → Convert to OpenAPI 3) or "
    "`npx swagger2openapi`."
)


class UnusableDocumentPart(Exception):
    """A part of a document that can't be used; the message says why, `pointer` where."""

    def __init__(self, reason: str, pointer: str = "") -> None:
        super().__init__(reason)
        self.pointer = pointer


@dataclass(frozen=True)
class OpenApiDocument:
    """A parsed document; `minor` is 0, 1 or 2 for OpenAPI 3.0 to 3.2."""

    root: Mapping[str, Any] = field(repr=False)
    version: str
    minor: int

    def resolve_node(self, node: Any, pointer: str) -> tuple[Any, str]:
        """Return `node` with its reference resolved, and its pointer.

        Raises `UnusableDocumentPart` for circular, long, remote or dangling references.
        """
        seen_references: list[str] = []
        while isinstance(node, dict) and isinstance(node.get("$ref"), str):
            reference = node["$ref"]
            if reference in seen_references or len(seen_references) >= MAX_REFERENCE_CHAIN:
                raise UnusableDocumentPart(
                    format_message(
                        "`{reference}` refers to itself.", reference=make_visible(reference, 100)
                    ),
                    pointer,
                )
            seen_references.append(reference)
            node, pointer = self.get_referenced_node(reference, pointer), reference[1:]
        return node, pointer

    def get_referenced_node(self, reference: str, pointer: str) -> Any:
        """Return the target of a reference; raises `UnusableDocumentPart` at `pointer`."""
        shown_reference = make_visible(reference, 100)
        if not reference.startswith("#"):
            raise UnusableDocumentPart(
                format_message(
                    "`{shown}` is in another document. External documents aren't fetched.",
                    shown=shown_reference,
                ),
                pointer,
            )
        node: Any = self.root
        for token in split_reference(reference):
            if isinstance(node, list) and token.isdecimal() and len(token) < 6:
                node = node[int(token)] if int(token) < len(node) else None
            else:
                node = node.get(token) if isinstance(node, dict) else None
            if node is None:
                raise UnusableDocumentPart(
                    format_message(
                        "`{shown}` points to nothing in the document.", shown=shown_reference
                    ),
                    pointer,
                )
        return node


def parse_document(text: str) -> OpenApiDocument:
    """Return the parsed document.

    Raises `InvalidInput`: `too_large`, `broken_document`, `unsupported_version`.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise InvalidInput(
            format_message(
                "The document is larger than {limit} MiB.",
                limit=MAX_DOCUMENT_BYTES // 1024**2,
            ),
            code="too_large",
            field="document",
            remedy="Reduce it to the operations that you need.",
        )
    root = _parse_text(text)
    if not isinstance(root, dict):
        raise _build_document_error("it isn't an object")
    if "swagger" in root and "openapi" not in root:
        raise _build_version_error(
            format_message(
                "The document uses Swagger {swagger}.",
                swagger=make_visible(str(root["swagger"]), 20),
            ),
            SWAGGER_REMEDY,
        )
    version = root.get("openapi")
    match = SUPPORTED_VERSION.fullmatch(version) if isinstance(version, str) else None
    if not match or not isinstance(version, str):
        if version is None:
            raise _build_document_error("the `openapi` version field is missing")
        shown_version = make_visible(str(version), 20)
        raise _build_version_error(
            format_message("OpenAPI {shown} isn't supported.", shown=shown_version),
            "Use version 3.0, 3.1, or 3.2.",
        )
    if not isinstance(root.get("paths", {}), dict):
        raise _build_document_error("`paths` isn't an object")
    return OpenApiDocument(root, version, int(match[1]))


def build_pointer(*tokens: str) -> str:
    """Return the JSON pointer (RFC 6901) with these tokens."""
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)


def split_reference(reference: str) -> Iterator[str]:
    """Yield the tokens of a local reference such as `#/paths/~1pets`."""
    for token in reference[1:].split("/")[1:]:
        yield unquote(token).replace("~1", "/").replace("~0", "~")


def _parse_text(text: str) -> Any:
    stripped = text.lstrip("\ufeff \t\r\n")
    if not stripped:
        raise _build_document_error("it is empty")
    try:
        if stripped.startswith("{"):
            return _check_depth(json.loads(stripped, parse_constant=_reject_constant))
        import yaml  # most processes parse no documents

        from bonobot.core.text.yaml_reader import read_yaml_documents

        # Documents are long: use the C parser if it is available.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        roots = read_yaml_documents(
            text, max_bytes=MAX_DOCUMENT_BYTES, loader=loader, alias_budget=MAX_ALIASED_VALUES
        )
    except RecursionError:
        raise _build_document_error(
            format_message("it is nested more than {deepest} levels deep", deepest=MAX_DEPTH)
        ) from None
    except ValueError as error:
        location = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise _build_document_error(
            format_message("it isn't valid JSON{where}", where=location)
        ) from None
    except InvalidInput as problem:
        problem.field = "document"
        raise
    if len(roots) != 1:
        raise _build_document_error(
            format_message("it contains {count} YAML documents", count=len(roots))
        )
    return roots[0].to_python()


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _check_depth(root: Any) -> Any:
    level = [root]
    for _ in range(MAX_DEPTH):
        level = [child for value in level for child in _list_children(value)]
        if not level:
            return root
    raise _build_document_error(
        format_message("it is nested more than {deepest} levels deep", deepest=MAX_DEPTH)
    )


def _list_children(value: Any) -> list[Any]:
    children = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    return [child for child in children if isinstance(child, dict | list)]


def _build_document_error(reason: str) -> InvalidInput:
    return InvalidInput(
        format_message("The OpenAPI document can't be read: {why}.", why=reason),
        code="broken_document",
        field="document",
        remedy="Provide the document itself as JSON or YAML, not a web page about it.",
    )


def _build_version_error(detail: str, remedy: str) -> InvalidInput:
    return InvalidInput(detail, code="unsupported_version", field="document", remedy=remedy)
