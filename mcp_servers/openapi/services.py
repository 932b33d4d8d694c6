"""Create, update, delete and preview declared operations.

Each change updates the server's configuration; the next discovery finds the changed tools, which
then wait for review.
"""

import re
from collections.abc import Mapping
from typing import Any

from django.db import transaction

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.http.egress import EgressDenied, check_url
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput, NotFound
from mcp_servers.models import Server
from mcp_servers.openapi.compose_document import build_example_request, build_tool
from mcp_servers.openapi.declared_operations import DeclaredOperation, read_operation
from mcp_servers.server_config import build_changed_spec, mask_endpoint_config
from mcp_servers.services import update_server

_OPERATION_FIELD_PREFIX = re.compile(r"endpoint_config\.declared\[\d+\]\.?")


def is_declared(server: Server) -> bool:
    """Tell whether a server has declared operations instead of a document."""
    return "declared" in server.endpoint_config


def list_declared_operations(server: Server) -> list[dict[str, Any]]:
    """Return a server's declared operations in stored form; empty if it has a document."""
    return list(server.endpoint_config.get("declared", ()))


def get_declared_operation(server: Server, name: str) -> dict[str, Any]:
    """Return one operation; raises `NotFound` (`unknown_operation`)."""
    for operation in list_declared_operations(server):
        if operation["name"] == name:
            return operation
    raise NotFound(
        format_message(
            "{server!r} has no operation {name!r}.", server=server.name, name=name[:100]
        ),
        code="unknown_operation",
        field="name",
        remedy="The server's details list its operations.",
    )


def create_operation(principal: Principal, server: Server, raw: Any) -> DeclaredOperation:
    """Add a declared operation.

    Raises as `read_operation` and `update_server`, and `Conflict` (`not_declared`).
    """
    return _save_operation(principal, server, raw, replaced_name="")


def update_operation(
    principal: Principal, server: Server, name: str, raw: Any
) -> DeclaredOperation:
    """Replace a declared operation; with another name it becomes another tool."""
    return _save_operation(principal, server, raw, replaced_name=name)


def delete_operation(principal: Principal, server: Server, name: str) -> None:
    """Delete an operation, effective immediately; the last one can't be (`last_operation`)."""
    principal.require(Action.MANAGE_SERVERS)
    with transaction.atomic():
        server.refresh_from_db()
        get_declared_operation(server, name)
        remaining = [
            operation for operation in list_declared_operations(server) if operation["name"] != name
        ]
        if not remaining:
            raise InvalidInput(
                format_message(
                    "{name!r} is the only operation of {server!r}.", name=name, server=server.name
                ),
                code="last_operation",
                remedy="Delete or disable the server instead.",
            )
        _save_declared_operations(principal, server, remaining)


def _save_operation(
    principal: Principal, server: Server, raw: Any, *, replaced_name: str
) -> DeclaredOperation:
    principal.require(Action.MANAGE_SERVERS)
    with transaction.atomic():
        server.refresh_from_db()
        operation = read_operation(raw, server.endpoint_config.get("url", ""))
        operations = list_declared_operations(server)
        if not replaced_name and not is_declared(server):
            raise Conflict(
                format_message(
                    "The operations of {server!r} aren't manually declared.", server=server.name
                ),
                code="not_declared",
                remedy="Change its document, or add a separate server with declared operations.",
            )
        if replaced_name:
            index = operations.index(get_declared_operation(server, replaced_name))
            operations[index] = operation.as_dict()
        else:
            index = len(operations)
            operations.append(operation.as_dict())
        try:
            _save_declared_operations(principal, server, operations)
        except InvalidInput as problem:
            # The request has one operation, not a list: strip the index from the field.
            problem.field = _OPERATION_FIELD_PREFIX.sub("", problem.field)
            raise
    return operation


def _save_declared_operations(
    principal: Principal, server: Server, declared: list[dict[str, Any]]
) -> None:
    config: Mapping[str, Any] = {**mask_endpoint_config(server), "declared": declared}
    update_server(principal, server, build_changed_spec(server, endpoint_config=config))


def build_operation_preview(raw: Any, base_url: str, *, field: str = "") -> dict[str, Any]:
    """Return key, tool and an example request without the sign-in; nothing is sent.

    Raises `InvalidInput`, and `EgressDenied` for an address that is never allowed.
    """
    try:
        check_url(base_url, allow_private=True)  # private addresses are checked on save
    except EgressDenied as problem:
        problem.field = "url"
        raise
    operation = read_operation(raw, base_url, field)
    tool = build_tool(operation, base_url, field)
    request = build_example_request(tool, base_url)
    return {
        "key": operation.key,
        "tool": tool,
        "request": {
            "method": request.method,
            "url": request.url,
            "headers": [{"name": name, "value": value} for name, value in request.headers],
            "body": (request.body or b"").decode(),
        },
    }
