"""Check the `endpoint_config` of APIs."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from mcp_servers.models import ApiDocument, Server
from mcp_servers.openapi.document import MAX_DOCUMENT_BYTES

OPENAPI_FIELDS = frozenset({"declared", "document", "document_url", "operations"})
API_KEY_LOCATIONS = ("header", "query", "cookie")
MAX_SELECTED_OPERATIONS = 1_000
_OPERATIONS_FIELD = "endpoint_config.operations"
MAX_KEY_CHARACTERS = 500
_OPERATION_KEY = re.compile(r"[A-Z]{3,7} /.*")


def clean_openapi_config(
    config: Mapping[str, Any], allow_private: bool, existing_server: Server | None
) -> tuple[dict[str, Any], str | None]:
    """Return the API fields to store, and the document if one is given.

    The document of declared operations is composed here. Raises `InvalidInput` and `EgressDenied`,
    each with its field.
    """
    if (declared := find_declared_operations(config, existing_server)) is not None:
        return _compose_declared(declared, config)
    public: dict[str, Any] = {"operations": _parse_operation_keys(config.get("operations"))}
    url = config.get("document_url")
    if url:
        public["document_url"] = _check_document_url(url, allow_private)
    document = config.get("document")
    if document is not None:
        return public, _check_document_text(document)
    if not url and not (
        existing_server and ApiDocument.objects.filter(server=existing_server).exists()
    ):
        raise InvalidInput(
            "An API requires an OpenAPI document.",
            code="missing_value",
            field="endpoint_config.document",
            remedy="Provide the document itself, or its URL as `document_url`.",
        )
    return public, None


def find_declared_operations(
    config: Mapping[str, Any], existing_server: Server | None = None
) -> Any:
    """Return the declared operations; None if the API has a document.

    If the configuration has neither, the existing declared operations are kept.
    """
    if config.get("declared") is not None:
        return config["declared"]
    if existing_server is None or config.get("document") is not None or config.get("document_url"):
        return None
    return existing_server.endpoint_config.get("declared")


def _compose_declared(declared: Any, config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    from mcp_servers.openapi.compose_document import compose_document
    from mcp_servers.openapi.declared_operations import read_declared_operations

    for other_field in ("document", "document_url"):
        if config.get(other_field):
            raise InvalidInput(
                "An API has either a document or manually declared operations, not both.",
                code="document_and_declared",
                field=f"endpoint_config.{other_field}",
                remedy="Omit one of them, or add the API as two servers.",
            )
    base_url = str(config.get("url", "")).strip()
    operations = read_declared_operations(declared, base_url)
    keys = sorted(operation.key for operation in operations)
    public = {"declared": [operation.as_dict() for operation in operations], "operations": keys}
    return public, compose_document(operations, base_url)


def check_operation_count(keys: Collection[str]) -> None:
    """Raise `InvalidInput` (`nothing_selected`, `too_many`) if a server can't have so many."""
    if not keys:
        raise InvalidInput(
            "No operation is selected.",
            code="nothing_selected",
            field=_OPERATIONS_FIELD,
            remedy="Select at least one. The preview lists them.",
        )
    if len(keys) > MAX_SELECTED_OPERATIONS:
        raise InvalidInput(
            format_message(
                "{count:,} operations exceed the limit of {most_chosen:,} per server.",
                count=len(keys),
                most_chosen=MAX_SELECTED_OPERATIONS,
            ),
            code="too_many",
            field=_OPERATIONS_FIELD,
            remedy="Select fewer operations, for example by tag, or add the API as several "
            "servers.",
        )


def _parse_operation_keys(raw_keys: Any) -> list[str]:
    if not isinstance(raw_keys, list) or not all(isinstance(raw_key, str) for raw_key in raw_keys):
        raise InvalidInput("`operations` must be a list of operations.", field=_OPERATIONS_FIELD)
    keys = sorted(set(raw_keys))
    check_operation_count(keys)
    for key in keys:
        if (
            not _OPERATION_KEY.fullmatch(key)
            or len(key) > MAX_KEY_CHARACTERS
            or not key.isprintable()
        ):
            raise InvalidInput(
                format_message("{key!r} isn't a valid operation.", key=key[:80]),
                field=_OPERATIONS_FIELD,
                remedy="Enter the method and path, such as `GET /pets/{id}`.",
            )
    return keys


def _check_document_url(url: Any, allow_private: bool) -> str:
    from bonobot.core.http.egress import EgressDenied, check_url

    try:
        check_url(str(url), allow_private=allow_private)
    except EgressDenied as problem:
        problem.field = "endpoint_config.document_url"
        raise
    return str(url).strip()


def _check_document_text(document: Any) -> str:
    if not isinstance(document, str) or not document.strip():
        raise InvalidInput(
            "The document must be a string.",
            field="endpoint_config.document",
            remedy="Provide the document as a single JSON or YAML text.",
        )
    if len(document.encode("utf-8", "replace")) > MAX_DOCUMENT_BYTES:
        raise InvalidInput(
            format_message(
                "The document is larger than {limit} MiB.",
                limit=MAX_DOCUMENT_BYTES // 1024**2,
            ),
            code="too_large",
            field="endpoint_config.document",
            remedy="Reduce it to the operations that you need.",
        )
    return document.replace("\x00", "\ufffd")
